"""Names that environments and agents import: the shape of their configuration."""

from nemo_gym.config.types import (
    ROLLOUT_PATH_PREFIX,
    TOKEN_CAPTURE_PATH_SEGMENT,
    AgentServerRef,
    AggregateMetrics,
    AggregateMetricsRequest,
    BaseRunServerConfig,
    BaseRunServerInstanceConfig,
    BaseServerConfig,
    CaptureConfig,
    ConfigError,
    DatasetConfig,
    Domain,
    JobConfig,
    ModelServerRef,
    ResourcesServerRef,
    ServerRef,
)

__all__ = [
    "ROLLOUT_PATH_PREFIX",
    "TOKEN_CAPTURE_PATH_SEGMENT",
    "AgentServerRef",
    "AggregateMetrics",
    "AggregateMetricsRequest",
    "BaseRunServerConfig",
    "BaseRunServerInstanceConfig",
    "BaseServerConfig",
    "CaptureConfig",
    "ConfigError",
    "DatasetConfig",
    "Domain",
    "JobConfig",
    "ModelServerRef",
    "ResourcesServerRef",
    "ServerRef",
]
