"""What an environment subclasses: tools as routes, and a verifier that turns a rollout into a reward.

A subclass implements `verify` and adds its tool routes in `setup_webserver`. What a rollout changes is kept under
`request.session`, a signed cookie that the agent carries from call to call, so two rollouts never see each other.
The requests here are NeMo Gym's, by name and by field; a subclass adds the fields of its own dataset rows.
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field

from ..config.types import AggregateMetrics, AggregateMetricsRequest, BaseRunServerInstanceConfig
from ..dialects.responses.objects import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming
from ..web.bugs import AnswersBugs
from ..web.service import SimpleServer
from .metrics import AggregateMetricsMixin


class ReverifyMode(StrEnum):
    """Whether rewards can be computed anew from stored rollouts alone."""

    STATELESS = "stateless"
    UNSUPPORTED = "unsupported"
    UNKNOWN = "unknown"


class BaseResourcesServerConfig(BaseRunServerInstanceConfig):
    REVERIFY_MODE: ClassVar[ReverifyMode] = ReverifyMode.UNKNOWN


class BaseRunRequest(BaseModel):
    """A dataset row, as an agent gets it."""

    model_config = ConfigDict(populate_by_name=True)

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


class BaseSeedSessionRequest(BaseModel):
    """Sent once before a rollout. A subclass reads the fields of its rows here."""


class BaseSeedSessionResponse(BaseModel):
    """A rollout's session is in the cookie that comes with this answer."""


class SimpleResourcesServer(AggregateMetricsMixin, SimpleServer):
    config: BaseResourcesServerConfig

    def setup_webserver(self) -> FastAPI:
        app = FastAPI()
        self.setup_session_middleware(app)
        app.add_middleware(AnswersBugs)
        app.post("/seed_session")(self.seed_session)
        app.post("/verify")(self.verify)
        app.post("/aggregate_metrics")(self.aggregate_metrics)
        app.get("/reverify_mode")(self.get_reverify_mode)
        return app

    async def seed_session(self, body: BaseSeedSessionRequest) -> BaseSeedSessionResponse:
        """Prepares what one rollout needs; the default keeps nothing."""
        return BaseSeedSessionResponse()

    async def verify(self, body: BaseVerifyRequest) -> BaseVerifyResponse:
        """The row and its response, with a reward. A failure of the verifier itself is raised, never a reward of 0."""
        raise NotImplementedError(f"{type(self).__name__} has no verify()")

    async def aggregate_metrics(self, body: AggregateMetricsRequest) -> AggregateMetrics:
        return self.aggregate(body.verify_responses)

    async def get_reverify_mode(self) -> ReverifyMode:
        return self.config.REVERIFY_MODE


BaseResourcesServer = SimpleResourcesServer
