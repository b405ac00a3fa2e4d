"""Equality, tool names and ids."""

from __future__ import annotations

import uuid
from array import array
from typing import Any

import pytest

from nemo_gym.exchange.ids import uuid7
from nemo_gym.exchange.parts import Origin, Text, ToolCall
from nemo_gym.exchange.tokens import packed
from nemo_gym.exchange.tools import Tool, Toolbox


def test_provenance_never_makes_two_values_differ() -> None:
    assert Text("a", origin=Origin("chat", {"x": 1})) == Text("a") == Text("a", origin=Origin("responses", {}))
    assert Text("a") != Text("b")


def test_uuid7_is_one_and_sorts_by_time() -> None:
    made = [uuid7() for _ in range(2000)]
    assert len(set(made)) == 2000
    assert {uuid.UUID(text).version for text in made} == {7}
    assert {uuid.UUID(text).variant for text in made} == {uuid.RFC_4122}
    assert [text[:13] for text in made] == sorted(text[:13] for text in made)


def test_a_namespaced_call_comes_back_as_declared() -> None:  # R6
    box = Toolbox([Tool("exec", namespace="functions", parameters={}), Tool("read", parameters={})])
    for spelling in ("exec", "functions.exec", "functions__exec"):
        bound = box.bind(ToolCall(spelling, "{}", call_id="1"))
        assert (bound.name, bound.namespace, bound.call_id) == ("exec", "functions", "1")
    assert box.bind(ToolCall("functions.read", "{}")).name == "read"  # P6
    assert box.bind(ToolCall("unknown", "{}")) == ToolCall("unknown", "{}")


def test_a_bare_name_that_two_namespaces_share_resolves_to_neither() -> None:
    box = Toolbox([Tool("run", namespace="a"), Tool("run", namespace="b")])
    assert box.bind(ToolCall("run", "{}")).namespace is None
    assert box.bind(ToolCall("b__run", "{}")).namespace == "b"


def test_custom_input_is_unwrapped() -> None:  # R7
    box = Toolbox([Tool("apply_patch", kind="custom")])
    assert box.bind(ToolCall("apply_patch", '{"input": "*** Begin"}')).arguments == "*** Begin"
    assert box.bind(ToolCall("apply_patch", '{"a": 1}')).arguments == '{"a": 1}'
    assert box.bind(ToolCall("apply_patch", "raw {")).arguments == "raw {"
    assert box.bind(ToolCall("apply_patch", '{"input": "x"}')).custom


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("i", [1, -(2**31), 2**31 - 1]),
        ("i", (True,)),
        ("i", []),
        ("i", [2**31]),
        ("i", [1.0]),
        ("i", [None]),
        ("f", [-0.1, -9999.0, 1, float("-inf")]),
        ("f", [-1e300]),
        ("f", [10**400]),
        ("f", [None]),
    ],
)
def test_packed_is_the_array_itself(kind: str, values: list[Any]) -> None:
    def outcome(make: Any) -> Any:
        try:
            return make(kind, values)
        except (TypeError, OverflowError) as error:
            return type(error), str(error)

    assert outcome(packed) == outcome(array)
