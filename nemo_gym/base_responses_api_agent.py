"""What an agent imports; names only."""

from nemo_gym.agent_server.failures import RolloutFailed
from nemo_gym.agent_server.server import (
    BaseResponsesAPIAgent,
    BaseResponsesAPIAgentConfig,
    Body,
    SimpleResponsesAPIAgent,
)
from nemo_gym.agent_server.sessions import (
    AGENT_SESSION_COOKIE_KEY,
    AgentCloseSessionRequest,
    AgentCloseSessionResponse,
    AgentSeedSessionRequest,
    AgentSeedSessionResponse,
    AgentSessionSetupError,
    AgentSessionState,
)
from nemo_gym.config.types import AggregateMetrics, AggregateMetricsRequest
from nemo_gym.environment.server import BaseRunRequest, BaseVerifyRequest, BaseVerifyResponse

__all__ = [
    "AGENT_SESSION_COOKIE_KEY",
    "AgentCloseSessionRequest",
    "AgentCloseSessionResponse",
    "AgentSeedSessionRequest",
    "AgentSeedSessionResponse",
    "AgentSessionSetupError",
    "AgentSessionState",
    "AggregateMetrics",
    "AggregateMetricsRequest",
    "BaseResponsesAPIAgent",
    "BaseResponsesAPIAgentConfig",
    "BaseRunRequest",
    "BaseVerifyRequest",
    "BaseVerifyResponse",
    "Body",
    "RolloutFailed",
    "SimpleResponsesAPIAgent",
]
