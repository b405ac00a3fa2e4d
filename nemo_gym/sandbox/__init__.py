"""Sandboxes, as environments import them; names only."""

from nemo_gym.environment.sandbox.blocking import Sandbox
from nemo_gym.environment.sandbox.client import AsyncSandbox
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
from nemo_gym.environment.sandbox.settings import resolve_provider_config, resolve_provider_metadata, rewrite_image

__all__ = [
    "AsyncSandbox",
    "ConnectableProvider",
    "Sandbox",
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
    "resolve_provider_config",
    "resolve_provider_metadata",
    "rewrite_image",
]
