"""Which sandbox provider a configuration means; names only."""

from nemo_gym.environment.sandbox.settings import resolve_provider_config, resolve_provider_metadata

__all__ = [
    "resolve_provider_config",
    "resolve_provider_metadata",
]
