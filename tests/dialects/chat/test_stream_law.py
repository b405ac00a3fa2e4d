"""The law: the stock client's accumulated stream is the non-streamed object. # V0 B7"""

import json
from array import array

import httpx
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import OpenAI
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion

from nemo_gym.dialects import chat
from nemo_gym.dialects.dialect import Head, replay
from nemo_gym.dialects.sse import Decoder
from nemo_gym.exchange.increments import Increment, unfold
from nemo_gym.exchange.parts import Origin, Reasoning, Refusal, Text, ToolCall
from nemo_gym.exchange.reply import Choice, ModelReply, TokenTrace, Usage
from tests.texts import long_texts

words = st.text(st.characters(exclude_categories=("Cs",)), max_size=60) | long_texts
names = st.text("abcdefgh_", min_size=1, max_size=8)
count = st.none() | st.integers(0, 10**6)
usages = st.builds(Usage, prompt=count, completion=count, reasoning=count, cached=count)


@st.composite
def choices(draw, index):
    parts = []
    for _ in range(draw(st.integers(0, 5))):
        kind = draw(st.sampled_from("trpfc"))
        if kind == "t":
            parts.append(Text(draw(words)))
        elif kind == "r":
            parts.append(Reasoning(draw(words)))
        elif kind == "p":
            parts.append(Reasoning(draw(words), draw(st.sampled_from(["", f"rs_{len(parts)}"])), "sealed"))
        elif kind == "f":
            parts.append(Refusal(draw(words)))
        else:
            parts.append(ToolCall(draw(names), draw(words), f"call_{len(parts)}"))
    tokens = None
    if draw(st.booleans()):
        texts = tuple(draw(st.lists(words, max_size=6)))
        logprobs = array("f", draw(st.lists(st.floats(-50, 0, width=32), min_size=len(texts), max_size=len(texts))))
        top = tuple({text: -1.5, "other": -2.25} for text in texts) if draw(st.booleans()) else None
        tokens = TokenTrace(ids=array("i", range(len(texts))), logprobs=logprobs, texts=texts, top=top)
    finish = draw(st.sampled_from(["stop", "length", "tool_calls", "stop_sequence", "content_filter", "refusal"]))
    return Choice(index, tuple(parts), finish, tokens)


@st.composite
def replies(draw):
    n = draw(st.integers(0, 3))
    origin = draw(st.none() | st.just(Origin("chat", {"system_fingerprint": "fp", "service_tier": "default"})))
    return ModelReply("chatcmpl-1", "m", 17, tuple(draw(choices(i)) for i in range(n)), draw(usages), None, origin)


def request_for(reply, include_usage=True, logprobs=True, **fields):
    body = {"messages": [{"role": "user", "content": "q"}], "stream": True, "n": max(1, len(reply.choices)), **fields}
    if include_usage:
        body["stream_options"] = {"include_usage": True}
    if logprobs:
        body |= {"logprobs": True, "top_logprobs": 2}
    return chat.read_request(body)


_sent = {"data": b""}
_client = OpenAI(
    api_key="k",
    base_url="http://model/v1",
    max_retries=0,
    http_client=httpx.Client(
        transport=httpx.MockTransport(
            lambda _: httpx.Response(200, content=_sent["data"], headers={"content-type": "text/event-stream"})
        )
    ),
)


def accumulate(data: bytes) -> dict:
    """Through the stock client itself, from the bytes on."""
    _sent["data"] = data
    state = ChatCompletionStreamState()
    for chunk in _client.chat.completions.create(model="m", messages=[], stream=True):
        state.handle_chunk(chunk)
    return tidy(state.current_completion_snapshot.model_dump())


def tidy(completion: dict) -> dict:
    """Without what only the helper adds."""
    for choice in completion["choices"]:
        message = choice["message"]
        message.pop("parsed", None)
        message["tool_calls"] = message.get("tool_calls") or None
        for call in message["tool_calls"] or ():
            call.pop("index", None)
            call["function"].pop("parsed_arguments", None)
    return completion


def whole(reply, request) -> dict:
    return tidy(ChatCompletion.model_validate(chat.write_reply(reply, request)).model_dump())


@settings(max_examples=50, deadline=None)
@given(replies(), st.booleans())
def test_the_stock_clients_accumulated_stream_is_the_unstreamed_reply(reply, logprobs):  # V0 B7
    request = request_for(reply, logprobs=logprobs)
    stream = b"".join(replay(chat.stream_writer(request, Head.of(reply)), reply))
    if not reply.choices:
        assert stream.endswith(b"data: [DONE]\n\n")  # B3
    assert accumulate(stream) == whole(reply, request)


@settings(max_examples=40, deadline=None)
@given(replies(), st.data())
def test_a_relay_of_any_interleaving_and_any_cut_gives_the_same(reply, data):
    """Choices interleave, keep-alives come between, and the relay may stop anywhere: `close` writes the rest."""
    request = request_for(reply, logprobs=False)
    queues = [[i for i in unfold(reply) if i.choice == c.index] for c in reply.choices]
    writer = chat.stream_writer(request, Head.of(reply))
    out = writer.open()
    for _ in range(data.draw(st.integers(0, sum(map(len, queues))))):
        queue = data.draw(st.sampled_from([q for q in queues if q]))
        out += writer.feed(queue.pop(0))
        if data.draw(st.booleans()):
            out += writer.keep_alive()
    out += writer.close(reply)
    assert accumulate(out) == whole(reply, request)


def chunks(data: bytes) -> list:
    decoder = Decoder()
    return [json.loads(e.data) for e in decoder.feed(data) if e.data != "[DONE]"]


def test_grammar_of_the_chunks():  # B1 B2 B5
    parts = (Reasoning("think"), Text("hi"), ToolCall("f", '{"a": 1}', "call_1"), ToolCall("g", "{}", "call_2"))
    reply = ModelReply("id", "m", 3, (Choice(0, parts, "tool_calls"),), Usage(1, 2))
    request = request_for(reply, logprobs=False)
    found = chunks(b"".join(replay(chat.stream_writer(request, Head.of(reply)), reply)))
    assert all(c["id"] == "id" and c["created"] == 3 and c["model"] == "m" for c in found)
    assert [c["usage"] for c in found[:-1]] == [None] * (len(found) - 1)
    assert found[-1]["choices"] == []
    assert found[-1]["usage"]["total_tokens"] == 3
    deltas = [c["choices"][0]["delta"] for c in found[:-1]]
    assert deltas[0] == {"role": "assistant"}
    assert deltas[1] == {"reasoning_content": "think"}
    assert deltas[2] == {"content": "hi"}
    assert deltas[3]["tool_calls"] == [
        {"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": ""}}
    ]
    assert deltas[4]["tool_calls"] == [{"index": 0, "function": {"arguments": '{"a": 1}'}}]
    assert deltas[5]["tool_calls"][0]["index"] == 1
    assert deltas[-1] == {}
    assert found[-2]["choices"][0]["finish_reason"] == "tool_calls"


def test_without_include_usage_no_chunk_has_usage():
    reply = ModelReply("id", "m", 3, (Choice(0, (Text("x"),), "stop"),), Usage(1, 2))
    request = request_for(reply, include_usage=False, logprobs=False)
    found = chunks(b"".join(replay(chat.stream_writer(request, Head.of(reply)), reply)))
    assert not any("usage" in c for c in found)


def test_custom_tool_calls_fold_from_the_raw_chunks():  # B5 B7
    call = ToolCall("patch", "*** raw\ninput", "call_1", custom=True)
    reply = ModelReply("id", "m", 3, (Choice(0, (call,), "tool_calls"),))
    request = request_for(reply, logprobs=False)
    found = chunks(b"".join(replay(chat.stream_writer(request, Head.of(reply)), reply)))
    first, second = found[1]["choices"][0]["delta"]["tool_calls"][0], found[2]["choices"][0]["delta"]["tool_calls"][0]
    assert first == {"index": 0, "id": "call_1", "type": "custom", "custom": {"name": "patch", "input": ""}}
    assert second == {"index": 0, "custom": {"input": "*** raw\ninput"}}
    message = chat.write_reply(reply, request)["choices"][0]["message"]
    assert message["tool_calls"][0]["custom"] == {"name": "patch", "input": "*** raw\ninput"}


def test_logprobs_ride_on_the_chunk_of_their_content():  # B4
    tokens = TokenTrace(array("i", [5, 6]), array("f", [-0.1, -0.25]), texts=("he", "y"))
    reply = ModelReply("id", "m", 3, (Choice(0, (Reasoning("t"), Text("hey")), "stop", tokens),))
    request = request_for(reply)
    found = chunks(b"".join(replay(chat.stream_writer(request, Head.of(reply)), reply)))
    bearing = [c["choices"][0] for c in found if c["choices"] and c["choices"][0]["logprobs"]]
    assert len(bearing) == 1
    assert bearing[0]["delta"] == {"content": "hey"}
    assert [e["logprob"] for e in bearing[0]["logprobs"]["content"]] == [-0.1, -0.25]


def test_a_failure_in_the_stream_is_an_error_and_a_proper_end():  # A7
    from nemo_gym.exchange.errors import ModelError

    reply = ModelReply("id", "m", 3, (Choice(0, (Text("x"),), "stop"),))
    writer = chat.stream_writer(request_for(reply), Head.of(reply))
    out = writer.open() + writer.feed(Increment(Text("x"))) + writer.fail(ModelError(502, "backend", "gone"))
    assert out.endswith(b"data: [DONE]\n\n")
    assert chunks(out)[-1]["error"]["message"] == "gone"
