"""Requests of Responses as chat backends get them, as environments' tests import it; names only."""

from nemo_gym.environment.converter import ResponsesConverter

__all__ = ["ResponsesConverter"]
