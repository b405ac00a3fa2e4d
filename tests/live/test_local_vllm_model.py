"""A real vLLM in real Ray actors on the embedded model: tokens, log-probs, tool calls, exact turns, cancelled calls."""

from __future__ import annotations

import asyncio
import json
from array import array

import pytest
import pytest_asyncio
from msgspec.structs import replace

from nemo_gym.engines.engine import EngineRequest
from nemo_gym.exchange.call import Call, Prior
from nemo_gym.exchange.errors import ModelError
from nemo_gym.exchange.parts import Message, Text, ToolCall, ToolResult
from nemo_gym.exchange.request import ModelRequest, Sampling
from nemo_gym.exchange.tools import Tool
from tests.live.two_replicas import MODEL

pytestmark = [pytest.mark.live, pytest.mark.ci, pytest.mark.asyncio(loop_scope="session")]

TOOLS = (
    Tool(
        "get_weather",
        "Get the current weather for a city.",
        {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "The city name."}},
            "required": ["city"],
        },
    ),
    Tool(
        "calculator",
        "Add two integers.",
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    ),
)
CITIES = ["Paris", "Tokyo", "Berlin", "Oslo", "Seoul", "Lima", "Dublin", "Madrid"]


def ask(city: str, **sampling) -> ModelRequest:
    text = f"What is the weather in {city}?"
    sampling = {"temperature": 1.0, "max_tokens": 80} | sampling
    return ModelRequest((Message("user", (Text(text),)),), tools=TOOLS, sampling=Sampling(**sampling))


@pytest.fixture
def model(two_replicas):
    return two_replicas.model


async def turns(model, city, number=0, **sampling):
    """Two turns over a tool: (reply, call) of each."""
    first = ask(city, **sampling)
    call = Call(first, rollout_id=f"r-{city}-{number}")
    reply = await model.generate(first, call)
    (choice,) = reply.choices
    parts = tuple(part for part in choice.parts if isinstance(part, ToolCall))
    # What a client sends back: the calls, their arguments printed anew, nothing else of the turn.
    sent = tuple(replace(part, arguments=_reprinted(part.arguments)) for part in parts)
    results = tuple(
        ToolResult(part.call_id, (Text('{"city": "' + city + '", "temperature": 7, "condition": "rainy"}'),))
        for part in parts
    ) or (Text("Go on."),)
    answer = Message("assistant", sent or choice.parts)
    later = Message("tool" if parts else "user", results)
    second = replace(first, messages=(*first.messages, answer, later))
    prior = Prior(call.id, reply.prompt_ids + choice.tokens.ids, 2)
    again = Call(second, rollout_id=call.rollout_id, prior=prior)
    return (reply, call), (await model.generate(second, again), again)


def _reprinted(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments), separators=(",", ":"))
    except ValueError:
        return arguments


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def played(two_replicas):
    return await asyncio.gather(*(turns(two_replicas.model, city, n) for city in CITIES for n in range(4)))


async def test_it_can_what_a_trainer_needs(model):
    asked = await model.probe()
    assert (asked.token_ids, asked.logprobs, asked.context) == (True, True, 2048)


async def test_a_tool_is_called_with_ids_and_log_probs(model):
    request = ask("Paris", temperature=0.0)
    call = Call(request, rollout_id="greedy")
    reply = await model.generate(request, call)
    (choice,) = reply.choices
    assert [(part.name, json.loads(part.arguments)) for part in choice.parts] == [("get_weather", {"city": "Paris"})]
    assert (choice.finish, reply.model) == ("tool_calls", "tiny-policy")
    assert isinstance(choice.tokens.ids, array)
    assert choice.tokens.ids.typecode == "i"
    assert choice.tokens.logprobs.typecode == "f"
    assert len(choice.tokens.ids) == len(choice.tokens.logprobs) == reply.usage.completion
    assert choice.tokens.versions == ((0, 0),)
    assert (reply.usage.prompt, call.logprobs_mode) == (len(reply.prompt_ids), "processed")
    assert [attempt.error for attempt in call.attempts] == [None]


@pytest.mark.parametrize("relayed", [False, True])
async def test_a_generation_ends_with_its_one_call(model, relayed):  # A10
    many = ask("Paris", temperature=0.0, max_tokens=120, logit_bias={0: -100.0, 2: -100.0})
    one = replace(many, parallel_tool_calls=False)
    whole, reply = [
        await model.generate(asked, Call(asked, relay=(lambda _: None) if relayed else None)) for asked in (many, one)
    ]
    (choice,), (longer,) = reply.choices, whole.choices
    assert [(part.name, json.loads(part.arguments)) for part in choice.parts] == [("get_weather", {"city": "Paris"})]
    assert choice.finish == "tool_calls"
    length = len(choice.tokens.ids)
    assert length < len(longer.tokens.ids) == 120
    assert choice.tokens.ids == longer.tokens.ids[:length]
    assert list(choice.tokens.logprobs) == pytest.approx(list(longer.tokens.logprobs[:length]), abs=0.001)


async def test_every_second_turn_begins_with_the_first_one_s_tokens(played):
    for (first, _), (second, call) in played:
        tokens = first.prompt_ids + first.choices[0].tokens.ids
        assert second.prompt_ids[: len(tokens)] == tokens
        assert (call.history, call.prefix_break) == ("exact", None)
        assert second.usage.cached is not None


async def test_most_answers_tell_the_tool_s_result(played):
    told = ["rainy" in "".join(p.text for p in s.choices[0].parts if isinstance(p, Text)) for _, (s, _) in played]
    assert sum(told) > len(told) // 2


async def test_log_probs_are_those_that_transformers_computes(model, played):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")

    # Without its tools the model babbles: those are the tokens that it was not sure of.
    babble = [replace(ask(city, max_tokens=64), tools=()) for city in CITIES]
    replies = await asyncio.gather(*(model.generate(request, Call(request)) for request in babble))
    replies += [reply for pair in played for reply, _ in pair]
    policy = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    ours, theirs, shifted = [], [], []
    for reply in replies:
        trace = reply.choices[0].tokens
        ids = torch.tensor([list(reply.prompt_ids + trace.ids)])
        start = len(reply.prompt_ids)
        with torch.no_grad():
            logits = policy(ids).logits[0, start - 1 : -1]
        ours.append(torch.log_softmax(logits, -1).gather(1, ids[0, start:, None])[:, 0])
        theirs.append(torch.tensor(trace.logprobs))
        shifted.append(theirs[-1].roll(1))
    mine = torch.cat(ours)
    difference, wrong = ((mine - torch.cat(other)).abs() for other in (theirs, shifted))
    uncertain = int((mine < -0.1).sum())
    print(f"\n{len(mine)} tokens, {uncertain} uncertain: largest difference {float(difference.max()):.2g}")
    assert uncertain > 100
    assert bool((difference < 0.005).all())
    assert not bool((wrong < 0.005).all())


async def test_choices_stop_strings_and_alternatives(model):
    request = replace(ask("Oslo", n=3, logprobs=2, max_tokens=4), tools=())
    reply = await model.generate(request, Call(request))
    assert [choice.index for choice in reply.choices] == [0, 1, 2]
    for choice in reply.choices:
        assert len(choice.tokens.texts) == len(choice.tokens.top) == len(choice.tokens.ids)
        assert all(len(top) <= 2 for top in choice.tokens.top)
    stopped = ask("Oslo", temperature=0.0, stop=("get_weather",))
    (choice,) = (await model.generate(stopped, Call(stopped))).choices
    assert (choice.finish, choice.stop_sequence) == ("stop_sequence", "get_weather")
    assert "get_weather" not in "".join(part.text for part in choice.parts)


async def test_a_stream_is_the_same_reply_in_pieces(model):  # A7
    greedy = Sampling(temperature=0.0, max_tokens=120, logit_bias={0: -100.0, 2: -100.0}, logprobs=1)
    asked = EngineRequest(array("i", [1, 5, 9, 40]), greedy)
    engine = model._deployment.engine
    whole, pieces = await engine.generate(asked), []
    streamed = await engine.generate(asked, pieces.append)
    (output,), (other,) = whole.outputs, streamed.outputs
    assert (other.text, other.finish, other.tokens.ids) == (output.text, "length", output.tokens.ids)
    assert other.tokens.versions == output.tokens.versions == ((0, 0),)
    assert other.tokens.texts == output.tokens.texts
    assert max(abs(a - b) for a, b in zip(other.tokens.logprobs, output.tokens.logprobs, strict=True)) < 0.001
    assert len(pieces) > 1
    assert "".join(piece.text for piece in pieces) == output.text
    assert [token for piece in pieces for token in piece.tokens.ids] == list(output.tokens.ids)


async def test_output_can_be_guided(model):  # R13
    schema = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Lima"]}}, "required": ["city"]}
    request = replace(ask("Oslo"), tools=(), output_schema=schema)
    reply = await model.generate(request, Call(request))
    assert json.loads(reply.choices[0].parts[0].text)["city"] in ("Oslo", "Lima")


async def test_mistakes_are_the_client_s(model):
    bad = ask("Oslo", temperature=-1.0)
    with pytest.raises(ModelError) as refused:
        await model.generate(bad, Call(bad))
    assert (refused.value.status, refused.value.kind) == (400, "invalid")
    assert "temperature" in refused.value.message
    long = ModelRequest((Message("user", (Text("word " * 4000),)),))
    with pytest.raises(ModelError) as refused:  # A12
        await model.generate(long, Call(long))
    assert refused.value.code == "context_length_exceeded"


async def test_cancelling_ends_the_generation(model):  # A9
    endless = ask("Oslo", max_tokens=1900)
    endless = replace(endless, sampling=replace(endless.sampling, logit_bias={0: -100.0, 2: -100.0}))
    tasks = [asyncio.create_task(model.generate(endless, Call(endless))) for _ in range(8)]
    await asyncio.sleep(0.5)
    assert not any(task.done() for task in tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for _ in range(300):
        if not any(await asyncio.gather(*(one.ask("unfinished") for one in model._deployment.engine.replicas))):
            return
        await asyncio.sleep(0.1)
    pytest.fail("the engines still generate for calls that were cancelled")
