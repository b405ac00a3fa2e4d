"""Sandbox providers by name; names only."""

from nemo_gym.environment.sandbox.provider import create_provider, get_provider_class, list_providers, register_provider

__all__ = [
    "create_provider",
    "get_provider_class",
    "list_providers",
    "register_provider",
]
