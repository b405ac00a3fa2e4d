"""What a sandbox provider is; names only."""

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
]
