"""One turn of one agent as an episode: what is asked, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, JsonValue, model_validator

from ..dialects.responses.objects import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming
from .episodes import BaseEpisodeRequest, BaseEpisodeResponse, EpisodeFailure
from .observations import AgentObservationBundle
from .server import BaseVerifyResponse


class SingleAgentTurnTaskInput(BaseModel):
    """A row, with the fields of its own under `task_data`; a flat row is read as one."""

    model_config = ConfigDict(extra="forbid")

    responses_create_params: NeMoGymResponseCreateParamsNonStreaming
    task_data: dict[str, JsonValue]

    @model_validator(mode="before")
    @classmethod
    def _gathered(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        own = {key: one for key, one in value.items() if key not in ("responses_create_params", "task_data")}
        said = value.get("task_data", {})
        if not isinstance(said, Mapping):
            return value
        for key in own.keys() & said.keys():
            if own[key] != said[key]:
                raise ValueError(f"{key!r} has one value in task_data and another beside it")
        return {"responses_create_params": value.get("responses_create_params"), "task_data": {**said, **own}}


class SingleAgentTurnResult(BaseVerifyResponse):
    """What the verifier answered, its own fields included, and what the agent saw."""

    model_config = ConfigDict(extra="allow")

    ng_agent_observations: AgentObservationBundle | None = None


class SingleAgentTurnFailure(EpisodeFailure):
    partial_response: NeMoGymResponse | None = None
    """As far as the agent came."""


class SingleAgentTurnRequest(BaseEpisodeRequest[SingleAgentTurnTaskInput]):
    pass


class SingleAgentTurnResponse(BaseEpisodeResponse[SingleAgentTurnResult]):
    failure: SingleAgentTurnFailure | None = None
