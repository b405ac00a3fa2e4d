"""A dataset row with the identity of its task, as environments import it; names only."""

from nemo_gym.environment.episodes import materialize_task

__all__ = ["materialize_task"]
