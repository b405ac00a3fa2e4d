"""What is said beside a rollout holds together: names once, parents without a cycle, times in order."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from nemo_gym.config_types import ModelServerRef
from nemo_gym.rollout_observability import (
    AgentInvocation,
    AgentObservationBundle,
    ContextCompactionObservation,
    ModelCallRef,
    SandboxObservation,
    ToolCallObservation,
    TrajectoryModelCall,
    TrajectoryRecord,
    TrajectoryTurn,
)

MODEL = ModelServerRef(type="responses_api_models", name="policy_model")


def invocation(name: str, parent: str | None = None) -> AgentInvocation:
    return AgentInvocation(invocation_id=name, parent_invocation_id=parent)


def turn(number: int, **over: Any) -> TrajectoryTurn:
    told = {"invocation_id": "root", "task_id": "t", "rollout_id": "r", "turn_no": number, "timestamp": 1.0}
    return TrajectoryTurn(**{**told, "step_count": 0, **over})


def test_a_call_is_named_so_that_it_can_be_found() -> None:
    assert ModelCallRef(model_call_id="m1").model_ref is None
    assert ModelCallRef(model_ref=MODEL, response_id="resp_1").response_id == "resp_1"
    for half in ({}, {"model_ref": MODEL}, {"response_id": "resp_1"}):
        with pytest.raises(ValidationError, match="model_call_id"):
            ModelCallRef(**half)


def test_a_bundle_is_read_by_kind_and_comes_back_whole() -> None:
    records = [
        invocation("root"),
        invocation("child", "root"),
        invocation("stray", "never seen"),
        ToolCallObservation(invocation_id="root", tool_call_id="c1", started_at=1.0, completed_at=2.0),
        ContextCompactionObservation(invocation_id="root", tokens_before=9, tokens_after=3),
        SandboxObservation(role="agent"),
    ]
    bundle = AgentObservationBundle(source="agent", records=records)
    read = AgentObservationBundle.model_validate_json(bundle.model_dump_json())
    assert read == bundle
    assert [type(record) for record in read.records] == [type(record) for record in records]


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([invocation("a"), invocation("a")], "unique"),
        ([invocation("a", "a")], "cycle"),
        ([invocation("a", "b"), invocation("b", "c"), invocation("c", "a")], "cycle"),
    ],
)
def test_a_bundle_that_is_no_forest(records: list[AgentInvocation], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        AgentObservationBundle(source="agent", records=records)


def test_times_are_in_order_also_when_they_are_changed() -> None:
    call = ToolCallObservation(invocation_id="root", tool_call_id="c1", started_at=2.0)
    with pytest.raises(ValidationError, match="before started_at"):
        call.completed_at = 1.0


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"turns": [turn(1), turn(1)]}, "unique"),
        ({"turns": [turn(1, rollout_id="other")]}, "another task or rollout"),
        ({"invocations": [invocation("a"), invocation("a")]}, "unique"),
        ({"model_calls": [TrajectoryModelCall(model_call_id="m")] * 2}, "unique"),
    ],
)
def test_a_trajectory_is_of_one_rollout(parts: dict[str, Any], message: str) -> None:
    assert len(TrajectoryRecord(task_id="t", rollout_id="r", turns=[turn(1), turn(2)]).turns) == 2
    with pytest.raises(ValidationError, match=message):
        TrajectoryRecord(task_id="t", rollout_id="r", **parts)
