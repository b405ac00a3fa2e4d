"""Where processor time goes, as agents import it; names only."""

from nemo_gym.environment.profiling import Profiler

__all__ = ["Profiler"]
