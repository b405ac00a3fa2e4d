"""The keys by which a failure is told in a rollout's place, as environments and agents import them; names only."""

from nemo_gym.config.rows import NG_FAILURE_CLASS_KEY, NG_NO_PERSIST_KEY, NG_TERMINAL_KEY

__all__ = ["NG_FAILURE_CLASS_KEY", "NG_NO_PERSIST_KEY", "NG_TERMINAL_KEY"]
