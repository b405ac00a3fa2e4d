"""What an environment imports; names only."""

from nemo_gym.config.types import AggregateMetrics, AggregateMetricsRequest
from nemo_gym.environment.server import (
    BaseResourcesServer,
    BaseResourcesServerConfig,
    BaseRunRequest,
    BaseSeedSessionRequest,
    BaseSeedSessionResponse,
    BaseVerifyRequest,
    BaseVerifyResponse,
    ReverifyMode,
    SimpleResourcesServer,
)

__all__ = [
    "AggregateMetrics",
    "AggregateMetricsRequest",
    "BaseResourcesServer",
    "BaseResourcesServerConfig",
    "BaseRunRequest",
    "BaseSeedSessionRequest",
    "BaseSeedSessionResponse",
    "BaseVerifyRequest",
    "BaseVerifyResponse",
    "ReverifyMode",
    "SimpleResourcesServer",
]
