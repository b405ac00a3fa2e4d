"""What an environment imports; names only."""

from nemo_gym.config.types import AggregateMetrics, AggregateMetricsRequest
from nemo_gym.dialects.responses.objects import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.environment.episodes import (
    EpisodeId,
    MCPServerMetadata,
    ResourcesCloseSessionRequest,
    ResourcesCloseSessionResponse,
    ResourcesSeedSessionRequest,
    ResourcesSeedSessionResponse,
    ResourcesVerifyRequest,
    TaskId,
)
from nemo_gym.environment.mcp_names import (
    NEMO_GYM_MCP_METADATA_KEY,
    NEMO_GYM_MCP_SESSION_TOKEN_HEADER,
    RESERVED_MCP_TOOL_NAMES,
    normalize_tool_name,
)
from nemo_gym.environment.server import (
    BaseMultiRewardVerifyResponse,
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
    "NEMO_GYM_MCP_METADATA_KEY",
    "NEMO_GYM_MCP_SESSION_TOKEN_HEADER",
    "RESERVED_MCP_TOOL_NAMES",
    "AggregateMetrics",
    "AggregateMetricsRequest",
    "BaseMultiRewardVerifyResponse",
    "BaseResourcesServer",
    "BaseResourcesServerConfig",
    "BaseRunRequest",
    "BaseSeedSessionRequest",
    "BaseSeedSessionResponse",
    "BaseVerifyRequest",
    "BaseVerifyResponse",
    "EpisodeId",
    "MCPServerMetadata",
    "NeMoGymResponse",
    "NeMoGymResponseCreateParamsNonStreaming",
    "ResourcesCloseSessionRequest",
    "ResourcesCloseSessionResponse",
    "ResourcesSeedSessionRequest",
    "ResourcesSeedSessionResponse",
    "ResourcesVerifyRequest",
    "ReverifyMode",
    "SimpleResourcesServer",
    "TaskId",
    "normalize_tool_name",
]
