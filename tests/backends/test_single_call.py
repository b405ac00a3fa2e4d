"""`parallel_tool_calls: false` over an engine that ends where it is told to: one call, nothing forced, nothing cut."""

from __future__ import annotations

import os
from array import array
from pathlib import Path

import pytest
from msgspec.structs import replace

from nemo_gym.backends.single_call import Closing
from nemo_gym.backends.tokens import TokensBackend
from nemo_gym.engines.engine import EngineOutput, EnginePiece, EngineReply
from nemo_gym.exchange.call import Call, Prior
from nemo_gym.exchange.increments import fold
from nemo_gym.exchange.parts import Message, Reasoning, Text, ToolCall, ToolResult
from nemo_gym.exchange.reply import TokenTrace
from nemo_gym.exchange.request import ModelRequest, Sampling
from nemo_gym.exchange.tools import Tool

pytest.importorskip("tokenizers")
MODEL = Path(os.environ.get("NEMO_GYM_TEST_MODEL", Path(__file__).parents[2] / "models" / "tiny_policy"))
TOOL = Tool("get_weather", "", {"type": "object", "properties": {}})
ASK = ModelRequest(
    (Message("user", (Text("Weather in Oslo?"),)),), tools=(TOOL,), parallel_tool_calls=False, sampling=Sampling()
)


def written(city: str) -> str:
    return f'<tool_call>\n{{"name": "get_weather", "arguments": {{"city": "{city}"}}}}\n</tool_call>'


@pytest.fixture(scope="module")
def renderer():
    from nemo_gym.rendering.renderer import TemplateRenderer

    return TemplateRenderer(MODEL)


class Writing:
    """An engine whose model has this to say: it goes on where the prompt leaves off, and ends where it is told to."""

    takes_ids = True

    def __init__(self, renderer, *texts, context=4096):
        self.context = context
        self.asked = []
        self._renderer = renderer
        self._all = [renderer.encode(text + "<|im_end|>") for text in texts]
        self._start = None

    async def generate(self, request, on_piece=None, on_attempt=None):
        self._start = self._start or len(request.prompt_ids)
        self.asked.append(request)
        said = request.prompt_ids[self._start :]
        left = [whole[len(said) :] for whole in self._all if whole[: len(said)] == said][: request.sampling.n]
        return EngineReply(tuple(self._output(index, rest, request, on_piece) for index, rest in enumerate(left)))

    def _output(self, index, rest, request, on_piece):
        ends = {*request.ends, self._renderer.added_tokens["<|im_end|>"]}
        length = next(number for number, token in enumerate(rest, 1) if token in ends)
        most = request.sampling.max_tokens or length
        ids = rest[: min(length, most)]
        finish = "stop" if most >= length else "length"
        text = self._renderer.decode(ids[:-1] if finish == "stop" else ids)
        trace = TokenTrace(ids, array("f", [-0.5] * len(ids)), ((0, len(self.asked)),))
        if on_piece is not None:
            on_piece(EnginePiece(index, text, trace))
        return EngineOutput(index, trace, text, finish)


async def ask(renderer, *texts, request=ASK, relayed=False, prior=None, context=4096):
    engine = Writing(renderer, *texts, context=context)
    call = Call(request, relay=(lambda _: None) if relayed else None, prior=prior)
    reply = await TokensBackend(engine, renderer, "hermes", "qwen3", "tiny").generate(request, call)
    if relayed:
        assert fold(call.increments) == {choice.index: choice.parts for choice in reply.choices}  # V0
    return reply, engine


def calls(choice):
    return [part.arguments for part in choice.parts if isinstance(part, ToolCall)]


@pytest.mark.parametrize("relayed", [False, True])
async def test_a_generation_ends_with_its_first_call(renderer, relayed):  # A10
    first = "Well: " + written("Oslo")
    reply, engine = await ask(renderer, first + "\n" + written("Lima"), relayed=relayed)
    (choice,) = reply.choices
    assert calls(choice) == ['{"city": "Oslo"}']
    assert (choice.finish, choice.stop_sequence) == ("tool_calls", None)
    assert choice.tokens.ids == renderer.encode(first)
    assert reply.usage.completion == len(choice.tokens.ids) == len(choice.tokens.logprobs)
    (asked,) = engine.asked
    assert (asked.ends, asked.guide) == ((renderer.added_tokens["</tool_call>"],), None)


@pytest.mark.parametrize("relayed", [False, True])
async def test_a_marker_that_closes_no_call_ends_nothing(renderer, relayed):  # A10
    thought = "<think>After </tool_call> it ends.</think>"
    reply, engine = await ask(renderer, thought + written("a </tool_call> b") + written("Lima"), relayed=relayed)
    (choice,) = reply.choices
    assert choice.parts[0] == Reasoning("After </tool_call> it ends.")
    assert calls(choice) == ['{"city": "a </tool_call> b"}']
    assert choice.tokens.ids == renderer.encode(thought + written("a </tool_call> b"))
    assert len(engine.asked) == 3
    starts = [len(asked.prompt_ids) - len(reply.prompt_ids) for asked in engine.asked]
    assert choice.tokens.versions == tuple(zip(starts, (1, 2, 3), strict=True))
    assert all(
        asked.prompt_ids == (reply.prompt_ids + choice.tokens.ids)[: len(asked.prompt_ids)] for asked in engine.asked
    )


async def test_its_length_is_what_was_asked_for_in_all(renderer):
    text = "<think>After </tool_call> it ends.</think>" + written("Oslo")
    part = len(renderer.encode("<think>After </tool_call>"))
    for most in (part, part + 2):
        request = replace(ASK, sampling=Sampling(max_tokens=most))
        reply, _ = await ask(renderer, text, request=request)
        assert (len(reply.choices[0].tokens.ids), reply.choices[0].finish) == (most, "length")
    prompt = len(reply.prompt_ids)
    reply, engine = await ask(renderer, text, context=prompt + part)
    assert (reply.choices[0].finish, len(engine.asked)) == ("length", 1)


@pytest.mark.parametrize("relayed", [False, True])
async def test_each_choice_has_its_own_end(renderer, relayed):
    texts = ("<think></tool_call></think>" + written("Oslo") + written("Rome"), "Sunny.", written("Lima"))
    request = replace(ASK, sampling=Sampling(n=3))
    reply, engine = await ask(renderer, *texts, request=request, relayed=relayed)
    assert [choice.index for choice in reply.choices] == [0, 1, 2]
    assert [calls(choice) for choice in reply.choices] == [['{"city": "Oslo"}'], [], ['{"city": "Lima"}']]
    assert [choice.finish for choice in reply.choices] == ["tool_calls", "stop", "tool_calls"]
    assert [asked.sampling.n for asked in engine.asked] == [3, 1]


@pytest.mark.parametrize(
    "change", [{"parallel_tool_calls": True}, {"tools": ()}, {"tool_choice": "none"}, {"tool_choice": "required"}]
)
async def test_others_are_not_ended(renderer, change):
    _, engine = await ask(renderer, "Sunny.", request=replace(ASK, **change))
    assert engine.asked[0].ends == ()


async def test_the_next_turn_goes_on_from_it(renderer):
    reply, _ = await ask(renderer, written("Oslo") + written("Lima"))
    tokens = reply.prompt_ids + reply.choices[0].tokens.ids
    called = Message("assistant", (ToolCall("get_weather", '{"city":"Oslo"}', "c"),))
    request = replace(ASK, messages=(*ASK.messages, called, Message("tool", (ToolResult("c", (Text("7"),)),))))
    second, _ = await ask(renderer, "It is 7.", request=request, prior=Prior("call", tokens, 2))
    end = renderer.added_tokens["<|im_end|>"]
    assert second.prompt_ids[: len(tokens) + 1] == tokens + array("i", [end])


def test_formats_that_close_each_call_by_a_token():
    added = {"</tool_call>": 7, "<｜tool▁call▁end｜>": 8}  # noqa: RUF001
    for name in ("hermes", "qwen3", "qwen3_coder", "glm45", "glm47"):
        assert Closing.of(name, added) == Closing("</tool_call>", 7)
    for name in ("deepseek_v31", "minimax_m2", "mistral", "harmony", None):
        assert Closing.of(name, added) is None
    assert Closing.of("hermes", {}) is None
