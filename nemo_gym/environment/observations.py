"""What was seen beside a rollout's response: the agent's conversations and tool calls, and how its sandbox fared.

Whoever saw a thing says it, and says as a gap what could not be seen; nothing here is guessed. What is not known is
None. An object is checked when it is changed too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from msgspec import Struct
from pydantic import BaseModel, ConfigDict, Field, model_validator

from ..config.types import ModelServerRef
from ..dialects.responses.objects import NeMoGymResponse, NeMoGymResponseInputItem

_Count = Annotated[int, Field(ge=0)]
_Measure = Annotated[float, Field(ge=0)]


class ObservationModel(BaseModel):
    model_config = ConfigDict(extra="forbid", validate_assignment=True)


class ObservationGap(ObservationModel):
    """Something that could not be seen, in one groupable word."""

    code: str
    invocation_id: str | None = None
    detail: str | None = None


# ---- model calls


class ModelCallRef(ObservationModel):
    """By which a model call can be found again: its own id, or the model server and the reply's id."""

    model_call_id: str | None = None
    model_ref: ModelServerRef | None = None
    response_id: str | None = None

    @model_validator(mode="after")
    def _findable(self) -> ModelCallRef:
        if not self.model_call_id and (self.model_ref is None or not self.response_id):
            raise ValueError("expected model_call_id, or both model_ref and response_id")
        return self


class TrajectoryTokenStats(ObservationModel):
    prompt_tokens: _Count | None = None
    completion_tokens: _Count | None = None
    reasoning_tokens: _Count | None = None
    total_tokens: _Count | None = None
    cached_tokens: _Count | None = None


class TrajectoryResponseMetadata(ObservationModel):
    response_id: str | None = None
    model_ref: ModelServerRef | None = None
    model: str | None = None
    dialect: str | None = None
    status_code: int | None = None
    response_status: str | None = None
    finish_reason: str | None = None
    upstream_attempted: bool | None = None
    response_source: Literal["upstream", "local"] | None = None
    upstream_status_code: int | None = None
    local_response_reason: str | None = None
    error_category: str | None = None
    latency_ttft_ms: _Measure | None = None


class TrajectoryModelCall(ObservationModel):
    model_call_id: str | None = None
    started_at: float | None = None
    completed_at: float | None = None
    duration_ms: _Measure | None = None
    request: Any | None = None
    response: Any | None = None
    response_metadata: TrajectoryResponseMetadata = Field(default_factory=TrajectoryResponseMetadata)
    token_stats: TrajectoryTokenStats = Field(default_factory=TrajectoryTokenStats)


# ---- the agent's conversations and tools


class AgentInvocation(ObservationModel):
    """One conversation of the agent or of a sub-agent."""

    kind: Literal["agent_invocation"] = "agent_invocation"
    invocation_id: str
    parent_invocation_id: str | None = None
    spawned_by_tool_call_id: str | None = None
    status: Literal["completed", "failed", "incomplete", "unknown"] = "unknown"
    duration_ms: _Measure | None = None
    error_type: str | None = None
    model_calls: list[ModelCallRef] = Field(default_factory=list)
    conversation: list[NeMoGymResponseInputItem] = Field(default_factory=list)


class ToolCallObservation(ObservationModel):
    """One tool call, timed where the agent made it."""

    kind: Literal["tool_call"] = "tool_call"
    invocation_id: str
    tool_call_id: str
    sandbox_id: str | None = None
    """In which it ran; several calls may share one."""
    tool_name: str | None = None
    started_at: float | None = None
    completed_at: float | None = None
    duration_ms: _Measure | None = None
    timing_source: Literal["executor", "artifact", "harness"] | None = None
    status: Literal["completed", "failed", "timeout", "cancelled", "incomplete", "unknown"] = "unknown"
    error_type: str | None = None

    @model_validator(mode="after")
    def _in_order(self) -> ToolCallObservation:
        if self.started_at is not None and self.completed_at is not None and self.completed_at < self.started_at:
            raise ValueError("completed_at must not be before started_at")
        return self


class TrajectoryToolCall(ToolCallObservation):
    output: Any | None = None
    """As the model saw it."""


class ContextCompactionObservation(ObservationModel):
    """The agent put a shorter conversation in the place of a long one. Its counts may be of two kinds."""

    kind: Literal["context_compaction"] = "context_compaction"
    invocation_id: str
    observed_at: float | None = None
    trigger: str | None = None
    tokens_before: _Count | None = None
    tokens_after: _Count | None = None
    outcome: Literal["completed", "failed", "aborted", "unknown"] = "unknown"
    summary: str | None = None
    first_kept_item_id: str | None = None
    before_model_call: ModelCallRef | None = None
    model_calls: list[ModelCallRef] = Field(default_factory=list)
    """Those by which it was made."""
    after_model_call: ModelCallRef | None = None


class TrajectoryTurn(ObservationModel):
    invocation_id: str
    task_id: str
    rollout_id: str
    turn_no: int = Field(ge=1)
    """Within its conversation."""
    timestamp: float
    question: Any | None = None
    answer: Any | None = None
    reasoning_content: Any | None = None
    resolved: bool | None = None
    step_count: int = Field(ge=0)
    """Steps of its conversation so far."""
    model_calls: list[ModelCallRef] = Field(default_factory=list)


# ---- sandboxes


class SandboxObservation(ObservationModel):
    """Figures are measured, never those that were configured."""

    kind: Literal["sandbox"] = "sandbox"
    role: Literal["agent", "verifier", "environment"]
    provider: str | None = None
    sandbox_id: str | None = None
    outcome: Literal["completed", "failed", "timeout", "oom", "sandbox_error", "cancelled", "unknown"] = "unknown"
    exit_code: int | None = None
    wall_time_s: _Measure | None = None
    cpu_time_s: _Measure | None = None
    """Of its whole life."""
    peak_memory_mib: _Measure | None = None
    resource_usage_source: str | None = None
    error_type: str | None = None


# ---- all of a rollout

AgentObservationRecord = Annotated[
    AgentInvocation | ToolCallObservation | ContextCompactionObservation | SandboxObservation,
    Field(discriminator="kind"),
]


class AgentObservationBundle(ObservationModel):
    """What one agent server says of one rollout; the order of its records means nothing."""

    source: str
    records: list[AgentObservationRecord] = Field(default_factory=list)
    gaps: list[ObservationGap] = Field(default_factory=list)

    @model_validator(mode="after")
    def _a_forest(self) -> AgentObservationBundle:
        invocations = [record for record in self.records if isinstance(record, AgentInvocation)]
        _each_once("invocation_id", (record.invocation_id for record in invocations))
        _without_cycle({record.invocation_id: record.parent_invocation_id for record in invocations})
        return self


class TrajectoryRecord(ObservationModel):
    schema_version: Literal["1.0"] = "1.0"
    task_id: str
    rollout_id: str
    invocations: list[AgentInvocation] = Field(default_factory=list)
    turns: list[TrajectoryTurn] = Field(default_factory=list)
    model_calls: list[TrajectoryModelCall] = Field(default_factory=list)
    tool_calls: list[TrajectoryToolCall] = Field(default_factory=list)
    gaps: list[ObservationGap] = Field(default_factory=list)

    @model_validator(mode="after")
    def _of_one_rollout(self) -> TrajectoryRecord:
        _each_once("invocation_id", (invocation.invocation_id for invocation in self.invocations))
        _each_once("model_call_id", (call.model_call_id for call in self.model_calls if call.model_call_id))
        _each_once("turn number", ((turn.invocation_id, turn.turn_no) for turn in self.turns))
        for turn in self.turns:
            if (turn.task_id, turn.rollout_id) != (self.task_id, self.rollout_id):
                raise ValueError(f"turn {turn.turn_no} is of another task or rollout")
        return self


class AgentEpisode(Struct, frozen=True):
    """An agent's response, and what was seen while it was made."""

    response: NeMoGymResponse
    observations: AgentObservationBundle


def _each_once(what: str, values: Iterable[Any]) -> None:
    seen = set()
    for value in values:
        if value in seen:
            raise ValueError(f"{what} must be unique, {value!r} is there twice")
        seen.add(value)


def _without_cycle(parents: Mapping[str, str | None]) -> None:
    """A parent that nobody saw is well; one that is its own ancestor is not."""
    sound: set[str] = set()
    for start in parents:
        way: list[str] = []
        at: str | None = start
        while at is not None and at in parents and at not in sound:
            if at in way:
                raise ValueError(f"parent_invocation_id must not form a cycle, that of {at!r} does")
            way.append(at)
            at = parents[at]
        sound.update(way)
