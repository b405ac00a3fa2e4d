"""What a sandbox provider is, and which there are; names only."""

from nemo_gym.environment.sandbox.kinds import (
    SandboxCreateError,
    SandboxCreateVerificationError,
    SandboxEndpoint,
    SandboxExecResult,
    SandboxHandle,
    SandboxResources,
    SandboxSpec,
    SandboxStatus,
)
from nemo_gym.environment.sandbox.provider import (
    ConnectableProvider,
    SandboxProvider,
    SupportsSandboxEndpoint,
    SupportsSandboxPauseResume,
    create_provider,
    get_provider_class,
    list_providers,
    register_provider,
)

__all__ = [
    "ConnectableProvider",
    "SandboxCreateError",
    "SandboxCreateVerificationError",
    "SandboxEndpoint",
    "SandboxExecResult",
    "SandboxHandle",
    "SandboxProvider",
    "SandboxResources",
    "SandboxSpec",
    "SandboxStatus",
    "SupportsSandboxEndpoint",
    "SupportsSandboxPauseResume",
    "create_provider",
    "get_provider_class",
    "list_providers",
    "register_provider",
]
