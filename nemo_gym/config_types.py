"""Names that environments and agents import: the shape of their configuration."""

from typing import Any

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


def __getattr__(name: str) -> Any:
    """One that tests of agents find here, and that no server has to wait for."""
    if name != "OmegaConf":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from omegaconf import OmegaConf

    return OmegaConf
