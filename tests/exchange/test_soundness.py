"""A reply that is not what its types say is told from one that is."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from nemo_gym.exchange.parts import Reasoning, Refusal, Text, ToolCall
from nemo_gym.exchange.reply import Choice, ModelReply, TokenTrace, Usage
from nemo_gym.exchange.soundness import unsound


def reply(*parts: Any, tokens: TokenTrace | None = None, index: Any = 0, **fields: Any) -> ModelReply:
    whole: dict[str, Any] = {"id": "x", "model": "m", "created": 1, "choices": (Choice(index, parts, "stop", tokens),)}
    return ModelReply(**whole | fields)


def test_sound_replies() -> None:
    tokens = TokenTrace(array("i", [0, 5]), array("f", [0.0, -3.0]))
    assert unsound(reply(Text("a"), Reasoning("b", payload="p"), ToolCall("f", "{}", "c"), tokens=tokens)) is None
    assert unsound(reply(choices=())) is None
    assert unsound(reply(choices=(Choice(1, (), "stop"), Choice(0, (), "stop")))) is None
    assert unsound(reply(usage=Usage(1, 2, None, 0), prompt_ids=array("i"))) is None


@pytest.mark.parametrize(
    "wrong",
    [
        reply(id=5),
        reply(model=None),
        reply(created=10**30),
        reply(created=True),
        reply(usage=Usage(prompt="3")),  # type: ignore[arg-type]
        reply(usage=Usage(completion=2**40)),
        reply(usage=Usage(cached=-1)),
        reply(index="0"),
        reply(index=-1),
        reply(index=1),
        reply(choices=(Choice(0, (), "stop"), Choice(2, (), "stop"))),
        reply(choices=(Choice(0, (), "stop"), Choice(0, (), "stop"))),
        reply(Text(5)),  # type: ignore[arg-type]
        reply(Refusal(None)),  # type: ignore[arg-type]
        reply(Reasoning("a", payload=7)),  # type: ignore[arg-type]
        reply(ToolCall(7, "{}")),  # type: ignore[arg-type]
        reply(ToolCall("f", "{}", call_id=5)),  # type: ignore[arg-type]
        reply(prompt_ids=array("i", [1, -2])),
        reply(tokens=TokenTrace(array("i", [-5]))),
        reply(tokens=TokenTrace(array("i", [5]), array("f", [7.0]))),
    ],
)
def test_unsound_replies(wrong: ModelReply) -> None:
    assert unsound(wrong)
