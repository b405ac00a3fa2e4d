"""What an environment saw beside the rollout, as environments import it; names only."""

from nemo_gym.environment.observations import SandboxObservation

__all__ = ["SandboxObservation"]
