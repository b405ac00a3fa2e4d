"""One turn of one agent as an episode, as environments import it; names only."""

from nemo_gym.environment.turns import (
    SingleAgentTurnFailure,
    SingleAgentTurnRequest,
    SingleAgentTurnResponse,
    SingleAgentTurnResult,
    SingleAgentTurnTaskInput,
)

__all__ = [
    "SingleAgentTurnFailure",
    "SingleAgentTurnRequest",
    "SingleAgentTurnResponse",
    "SingleAgentTurnResult",
    "SingleAgentTurnTaskInput",
]
