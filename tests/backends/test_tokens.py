"""A backend of tokens over a scripted engine and the real renderer: what it asks, and what it makes of the answer."""

import os
from array import array
from pathlib import Path

import pytest

from nemo_gym.backends.tokens import TokensBackend
from nemo_gym.engines.engine import EngineOutput, EngineReply
from nemo_gym.exchange.call import Attempt, Call, Prior
from nemo_gym.exchange.parts import Message, Reasoning, Text, ToolCall
from nemo_gym.exchange.reply import TokenTrace
from nemo_gym.exchange.request import ModelRequest, Sampling
from nemo_gym.exchange.tools import Tool

pytest.importorskip("tokenizers")
MODEL = Path(os.environ.get("NEMO_GYM_TEST_MODEL", Path(__file__).parents[2] / "models" / "tiny_policy"))
TOOL = Tool("get_weather", "", {"type": "object", "properties": {}})
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
ASK = ModelRequest((Message("user", (Text("Weather in Oslo?"),)),), tools=(TOOL,), sampling=Sampling(n=2, max_tokens=9))


@pytest.fixture(scope="module")
def renderer():
    from nemo_gym.rendering.renderer import TemplateRenderer

    return TemplateRenderer(MODEL)


class ScriptedEngine:
    context, takes_ids = 64, True

    def __init__(self, renderer, *texts, finish="stop"):
        self.renderer, self.texts, self.finish, self.asked = renderer, texts, finish, []

    async def generate(self, request, on_piece=None, on_attempt=None):
        self.asked.append(request)
        on_attempt(Attempt("vllm-0", 1.0, 2.0))
        outputs = []
        for index, text in enumerate(self.texts):
            ids = self.renderer.encode(text + "<|im_end|>")
            tokens = TokenTrace(ids, array("f", [-0.5] * len(ids)), ((0, 3),))
            outputs.append(EngineOutput(index, tokens, text, self.finish))
        return EngineReply(tuple(outputs), cached=4)


async def ask(renderer, *texts, request=ASK, prior=None, tool_parser="hermes", history="exact", finish="stop"):
    engine = ScriptedEngine(renderer, *texts, finish=finish)
    call = Call(request, rollout_id="r1", prior=prior)
    backend = TokensBackend(engine, renderer, tool_parser, "qwen3", "tiny", history)
    return await backend.generate(request, call), call, engine


async def test_calls_reasoning_and_text_are_parts_in_order(renderer):
    reply, call, engine = await ask(renderer, "<think>Hm.</think>Well: " + CALL, "Sunny.")
    first, second = reply.choices
    assert first.parts[:2] == (Reasoning("Hm."), Text("Well: "))
    assert (first.parts[2].name, first.parts[2].arguments) == ("get_weather", '{"city": "Oslo"}')
    assert first.parts[2].call_id.startswith("call_")
    assert (first.finish, second.finish) == ("tool_calls", "stop")
    assert second.parts == (Text("Sunny."),)
    assert first.tokens.ids == renderer.encode("<think>Hm.</think>Well: " + CALL + "<|im_end|>")
    assert first.tokens.versions == ((0, 3),)
    assert reply.model == "tiny"
    assert reply.prompt_ids == engine.asked[0].prompt_ids == renderer.encode(renderer.text(ASK))
    assert engine.asked[0].sampling == ASK.sampling
    assert engine.asked[0].affinity == "r1"
    assert (call.history, call.prefix_break, call.logprobs_mode) == ("template", None, "processed")
    assert call.attempts == [Attempt("vllm-0", 1.0, 2.0)]


async def test_usage_counts_tokens(renderer):  # R29
    reply, _, _ = await ask(renderer, "<think>Hm.</think>" + CALL, "Sunny.")
    assert reply.usage.prompt == len(reply.prompt_ids)
    assert reply.usage.completion == sum(len(choice.tokens.ids) for choice in reply.choices)
    assert reply.usage.reasoning == len(renderer.encode("Hm."))
    assert reply.usage.cached == 4


async def test_call_ids_differ(renderer):
    reply, _, _ = await ask(renderer, CALL + "\n" + CALL, CALL)
    ids = [part.call_id for choice in reply.choices for part in choice.parts]
    assert len(ids) == len(set(ids)) == 3


@pytest.mark.parametrize("change", [{"tool_choice": "none"}, {"tools": ()}])
async def test_without_a_tool_to_call_markup_stays_in_the_text(renderer, change):  # A10
    from msgspec.structs import replace

    reply, _, _ = await ask(renderer, "Hm. " + CALL, request=replace(ASK, **change))
    assert reply.choices[0].parts == (Text("Hm. " + CALL),)
    assert reply.choices[0].finish == "stop"


async def test_a_call_cut_by_length_stays_text(renderer):
    reply, _, _ = await ask(renderer, CALL[:-20], finish="length")
    assert reply.choices[0].parts == (Text(CALL[:-20]),)
    assert reply.choices[0].finish == "length"


async def test_a_second_turn_begins_with_the_first_one_s_tokens(renderer):
    first, call, _ = await ask(renderer, "<think>Hm.</think>" + CALL)
    tokens = first.prompt_ids + first.choices[0].tokens.ids
    called = Message("assistant", (ToolCall("get_weather", '{"city":"Oslo"}', "c"),))
    messages = (*ASK.messages, called, Message("user", (Text("And?"),)))
    request = ModelRequest(messages, tools=ASK.tools)
    second, later, _ = await ask(renderer, "Sunny.", request=request, prior=Prior(call.id, tokens, 2))
    assert second.prompt_ids[: len(tokens)] == tokens
    assert (later.history, later.prefix_break) == ("exact", None)
    third, anew, _ = await ask(renderer, "Sunny.", request=request, prior=Prior(call.id, tokens, 2), history="template")
    assert (anew.history, anew.prefix_break[1]) == ("template", "reasoning_dropped")
    assert third.prompt_ids == renderer.encode(renderer.text(request))


async def test_tokens_are_counted_as_they_are_sent(renderer):
    backend = TokensBackend(ScriptedEngine(renderer), renderer, None, None, "tiny")
    assert await backend.count(ASK) == len(renderer.encode(renderer.text(ASK)))


def test_an_unknown_parser_is_refused_at_once(renderer):
    with pytest.raises(ValueError, match="reasoning: unknown format 'qwen9'"):
        TokensBackend(ScriptedEngine(renderer), renderer, "hermes", "qwen9", "tiny")


async def test_markers_are_known_by_their_ids(renderer):
    """The characters of a marker that the model spelled out are text; the special token is a call."""

    class Spelled(ScriptedEngine):
        async def generate(self, request, on_piece=None, on_attempt=None):
            ids = array("i", [n for letter in CALL for n in self.renderer.encode(letter)])
            tokens = TokenTrace(ids, array("f", [-0.5] * len(ids)), ((0, 3),))
            return EngineReply((EngineOutput(0, tokens, CALL, "stop"),))

    backend = TokensBackend(Spelled(renderer), renderer, "hermes", "qwen3", "tiny")
    reply = await backend.generate(ASK, Call(ASK))
    assert reply.choices[0].parts == (Text(CALL),)
    assert reply.choices[0].finish == "stop"
    called, _, _ = await ask(renderer, CALL)
    assert isinstance(called.choices[0].parts[0], ToolCall)
