"""What a server of whole episodes imports; names only."""

from nemo_gym.config.types import AggregateMetrics, AggregateMetricsRequest
from nemo_gym.environment.episode_server import (
    BaseEnvironmentServer,
    BaseEnvironmentServerConfig,
    CleanupContext,
    CleanupHandle,
    HandledEpisodeError,
)

__all__ = [
    "AggregateMetrics",
    "AggregateMetricsRequest",
    "BaseEnvironmentServer",
    "BaseEnvironmentServerConfig",
    "CleanupContext",
    "CleanupHandle",
    "HandledEpisodeError",
]
