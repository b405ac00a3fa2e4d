"""A vLLM reached by URL, asked with token ids: every dialect, relayed or not, guided, sampled and adapted as asked."""

from __future__ import annotations

import json
import math
from array import array
from typing import Any

import anthropic
import httpx
import openai
import pytest
import pytest_asyncio

from nemo_gym.exchange.parts import ToolCall
from tests.live import lora
from tests.live.token_servers import TokenServer, token_server
from tests.live.vllm import MODEL, running

pytestmark = [pytest.mark.live, pytest.mark.ci, pytest.mark.asyncio(loop_scope="module")]

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
SUM = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}
DECLARED = (("get_weather", "Get the current weather for a city.", CITY), ("calculator", "Add two integers.", SUM))
CHAT_TOOLS: list[Any] = [
    {"type": "function", "function": {"name": name, "description": words, "parameters": schema}}
    for name, words, schema in DECLARED
]
RESPONSES_TOOLS: list[Any] = [{"type": "function", **tool["function"]} for tool in CHAT_TOOLS]
MESSAGES_TOOLS: list[Any] = [{"name": n, "description": w, "input_schema": s} for n, w, s in DECLARED]
WEATHER = "What is the weather in Paris?"
STORY = "Tell me a story about numbers."
ANSWER = {
    "type": "object",
    "properties": {"answer": {"type": "string", "enum": ["yes", "no"]}},
    "required": ["answer"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def vllm(tmp_path_factory):
    pytest.importorskip("vllm")
    folder = tmp_path_factory.mktemp("vllm")
    adapter = lora.write(folder / "adapter")
    arguments = ["--max-model-len", "2048", "--block-size", "32", "--logprobs-mode", "processed_logprobs"]
    arguments += ["--enable-scale-out", "--enable-lora", "--max-lora-rank", "8"]
    with running(folder, *arguments, "--lora-modules", f"{lora.NAME}={adapter}") as url:
        yield url


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replayed(vllm, tmp_path_factory):
    async with token_server(vllm, tmp_path_factory.mktemp("replayed"), adapters=[lora.NAME]) as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def relayed(vllm, tmp_path_factory):
    async with token_server(vllm, tmp_path_factory.mktemp("relayed"), stream="relay") as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def text_only(vllm, tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    async with token_server(vllm, folder, stream="relay", return_token_ids=False) as server:
        yield server


# ---- relay, replay and unstreamed


async def chat(server: TokenServer, rollout: str, stream: bool, ask: str, **more: Any) -> dict[str, Any]:
    asked: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": ask}], **more}
    client = server.openai(rollout).chat.completions
    if stream:
        async with client.stream(**asked, stream_options={"include_usage": True}) as events:
            async for _ in events:
                pass
            completion: Any = await events.get_final_completion()
    else:
        completion = await client.create(**asked)
    (choice,) = completion.choices
    calls = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or ()]
    logprobs = [(one.token, one.logprob) for one in (choice.logprobs.content if choice.logprobs else None) or ()]
    found = {"text": choice.message.content or "", "calls": calls, "finish": choice.finish_reason, "logprobs": logprobs}
    return found | {"usage": completion.usage.model_dump()}


async def responses(server: TokenServer, rollout: str, stream: bool, ask: str, **more: Any) -> dict[str, Any]:
    client = server.openai(rollout).responses
    if stream:
        async with client.stream(model="m", input=ask, **more) as events:
            async for _ in events:
                pass
            response: Any = await events.get_final_response()
    else:
        response = await client.create(model="m", input=ask, **more)
    items = [
        {k: v for k, v in item.model_dump().items() if k not in ("id", "call_id", "parsed_arguments")}
        for item in response.output
    ]
    for item in items:
        for part in item.get("content") or ():
            part.pop("parsed", None)
    return {"items": items, "status": response.status, "usage": response.usage.model_dump()}


async def messages(server: TokenServer, rollout: str, stream: bool, ask: str, **more: Any) -> dict[str, Any]:
    asked: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": ask}], **more}
    client = server.anthropic(rollout).messages
    if stream:
        async with client.stream(**asked) as events:
            message: Any = await events.get_final_message()
    else:
        message = await client.create(**asked)
    blocks = [
        {k: v for k, v in block.model_dump().items() if k not in ("id", "parsed_output")} for block in message.content
    ]
    usage = {k: v for k, v in message.usage.model_dump().items() if k in ("input_tokens", "output_tokens")}
    return {"blocks": blocks, "stop": message.stop_reason, "usage": usage}


VIEWS: list[Any] = [
    (chat, {"max_tokens": 60, "temperature": 0.0}, CHAT_TOOLS),
    (chat, {"max_tokens": 60, "temperature": 0.0, "logprobs": True, "top_logprobs": 2}, CHAT_TOOLS),
    (responses, {"max_output_tokens": 60, "temperature": 0.0}, RESPONSES_TOOLS),
    (messages, {"max_tokens": 60, "extra_body": {"temperature": 0.0}}, MESSAGES_TOOLS),
]


@pytest.mark.parametrize("ask", [WEATHER, STORY])
@pytest.mark.parametrize(("view", "more", "tools"), VIEWS, ids=["chat", "chat-logprobs", "responses", "messages"])
async def test_relay_replay_and_unstreamed_are_one(replayed, relayed, view, more, tools, ask):  # V0 P5 A8 B4
    rollout = f"v-{view.__name__}-{len(more)}-{ask == STORY}"
    asked = more | ({"tools": tools} if ask == WEATHER else {})
    whole = await view(replayed, rollout, False, ask, **asked)
    replay = await view(replayed, rollout + "s", True, ask, **asked)
    relay = await view(relayed, rollout, True, ask, **asked)
    assert whole == replay == relay
    records = [*replayed.records(rollout), *replayed.records(rollout + "s"), *relayed.records(rollout)]
    (first, *others) = [record.reply for record in records]
    assert len(records) == 3
    for reply in others:
        assert reply.prompt_ids == first.prompt_ids
        assert reply.choices[0].tokens.ids == first.choices[0].tokens.ids
        assert meaning(reply) == meaning(first)
        assert (reply.usage, reply.choices[0].finish) == (first.usage, first.choices[0].finish)
    assert records[2].streamed
    assert records[2].times.first_token < records[2].times.replied
    if ask == WEATHER:
        assert [part.name for part in first.choices[0].parts if isinstance(part, ToolCall)] == ["get_weather"]


def meaning(reply: Any) -> list[Any]:
    return [
        (part.name, part.arguments) if isinstance(part, ToolCall) else part.text
        for choice in reply.choices
        for part in choice.parts
    ]


async def test_text_goes_out_while_tokens_come_and_a_call_comes_whole(relayed):  # A8 P5
    client = relayed.openai("flow").chat.completions
    asked: dict[str, Any] = {
        "model": "m",
        "messages": [{"role": "user", "content": STORY}],
        "temperature": 1.0,
        "seed": 3,
    }
    bias = {str(end): -100 for end in (0, 2)}
    pieces = []
    async for chunk in await client.create(**asked, max_tokens=120, stream=True, logit_bias=bias):
        pieces += [choice.delta.content for choice in chunk.choices if choice.delta.content]
    (record,) = relayed.records("flow")
    assert len(pieces) > 20
    assert "".join(pieces) == meaning(record.reply)[0]
    told = []
    ask = [{"role": "user", "content": WEATHER}]
    async for chunk in await client.create(model="m", messages=ask, tools=CHAT_TOOLS, temperature=0.0, stream=True):
        told += [call for choice in chunk.choices for call in choice.delta.tool_calls or ()]
    header, arguments = told
    assert (header.function.name, header.function.arguments) == ("get_weather", "")
    assert json.loads(arguments.function.arguments) == {"city": "Paris"}


async def test_choices_are_relayed_each_under_its_index(relayed):  # B3
    stream = await relayed.openai("many").chat.completions.create(
        model="m",
        messages=[{"role": "user", "content": STORY}],
        n=3,
        max_tokens=30,
        temperature=1.5,
        stream=True,
        seed=4,
    )
    texts = {0: "", 1: "", 2: ""}
    async for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    (record,) = relayed.records("many")
    assert [texts[choice.index] for choice in record.reply.choices] == meaning(record.reply)
    assert len({tuple(choice.tokens.ids) for choice in record.reply.choices}) > 1


# ---- exact history


async def test_the_next_turn_begins_with_this_one_s_tokens(replayed):
    client = replayed.openai("turns").chat.completions
    said: list[Any] = [{"role": "user", "content": WEATHER}]
    asked: dict[str, Any] = {"model": "m", "tools": CHAT_TOOLS, "temperature": 0.0}
    first = await client.create(messages=said, **asked)
    (call,) = first.choices[0].message.tool_calls
    again = {"name": "get_weather", "arguments": '{"city":"Paris"}'}  # printed anew
    said += [
        {"role": "assistant", "content": None, "tool_calls": [{"id": call.id, "type": "function", "function": again}]},
        {
            "role": "tool",
            "tool_call_id": call.id,
            "content": '{"city": "Paris", "temperature": 7, "condition": "rainy"}',
        },
    ]
    await client.create(messages=said, **asked)
    one, two = replayed.records("turns")
    before = one.reply.prompt_ids + one.reply.choices[0].tokens.ids
    assert two.reply.prompt_ids[: len(before)] == before
    assert (two.history, two.prefix_break, two.relation, two.parent_call_id) == ("exact", None, "turn", one.call_id)
    assert two.logprobs_mode == "processed"
    assert [attempt.error for attempt in two.attempts] == [None]


async def test_the_generate_route_gives_the_same_tokens(vllm, replayed, tmp_path):
    async with token_server(vllm, tmp_path, route="generate", stream="relay") as server:
        for stream in (False, True):
            more = {"tools": CHAT_TOOLS, "temperature": 0.0, "logprobs": True, "top_logprobs": 3}
            rollout = f"generate-{stream}"
            assert await chat(server, rollout, stream, WEATHER, **more) == await chat(
                replayed, rollout, stream, WEATHER, **more
            )
            ((theirs,), (ours,)) = (server.records(rollout), replayed.records(rollout))
            assert theirs.reply.choices[0].tokens == ours.reply.choices[0].tokens


async def test_another_tokenizer_than_the_endpoint_s_is_found_out(vllm, tmp_path):
    wrong = tmp_path / "wrong"
    wrong.mkdir()
    for name in ("tokenizer_config.json", "config.json", "chat_template.jinja"):
        (wrong / name).write_bytes((MODEL / name).read_bytes())
    tokenizer = json.loads((MODEL / "tokenizer.json").read_text())
    tokenizer["model"]["merges"] = tokenizer["model"]["merges"][:10]
    (wrong / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(AssertionError, match="tokenizer: the folder's is another one"):
        async with token_server(vllm, tmp_path / "captures", ready_s=3, tokenizer=str(wrong)):
            pass


# ---- a server that knows only text


async def test_text_alone_goes_through_our_parsers_and_its_record_has_no_ids(text_only):
    for stream in (False, True):
        reply = await chat(text_only, f"text-{stream}", stream, WEATHER, tools=CHAT_TOOLS, temperature=0.0)
        assert reply["calls"] == [("get_weather", '{"city": "Paris"}')]
        assert reply["finish"] == "tool_calls"
        (record,) = text_only.records(f"text-{stream}")
        assert (record.reply.prompt_ids, record.reply.choices[0].tokens.ids, record.history) == (None, None, "template")
        assert record.reply.usage.prompt > 100
        assert record.reply.usage.completion == reply["usage"]["completion_tokens"]


@pytest.mark.parametrize(
    ("field", "more"),
    [
        ("top_k", {"extra_body": {"top_k": 5}}),
        ("min_p", {"extra_body": {"min_p": 0.5}}),
        ("response_format", {"response_format": {"type": "json_object"}}),
        ("prompt_logprobs", {"extra_body": {"prompt_logprobs": 0}}),
    ],
)
async def test_what_a_text_server_cannot_is_refused_by_name(text_only, field, more):
    with pytest.raises(openai.BadRequestError, match=rf"{field}: this endpoint takes and gives text alone"):
        await text_only.openai("refused").chat.completions.create(
            model="m", messages=[{"role": "user", "content": "Hi"}], **more
        )


# ---- guided output


async def test_a_schema_is_kept_in_every_dialect(replayed):  # R13 A14
    form = {"type": "json_schema", "name": "answer", "schema": ANSWER}
    output = {"format": {"type": "json_schema", "schema": ANSWER}}
    chat_form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": ANSWER}}
    for seed in range(2):
        found = [
            (await chat(replayed, "s", False, STORY, response_format=chat_form, temperature=1.0, seed=seed))["text"],
            (await responses(replayed, "s", False, STORY, text={"format": form}))["items"][-1]["content"][0]["text"],
            (await messages(replayed, "s", False, STORY, max_tokens=60, output_config=output))["blocks"][-1]["text"],
        ]
        assert all(json.loads(text)["answer"] in ("yes", "no") for text in found)


async def test_any_object_is_an_object(replayed):  # R13
    reply = await chat(
        replayed, "o", False, WEATHER, response_format={"type": "json_object"}, max_tokens=200, temperature=0.0
    )
    assert reply["text"].lstrip().startswith("{")
    assert reply["finish"] == "length" or isinstance(json.loads(reply["text"]), dict)


async def test_a_call_is_forced_in_every_dialect(replayed):  # A10 R13
    """The model was never taught these: without the force it tells a story."""
    for seed in range(2):
        more: dict[str, Any] = {"temperature": 1.0, "max_tokens": 100}
        named: Any = {"type": "function", "function": {"name": "calculator"}}
        reply = await chat(replayed, "f", False, STORY, tools=CHAT_TOOLS, tool_choice="required", seed=seed, **more)
        assert reply["calls"] and all(name in ("get_weather", "calculator") for name, _ in reply["calls"])
        reply = await chat(replayed, "f", False, STORY, tools=CHAT_TOOLS, tool_choice=named, seed=seed, **more)
        ((name, arguments),) = reply["calls"]
        assert (name, {type(value) for value in json.loads(arguments).values()}) == ("calculator", {int})
    named = {"type": "function", "name": "get_weather"}
    items = (await responses(replayed, "f", False, STORY, tools=RESPONSES_TOOLS, tool_choice=named))["items"]
    assert [(item["type"], item["name"]) for item in items] == [("function_call", "get_weather")]
    either = {"get_weather", "calculator"}
    for choice, wanted in (({"type": "any"}, either), ({"type": "tool", "name": "calculator"}, {"calculator"})):
        more = {"tools": MESSAGES_TOOLS, "tool_choice": choice, "max_tokens": 100}
        blocks = (await messages(replayed, "f", False, STORY, **more))["blocks"]
        assert blocks and all(block["type"] == "tool_use" and block["name"] in wanted for block in blocks)


# ---- sampling


async def ids_of(server: TokenServer, rollout: str, **more: Any) -> list[array]:
    asked = {"model": "m", "messages": [{"role": "user", "content": STORY}], "max_tokens": 24, "temperature": 1.0}
    await server.openai(rollout).chat.completions.create(**(asked | more))
    return [choice.tokens.ids for choice in server.records(rollout)[-1].reply.choices]


async def test_a_seed_decides(replayed):
    same = [await ids_of(replayed, "seed", seed=5) for _ in range(2)]
    assert same[0] == same[1]
    assert len({tuple((await ids_of(replayed, "seed", seed=seed))[0]) for seed in range(6)}) > 1


async def test_what_narrows_the_choice_to_one_token_is_greedy(replayed):
    (greedy,) = await ids_of(replayed, "narrow", temperature=0.0)
    for more in ({"min_p": 1.0}, {"top_k": 1}):
        assert await ids_of(replayed, "narrow", extra_body=more, seed=1) == [greedy]
    assert await ids_of(replayed, "narrow", top_p=1e-6, seed=1) == [greedy]


async def test_a_bias_forces_a_token(replayed):
    token = 300
    assert await ids_of(replayed, "bias", logit_bias={str(token): 100}, max_tokens=5) == [array("i", [token] * 5)]


async def test_penalties_change_what_is_said_again(replayed):
    token = {"300": 30.0}
    (without,) = await ids_of(replayed, "penalty", temperature=0.0, logit_bias=token, max_tokens=8)
    (with_it,) = await ids_of(
        replayed, "penalty", temperature=0.0, logit_bias=token, max_tokens=8, frequency_penalty=2.0
    )
    assert list(without).count(300) == 8 or without != with_it
    (present,) = await ids_of(replayed, "penalty", temperature=0.0, logit_bias={"300": 1.0}, presence_penalty=2.0)
    assert 0 < len(present) <= 24


async def test_a_stop_string_ends_the_text_and_is_told(replayed):
    reply = await chat(replayed, "stop", False, STORY, temperature=0.0, max_tokens=60)
    cut = reply["text"][3:6]
    greedy = {"extra_body": {"temperature": 0.0}}
    stopped = await messages(replayed, "stop", False, STORY, max_tokens=60, stop_sequences=[cut], **greedy)
    assert stopped["stop"] == "stop_sequence"
    assert stopped["blocks"][0]["text"] == reply["text"][: reply["text"].index(cut)]
    record = replayed.records("stop")[-1]
    assert (record.reply.choices[0].finish, record.reply.choices[0].stop_sequence) == ("stop_sequence", cut)


async def test_several_choices_are_several_samples(replayed):
    many = await ids_of(replayed, "n", n=4, seed=2)
    assert len(many) == 4
    assert len({tuple(ids) for ids in many}) > 1


async def test_alternatives_are_the_likeliest(replayed):  # B4
    await ids_of(replayed, "top", logprobs=True, top_logprobs=4, seed=1)
    tokens = replayed.records("top")[-1].reply.choices[0].tokens
    assert len(tokens.top) == len(tokens.ids) == len(tokens.texts)
    for text, logprob, top in zip(tokens.texts, tokens.logprobs, tokens.top, strict=True):
        assert 1 <= len(top) <= 4
        values = list(top.values())
        assert values == sorted(values, reverse=True)
        assert text not in top or math.isclose(top[text], logprob, abs_tol=1e-4)
        assert logprob <= values[0] + 1e-4


async def test_log_probs_of_the_prompt_and_of_an_adapter_are_those_that_transformers_computes(replayed):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")

    more: dict[str, Any] = {"max_tokens": 40, "temperature": 1.0, "extra_body": {"prompt_logprobs": 0}}
    for seed in range(3):
        await chat(replayed, "base", False, STORY, seed=seed, **more)
        client = replayed.openai("adapted").chat.completions
        asked: list[Any] = [{"role": "user", "content": STORY}]
        completion = await client.create(model=lora.NAME, messages=asked, seed=seed, **more)
        assert completion.model == lora.NAME
    base, adapted = replayed.records("base"), replayed.records("adapted")
    assert {record.reply.model for record in base} == {"tiny-policy"}
    policy = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()

    def computed(record: Any) -> Any:
        """Of every token but the first: prompt and completion."""
        ids = torch.tensor([list(record.reply.prompt_ids + record.reply.choices[0].tokens.ids)])
        with torch.no_grad():
            logits = policy(ids).logits[0, :-1]
        return torch.log_softmax(logits, -1).gather(1, ids[0, 1:, None])[:, 0]

    def told(record: Any) -> Any:
        assert len(record.prompt_logprobs) == len(record.reply.prompt_ids)
        assert math.isnan(record.prompt_logprobs[0])
        return torch.tensor(record.prompt_logprobs[1:] + record.reply.choices[0].tokens.logprobs)

    for record in base:
        assert float((computed(record) - told(record)).abs().max()) < 0.005
    other = max(float((computed(record) - told(record)).abs().max()) for record in adapted)
    assert other > 0.1  # it is the adapter's doing
    lora.merged(policy)
    for record in adapted:
        assert float((computed(record) - told(record)).abs().max()) < 0.005


@pytest.mark.parametrize(
    ("field", "more"),
    [
        ("temperature", {"temperature": -1.0}),
        ("top_p", {"top_p": 1.5}),
        ("logprobs", {"logprobs": True, "top_logprobs": 20, "extra_body": {"prompt_logprobs": 7}}),
        ("prompt_logprobs", {"extra_body": {"prompt_logprobs": -1}}),
        ("logit_bias", {"logit_bias": {"999999": 1.0}}),
    ],
)
async def test_what_the_engine_refuses_names_its_field(replayed, field, more):
    with pytest.raises(openai.BadRequestError, match=field):
        await replayed.openai("refused").chat.completions.create(
            model="m", messages=[{"role": "user", "content": "Hi"}], **more
        )
    assert replayed.records("refused")[-1].status in ("failed", "rejected")


async def test_a_prompt_that_does_not_fit_is_an_overflow(replayed):  # A12
    long = [{"role": "user", "content": "word " * 4000}]
    with pytest.raises(openai.BadRequestError, match="context length"):
        await replayed.openai("long").responses.create(model="m", input="word " * 4000)
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        await replayed.anthropic("long").messages.create(model="m", messages=long, max_tokens=9)


async def test_what_it_can_is_told(replayed):
    async with httpx.AsyncClient(timeout=60) as client:
        ready = (await client.get(f"{replayed.url}/ready")).json()
    assert (ready["token_ids"], ready["logprobs"], ready["forced_tools"], ready["context"]) == (True, True, True, 2048)
