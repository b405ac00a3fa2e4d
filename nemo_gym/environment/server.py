"""What an environment subclasses: tools as routes, and a verifier that turns a rollout into a reward.

A subclass implements `verify` and adds its tool routes in `setup_webserver`. What a rollout changes is kept under
`request.session`, a signed cookie that the agent carries from call to call, so two rollouts never see each other.
The requests here are NeMo Gym's, by name and by field; a subclass adds the fields of its own dataset rows.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, ClassVar, Literal

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field, field_validator

from ..config.types import AggregateMetrics, AggregateMetricsRequest, BaseRunServerInstanceConfig
from ..dialects.responses.objects import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming
from ..web.rollout import RolloutContextMiddleware
from ..web.routes import BodyRoute
from ..web.service import SimpleServer
from .episodes import (
    ResourcesCloseSessionRequest,
    ResourcesCloseSessionResponse,
    ResourcesSeedSessionRequest,
    ResourcesSeedSessionResponse,
)
from .failure_kinds import validate_failure_kind
from .judge import judge_failsafe
from .mcp_names import normalize_tool_name
from .metrics import AggregateMetricsMixin


class ReverifyMode(StrEnum):
    """Whether rewards can be computed anew from stored rollouts alone."""

    STATELESS = "stateless"
    UNSUPPORTED = "unsupported"
    UNKNOWN = "unknown"


class BaseResourcesServerConfig(BaseRunServerInstanceConfig):
    REVERIFY_MODE: ClassVar[ReverifyMode] = ReverifyMode.UNKNOWN
    expose_tools_over_mcp: bool = False
    """Serve the tool routes over MCP at `/mcp` too (`mcp.py`)."""


class BaseRunRequest(BaseModel):
    """A dataset row, as an agent gets it."""

    model_config = ConfigDict(populate_by_name=True, defer_build=True)

    responses_create_params: NeMoGymResponseCreateParamsNonStreaming
    capture_rollout_id: str | None = Field(default=None, alias="_ng_rollout_id", exclude=True)
    """Under which the model server records the calls of this rollout."""


class BaseVerifyRequest(BaseRunRequest):
    """The row and what the agent made of it."""

    response: NeMoGymResponse


class BaseVerifyResponse(BaseVerifyRequest):
    reward: float
    mask_sample: bool = False
    """The reward is no valid measurement (a tool's backend was down, a judge did not answer): left out of figures."""
    failure_kind: str | None = None
    """What went wrong, in one groupable word."""
    failure_reason: str | None = None
    """The same for a person."""

    @field_validator("failure_kind")
    @classmethod
    def _known_kind(cls, value: str | None) -> str | None:
        return validate_failure_kind(value)


class BaseMultiRewardVerifyResponse(BaseVerifyResponse):
    """Several rewards by name, the same names for every task; `reward` is the one figure that stands for them all."""

    reward_components: dict[str, float]


for _base in (BaseRunRequest, BaseVerifyRequest, BaseVerifyResponse, BaseMultiRewardVerifyResponse):
    # Only these are built when they are first used: each anew from all the items that a conversation may have, and
    # an environment uses its own subclasses, which are built at once.
    _base.model_config["defer_build"] = False


class BaseSeedSessionRequest(BaseModel):
    """Sent once before a rollout. A subclass reads the fields of its rows here."""


class BaseSeedSessionResponse(BaseModel):
    """A rollout's session is in the cookie that comes with this answer."""


class SimpleResourcesServer(AggregateMetricsMixin, SimpleServer):
    config: BaseResourcesServerConfig

    def setup_webserver(self) -> FastAPI:
        app = FastAPI()
        app.router.route_class = BodyRoute
        self.setup_session_middleware(app)
        app.add_middleware(RolloutContextMiddleware)
        app.post("/seed_session")(self.seed_session)
        app.post("/close_session")(self.close_resources_session)
        app.post("/verify")(judge_failsafe(self.verify))
        app.post("/aggregate_metrics")(self.aggregate_metrics)
        app.get("/reverify_mode")(self.get_reverify_mode)
        app.get("/seed_mode", include_in_schema=False)(self.get_seed_mode)
        return app

    def asgi(self) -> Any:
        app = super().asgi()
        if self.config.expose_tools_over_mcp:
            from .mcp import install_auto_exposure  # with the `mcp` extra

            install_auto_exposure(self, app)
        return app

    def normalize_tool_name(self, name: str) -> str:
        """A tool's own name, where an agent that speaks MCP put this server's name before it."""
        return normalize_tool_name(name, self.config.name or type(self).__name__)

    def mcp_tools(self, harvested: list[Any], catchall: Any) -> list[Any] | None:
        """The tools that are served over MCP; None or nothing for none.

        Args:
            harvested: one for each typed POST route.
            catchall: makes further ones of the route with a path parameter, `catchall.tool(name, schema, description)`;
                None where there is no such route.
        """
        return harvested

    def mcp_allowed_tools_for_session(self, seed_body: dict[str, Any]) -> list[str] | None:
        """The tools that the rollout of this seed may use; None for all."""
        return None

    async def seed_session(
        self, body: ResourcesSeedSessionRequest | BaseSeedSessionRequest
    ) -> ResourcesSeedSessionResponse | BaseSeedSessionResponse:
        """Prepares what one rollout needs; the default keeps nothing."""
        if isinstance(body, ResourcesSeedSessionRequest):
            return ResourcesSeedSessionResponse(resources_session_id=body.resources_session_id)
        return BaseSeedSessionResponse()

    async def close_resources_session(self, body: ResourcesCloseSessionRequest) -> ResourcesCloseSessionResponse:
        """Frees what a session holds. An override closes twice, and what was never seeded, without complaint."""
        return ResourcesCloseSessionResponse(resources_session_id=body.resources_session_id)

    async def verify(self, body: BaseVerifyRequest) -> BaseVerifyResponse:
        """The row and its response, with a reward. A failure of the verifier itself is raised, never a reward of 0."""
        raise NotImplementedError(f"{type(self).__name__} has no verify()")

    async def aggregate_metrics(self, body: AggregateMetricsRequest) -> AggregateMetrics:
        return self.aggregate(body.verify_responses)

    async def get_reverify_mode(self) -> ReverifyMode:
        return self.config.REVERIFY_MODE

    async def get_seed_mode(self) -> Literal["session", "nothing"]:
        """What a seed prepares: an agent may leave one out that prepares nothing."""
        own = type(self).seed_session is not SimpleResourcesServer.seed_session
        return "session" if own or self.config.expose_tools_over_mcp else "nothing"


BaseResourcesServer = SimpleResourcesServer
