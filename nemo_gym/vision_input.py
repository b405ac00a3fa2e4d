"""A prompt with a picture, as preparation scripts import it; names only."""

from nemo_gym.environment.vision import build_image_input

__all__ = ["build_image_input"]
