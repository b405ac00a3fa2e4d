"""Which files an agent made, as environments import it; names only."""

from nemo_gym.environment.files import IGNORE_FILES, is_deliverable

__all__ = ["IGNORE_FILES", "is_deliverable"]
