"""vLLM's arguments: unknown names and values that do not fit are told by name."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import pytest
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass as pydantic_dataclass

from nemo_gym.engines.arguments import check_arguments, checked_values, written_arguments
from nemo_gym.engines.deployment import Deployment

ARGUMENTS = ("max_model_len", "dtype")


def test_wrong_arguments_are_named():
    check_arguments({"max_model_len": 1}, ARGUMENTS)
    with pytest.raises(ValueError, match=r"engine_args\.max_model_length: .* no such argument; max_model_len is one"):
        check_arguments({"max_model_length": 1, "dtype": "x"}, ARGUMENTS)
    with pytest.raises(ValueError, match=r"engine_args\.zzz: vLLM has no such argument$"):
        check_arguments({"zzz": 1}, ARGUMENTS)


async def test_a_wrong_argument_is_told_before_anything_is_started():
    pytest.importorskip("vllm")
    names = written_arguments()
    # Of EngineArgs, of AsyncEngineArgs, and what is told without being asked.
    assert {"model", "tensor_parallel_size", "enable_lora", "worker_extension_cls", "logprobs_mode"} <= set(names)
    deployment = Deployment({"model": "/m", "max_model_length": 1})
    with pytest.raises(ValueError, match=r"engine_args\.max_model_length: .*; max_model_len is one"):
        await deployment.start()
    assert not deployment._connected


@pydantic_dataclass(config=ConfigDict(extra="forbid"))  # as vLLM's configurations are
class Nested:
    level: int = 0


@dataclasses.dataclass
class Declared:
    model: str = "m"
    length: int = None  # type: ignore[assignment]  # as vLLM writes what it chooses itself
    eager: bool = False
    kind: Literal["auto", "half"] = "auto"
    many: dict[str, int | dict[str, int]] = dataclasses.field(default_factory=dict)
    nested: Nested = dataclasses.field(default_factory=Nested)
    unread: "Nowhere | None" = None  # type: ignore[name-defined]  # noqa: F821, UP037


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"length": "x"}, r"engine_args\.length: input should be a valid integer, .*found 'x'$"),
        ({"length": 1.5}, r"engine_args\.length: .*fractional part, found 1\.5$"),
        ({"length": [1]}, r"engine_args\.length: .*, found \[1\]$"),
        (
            {"kind": "x", "eager": "perhaps"},
            r"eager: .*, found 'perhaps'; engine_args\.kind: .*'auto' or 'half', found",
        ),
        ({"many": {"image": "x"}}, r"engine_args\.many\.image: input should be a valid integer, .*found 'x'$"),
        ({"nested": {"levl": 3}}, r"engine_args\.nested\.levl: unexpected keyword argument, found 3$"),
        ({"nested": 3}, r"engine_args\.nested: .*, found 3$"),
        ({"model": None}, r"engine_args\.model: input should be a valid string, found None$"),
    ],
)
def test_a_value_that_does_not_fit_is_named(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        checked_values(Declared, arguments)


def test_what_fits_goes_on_as_it_was_meant() -> None:
    given = {"model": "/m", "length": "16", "eager": "yes", "nested": {"level": "3"}, "unread": 5}
    assert checked_values(Declared, given) == {**given, "length": 16, "eager": True}
    assert checked_values(Declared, {"length": None}) == {"length": None}


def test_every_argument_of_vllm_has_a_type_that_can_be_read() -> None:
    pytest.importorskip("vllm")
    from vllm.engine.arg_utils import AsyncEngineArgs

    unread = []
    for field in dataclasses.fields(AsyncEngineArgs):
        try:
            checked_values(AsyncEngineArgs, {field.name: object()})
        except ValueError as error:
            assert str(error).startswith(f"engine_args.{field.name}")  # noqa: PT017
        else:
            unread.append(field.name)
    assert len(unread) < 12, unread  # those that take anything, and what only a type checker can import
