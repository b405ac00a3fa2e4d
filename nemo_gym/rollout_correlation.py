"""Which rollout a call belongs to, as environments import it; names only."""

from nemo_gym.web.rollout import (
    RolloutContextMiddleware,
    current_rollout_id,
    maybe_rollout_id_from_run_body,
    rollout_context,
)

__all__ = ["RolloutContextMiddleware", "current_rollout_id", "maybe_rollout_id_from_run_body", "rollout_context"]
