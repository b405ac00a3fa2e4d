"""The sandbox provider that runs commands on this machine; names only."""

from nemo_gym.environment.sandbox.local import LocalProvider

__all__ = [
    "LocalProvider",
]
