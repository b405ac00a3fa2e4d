"""How another server goes on with a sandbox; names only."""

from nemo_gym.environment.sandbox.access import DirectSandboxConnection, SandboxAccess

__all__ = [
    "DirectSandboxConnection",
    "SandboxAccess",
]
