"""What an agent subclasses: `run` plays one dataset row to its reward, `responses` is the loop alone.

Model calls of a rollout go to `/ng-rollout/<id>/…` of the model server, so each is recorded under its rollout. A caller
that hangs up ends the rollout (`web.service` sees to it), so none goes on after its deadline.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any

from fastapi import Body, FastAPI, Request
from pydantic import BaseModel

from ..config.rows import OBSERVABILITY_ENABLED_KEY_NAME, TOKEN_ID_CAPTURE_BLOCK
from ..config.types import AggregateMetrics, AggregateMetricsRequest
from ..environment.metrics import AggregateMetricsMixin
from ..environment.server import BaseRunRequest, BaseVerifyResponse
from ..web.correlation import apply_rollout_prefix, rollout_path, rollout_path_prefix, valid_rollout_id
from ..web.rollout import maybe_rollout_id_from_run_body, rollout_context
from ..web.routes import BodyRoute
from ..web.service import get_first_server_config_dict
from .failures import RolloutFailed, answer_failure
from .sessions import AgentSessions, AgentSessionsConfig

__all__ = ["BaseResponsesAPIAgentConfig", "Body", "SimpleResponsesAPIAgent"]


class BaseResponsesAPIAgentConfig(AgentSessionsConfig):
    skip_verification: bool = False
    """Take `skip_verification_reward` instead of asking the environment."""
    skip_verification_reward: float = 0.0
    token_id_capture: bool = False
    """Kept for configurations that set it: every call is recorded, with its token ids where they are known."""


class SimpleResponsesAPIAgent(AggregateMetricsMixin, AgentSessions):
    config: BaseResponsesAPIAgentConfig

    def setup_webserver(self) -> FastAPI:
        app = FastAPI()
        app.router.route_class = BodyRoute
        self.setup_session_middleware(app)
        app.add_exception_handler(RolloutFailed, answer_failure)
        app.post("/v1/responses")(self.responses)
        app.post("/ng-rollout/{rollout_id}/v1/responses", include_in_schema=False)(self.responses)
        app.post("/run")(self._within_rollout(self.run))
        app.post("/aggregate_metrics")(self.aggregate_metrics)
        app.post("/v1/agent_sessions")(self.seed_agent_session)
        app.post("/v1/agent_sessions/close")(self.close_agent_session)
        return app

    async def responses(self, body: Annotated[Any, Body()]) -> Any:
        """The agent's loop on one Responses request; its output holds every turn."""
        raise NotImplementedError(f"{type(self).__name__} has no responses()")

    async def run(self, body: BaseRunRequest) -> BaseVerifyResponse:
        """One rollout: seed the environment, run the loop, have it verified."""
        raise NotImplementedError(f"{type(self).__name__} has no run()")

    async def aggregate_metrics(self, body: AggregateMetricsRequest) -> AggregateMetrics:
        return self.aggregate(body.verify_responses)

    # ---- which rollout a call belongs to

    def _within_rollout(self, run: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """`run` with its own signature; the environment is told which rollout it is called in."""

        @functools.wraps(run)
        async def within(*args: Any, **kwargs: Any) -> Any:
            bodies = (kwargs.get("body"), *kwargs.values(), *args)
            found = (self.rollout_id_from_run(one) for one in bodies if isinstance(one, dict | BaseModel))
            with rollout_context(next(filter(None, found), None)):
                return await run(*args, **kwargs)

        return within

    def rollout_id_from_run(self, body: Any) -> str | None:
        """The rollout id of a `/run` body (a dict or an object), None without one.

        One that only its task and repeat name is a rollout where the run asks for capture in NeMo Gym's way.
        """
        if isinstance(body, dict):
            found = body.get("_ng_rollout_id")
        else:
            found = getattr(body, "capture_rollout_id", None) or (getattr(body, "model_extra", None) or {}).get(
                "_ng_rollout_id"
            )
        if found is None and self._capture_correlation_enabled():
            found = maybe_rollout_id_from_run_body(body)
        return found if isinstance(found, str) and valid_rollout_id(found) else None

    def url_path_for_run(self, url_path: str, body: Any) -> str:
        """`url_path` as it is called within the rollout of a `/run` body."""
        rollout_id = self.rollout_id_from_run(body)
        return rollout_path_prefix(rollout_id, token_capture=self._token_id_capture_enabled()) + url_path

    def base_url_for_run(self, base_url: str, body: Any) -> str:
        """The root of a model server within the rollout of a `/run` body, without `/v1`."""
        return base_url.rstrip("/") + self.url_path_for_run("", body)

    def url_path_for_request(self, url_path: str, request: Request | None) -> str:
        """`url_path` within the rollout that a request to this agent came under."""
        named = getattr(request, "path_params", None)
        return rollout_path(named.get("rollout_id") if isinstance(named, Mapping) else None, url_path)

    def resolve_model_base_url(self, model_server_name: str, rollout_id: str | None = None) -> str:
        """The base URL that an OpenAI client takes, `/v1` included."""
        config = self.server_client.global_config_dict
        if model_server_name not in config:
            return self.server_client.base_url(model_server_name)  # says which there are
        address = self.server_client._build_server_base_url(get_first_server_config_dict(config, model_server_name))
        prefixed = apply_rollout_prefix(address, rollout_id, token_capture=self._token_id_capture_enabled())
        return prefixed + "/v1"

    # ---- what NeMo Gym's runs ask of agents; a run here says none of it, and records every call

    def _capture_correlation_enabled(self) -> bool:
        return self._model_call_capture_enabled() or self._token_id_capture_enabled()

    def _model_call_capture_enabled(self) -> bool:
        return bool(self._run_says(OBSERVABILITY_ENABLED_KEY_NAME))

    def _token_id_capture_enabled(self) -> bool:
        block = self._run_says(TOKEN_ID_CAPTURE_BLOCK)
        if not isinstance(block, Mapping) or not block.get("enabled"):
            return False
        return bool(block.get("all_agents")) or self.config.token_id_capture

    def _run_says(self, key: str) -> Any:
        said = getattr(self.server_client, "global_config_dict", None)
        return said.get(key) if isinstance(said, Mapping) else None


BaseResponsesAPIAgent = SimpleResponsesAPIAgent
