"""Who is meant by an episode and a task, and how an episode's session is opened and closed at a resources server.

An episode is one physical attempt of a rollout; a task is one row of a named set. Environments that keep state for
callers with sessions of their own (instead of the cookie) read these requests.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, field_validator, model_serializer, model_validator
from pydantic.functional_serializers import SerializerFunctionWrapHandler

from ..config.rows import AGENT_REF_KEY_NAME, SKILLS_REF_KEY_NAME, TASK_INDEX_KEY_NAME, TASK_SOURCE_KEY_NAME
from .failure_kinds import FailureStage, validate_failure_kind
from .sandbox.access import SandboxAccess

_NAMES = ("task_id", "problem_id", "instance_id")
"""Where a row says which task it is."""
_ROUTING = (AGENT_REF_KEY_NAME, TASK_SOURCE_KEY_NAME, SKILLS_REF_KEY_NAME)
_ATTEMPT = re.compile(r"-a[1-9][0-9]*$")
_Input = TypeVar("_Input")
_Result = TypeVar("_Result")


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")


class EpisodeId(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    rollout_id: str = Field(min_length=1, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    attempt: int = Field(default=0, ge=0)

    @field_validator("rollout_id")
    @classmethod
    def _no_attempt_in_it(cls, rollout_id: str) -> str:
        if _ATTEMPT.search(rollout_id):
            raise ValueError("rollout_id must not end in -a<number>, which names an attempt")
        return rollout_id

    @property
    def capture_key(self) -> str:
        """Under which the calls of this attempt are recorded."""
        return f"{self.rollout_id}-a{self.attempt}" if self.attempt else self.rollout_id


class TaskId(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    taskset: str = Field(min_length=1)
    """Unique in a run; `<environment>:<taskset>` where several are blended."""
    task_id: str = Field(min_length=1)


def is_materialized_task_row(row: Mapping[str, object]) -> bool:
    """Whether a dataset row is an envelope with a task's identity and its input, valid or not."""
    return isinstance(row.get("task_id"), Mapping) and "task_input" in row


def materialize_task(row: Mapping[str, Any], *, taskset: str, task_index: int | None = None) -> dict[str, Any]:
    """A flat dataset row as an envelope: its identity, and as its input all that is the task's own.

    Args:
        task_index: the row's place, where neither an id nor `_ng_task_index` of its own says which task it is.
    """
    if is_materialized_task_row(row) or "task_input" in row or isinstance(row.get("task_id"), Mapping):
        raise ValueError("Expected a flat dataset row, not an already materialized task")
    named = next((row[key] for key in _NAMES if row.get(key) is not None), None)
    if named is None:
        named = row.get(TASK_INDEX_KEY_NAME, task_index)
        if isinstance(named, bool) or not isinstance(named, int) or named < 0:
            raise ValueError("A flat row without a task ID requires a non-negative task_index")
    own = {key: value for key, value in row.items() if key not in _ROUTING and not key.startswith("_ng_")}
    return {"task_id": TaskId(taskset=taskset, task_id=str(named)).model_dump(mode="json"), "task_input": own}


class MaterializedTask(_Closed, Generic[_Input]):
    task_id: TaskId
    task_input: _Input


class EpisodeFailure(_Closed):
    failure_reason: str = Field(max_length=2000)
    terminal: bool
    """No further attempt may be made."""
    failure_kind: str | None = None
    stage: FailureStage | None = None

    @field_validator("failure_kind")
    @classmethod
    def _known(cls, value: str | None) -> str | None:
        return validate_failure_kind(value)

    @model_serializer(mode="wrap")
    def _without_unknowns(self, handler: SerializerFunctionWrapHandler) -> Any:
        written = handler(self)
        for key in ("failure_kind", "stage"):
            if written.get(key) is None:
                written.pop(key, None)
        return written


class BaseEpisodeRequest(_Closed, Generic[_Input]):
    episode_id: EpisodeId
    task: MaterializedTask[_Input]


class BaseEpisodeResponse(_Closed, Generic[_Result]):
    episode_id: EpisodeId
    task_id: TaskId
    result: _Result | None = None
    failure: EpisodeFailure | None = None

    @model_validator(mode="after")
    def _one_of_them(self) -> BaseEpisodeResponse[_Result]:
        if (self.result is None) == (self.failure is None):
            raise ValueError("expected a result or a failure, and not both")
        return self


# ---- sessions that a caller opens under an id of its own


class MCPServerMetadata(BaseModel):
    """How an agent reaches an environment's tools over MCP within one rollout."""

    server_name: str
    url_path: str = "/mcp"
    transport: str = "http"
    headers: dict[str, str]


class ResourcesSeedSessionRequest(_Closed):
    """Opens a session; the same request again finds the same session."""

    resources_session_id: str = Field(min_length=1)
    episode_id: EpisodeId
    task_id: TaskId
    task_data: dict[str, JsonValue]


class ResourcesSeedSessionResponse(_Closed):
    resources_session_id: str
    resources_tools: MCPServerMetadata | None = None
    sandbox_access: SandboxAccess | None = None


class ResourcesVerifyRequest(_Closed, Generic[_Input]):
    episode_id: EpisodeId
    task_id: TaskId
    verification_input: _Input


class ResourcesCloseSessionRequest(_Closed):
    resources_session_id: str
    episode_id: EpisodeId


class ResourcesCloseSessionResponse(_Closed):
    resources_session_id: str
