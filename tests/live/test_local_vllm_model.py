"""A real vLLM in a real Ray actor on the embedded model: tokens, log-probs, tool calls, exact turns, kills, ends."""

from __future__ import annotations

import asyncio
import json
import os
import time
from array import array
from pathlib import Path

import psutil
import pytest
import pytest_asyncio
from msgspec.structs import replace

from nemo_gym.engines.engine import EngineRequest
from nemo_gym.exchange.call import Call, Prior
from nemo_gym.exchange.errors import ModelError
from nemo_gym.exchange.parts import Message, Text, ToolCall, ToolResult
from nemo_gym.exchange.request import ModelRequest, Sampling
from nemo_gym.exchange.tools import Tool
from nemo_gym.web.peers import ServerClient
from responses_api_models.local_vllm_model.app import LocalVLLMModel, LocalVLLMModelConfig
from tests.live.device import DEVICES
from tests.project import command_of

pytest.importorskip("ray")
pytest.importorskip("vllm")
pytestmark = [pytest.mark.live, pytest.mark.ci, pytest.mark.asyncio(loop_scope="module")]

MODEL = os.environ.get("NEMO_GYM_TEST_MODEL", str(Path(__file__).parents[2] / "models" / "tiny_policy"))
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


def descendants() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


@pytest.fixture(scope="module")
def others() -> set[psutil.Process]:
    """Processes of other tests."""
    return set(descendants())


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=DEVICES)
async def model(request, others):
    config = LocalVLLMModelConfig(
        name="policy_model",
        model=MODEL,
        model_name="tiny-policy",
        num_gpus=request.param.gpus,
        engine_args={"max_model_len": 2048, "dtype": "float32", **request.param.engine_args},
        start_timeout_s=3000,
    )
    server = LocalVLLMModel(config=config, server_client=ServerClient({}))
    started = time.monotonic()
    await server.start()
    print(f"\nstarted in {time.monotonic() - started:.1f} s")
    yield server
    started = time.monotonic()
    await server.stop()
    print(f"\nended in {time.monotonic() - started:.1f} s")


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


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def played(model):
    return await asyncio.gather(*(turns(model, city, n) for city in CITIES for n in range(4)))


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
    handle = model._deployment.engine.replicas[0]._handle
    for _ in range(50):
        if await handle.unfinished.remote() == 0:
            return
        await asyncio.sleep(0.1)
    pytest.fail("the engine still generates for calls that were cancelled")


async def test_a_killed_engine_comes_back_and_its_calls_are_answered(model):
    core = next(process for process in descendants() if "EngineCore" in command_of(process))
    requests = [ask(city, max_tokens=200) for city in CITIES]
    requests = [replace(r, sampling=replace(r.sampling, logit_bias={0: -100.0, 2: -100.0})) for r in requests]
    calls = [Call(request) for request in requests]
    tasks = [asyncio.create_task(model.generate(r, c)) for r, c in zip(requests, calls, strict=True)]
    await asyncio.sleep(0.05)
    core.kill()
    killed = time.monotonic()
    replies = await asyncio.wait_for(asyncio.gather(*tasks), 400)
    print(f"\nanswered {time.monotonic() - killed:.1f} s after the kill")
    assert all(len(reply.choices[0].tokens.ids) == 200 for reply in replies)
    assert {len(call.attempts) for call in calls} <= {1, 2, 3}
    assert any(call.attempts[0].error == "unreachable" for call in calls)


async def test_nothing_is_left_of_it(model, others):
    before = set(descendants()) - others
    assert before
    await model.stop()
    _, alive = psutil.wait_procs(before, timeout=10)
    assert alive == []
