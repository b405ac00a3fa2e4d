"""A backend's chat reply, whole or streamed, in whatever pieces: the same values."""

import json
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from nemo_gym.dialects import chat
from nemo_gym.dialects.chat.reply import decode_reply
from nemo_gym.dialects.dialect import Head, replay
from nemo_gym.exchange.errors import ModelError
from nemo_gym.exchange.increments import fold
from nemo_gym.exchange.parts import Reasoning, Text, ToolCall
from nemo_gym.exchange.reply import Choice, ModelReply, TokenTrace, Usage
from nemo_gym.exchange.request import ModelRequest, Sampling

REQUEST = chat.read_request({"messages": [{"role": "user", "content": "q"}]})


def vllm_entry(token, logprob):
    return {"token": token, "logprob": logprob, "bytes": list(token.encode()), "top_logprobs": []}


VLLM = {
    "id": "chatcmpl-abc",
    "object": "chat.completion",
    "created": 1700000000,
    "model": "tiny-policy",
    "prompt_token_ids": [1, 2, 3],
    "prompt_logprobs": None,
    "kv_transfer_params": None,
    "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7, "prompt_tokens_details": None},
    "choices": [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": None,
                "reasoning": "hm",
                "tool_calls": [
                    {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a":  1}'}}
                ],
            },
            "logprobs": {"content": [vllm_entry("a", -0.5), vllm_entry("b", -1.25), vllm_entry("", -9999.0)]},
            "finish_reason": "tool_calls",
            "stop_reason": None,
            "token_ids": [7, 8, 2],
        }
    ],
}


def test_vllms_token_ids_and_logprobs_become_arrays():  # C3
    reply = chat.read_reply(VLLM)
    assert reply.prompt_ids == array("i", [1, 2, 3])
    assert reply.usage == Usage(3, 4)  # cached and reasoning tokens are not known, so not 0
    (choice,) = reply.choices
    assert choice.parts == (Reasoning("hm"), ToolCall("add", '{"a":  1}', "call_1"))
    assert choice.tokens.ids == array("i", [7, 8, 2])
    assert choice.tokens.logprobs == array("f", [-0.5, -1.25, -9999.0])
    written = chat.write_reply(reply, REQUEST)
    assert "token_ids" not in json.dumps(written)
    assert written["choices"][0]["message"]["reasoning_content"] == "hm"
    assert written["choices"][0]["logprobs"] is None  # the client did not ask


def test_token_ids_hidden_in_the_token_texts():
    entries = [vllm_entry("token_id:7", -0.5), vllm_entry("token_id:8", -0.25)]
    choice = {**VLLM["choices"][0], "token_ids": None, "logprobs": {"content": entries}}
    (read,) = chat.read_reply({**VLLM, "choices": [choice]}).choices
    assert read.tokens.ids == array("i", [7, 8])


def test_columns_that_do_not_line_up_are_not_guessed():
    choice = {**VLLM["choices"][0], "token_ids": [7, 8]}
    (read,) = chat.read_reply({**VLLM, "choices": [choice]}).choices
    assert read.tokens == TokenTrace(ids=array("i", [7, 8]))


@pytest.mark.parametrize("reason", ["abort", "error", None, "nonsense"])
def test_a_backend_that_did_not_stop_has_failed(reason):  # A19
    with pytest.raises(ModelError) as caught:
        chat.read_reply({**VLLM, "choices": [{**VLLM["choices"][0], "finish_reason": reason}]})
    assert caught.value.status == 502


@pytest.mark.parametrize("body", [{}, {"choices": 3}, {"choices": [{}]}, {"choices": [{"message": None}]}])
def test_what_is_no_reply_is_a_backend_error(body):
    with pytest.raises(ModelError) as caught:
        chat.read_reply(body)
    assert caught.value.kind == "backend"


def test_finish_reasons():  # B5
    def finish(choice, **fields):
        request = ModelRequest(REQUEST.messages, **fields)
        return chat.write_reply(ModelReply("i", "m", 1, (choice,)), request)["choices"][0]["finish_reason"]

    call = ToolCall("f", "{}", "c")
    assert finish(Choice(0, (call,), "stop")) == "tool_calls"
    assert finish(Choice(0, (call,), "length")) == "length"
    assert finish(Choice(0, (Text("x"),), "stop_sequence", stop_sequence="END")) == "stop"
    named = chat.read_request(
        {
            "messages": [{"role": "user", "content": "q"}],
            "tools": [{"type": "function", "function": {"name": "f"}}],
            "tool_choice": {"type": "function", "function": {"name": "f"}},
        }
    )
    written = chat.write_reply(ModelReply("i", "m", 1, (Choice(0, (call,), "stop"),)), named)
    assert written["choices"][0]["finish_reason"] == "stop"


def test_what_we_do_not_model_survives_the_same_dialect():
    message = {**VLLM["choices"][0]["message"], "annotations": [{"type": "x"}], "thinking_blocks": {"a": 1}}
    message["tool_calls"] = [{**message["tool_calls"][0], "extra_content": {"signature": "s"}}]
    reply = chat.read_reply(
        {**VLLM, "system_fingerprint": "fp", "choices": [{**VLLM["choices"][0], "message": message}]}
    )
    written = chat.write_reply(reply, REQUEST)
    assert written["system_fingerprint"] == "fp"
    assert written["choices"][0]["message"]["annotations"] == [{"type": "x"}]
    assert written["choices"][0]["message"]["tool_calls"][0]["extra_content"] == {"signature": "s"}
    stream = b"".join(replay(chat.stream_writer(REQUEST, Head.of(reply)), reply))
    assert b'"annotations"' in stream
    assert b'"extra_content"' in stream
    assert stream.count(b'"system_fingerprint":"fp"') == stream.count(b"data: {")


def test_unknown_usage_is_null_not_zero():
    reply = ModelReply("i", "m", 1, (Choice(0, (Text("x"),), "stop"),))
    assert chat.write_reply(reply, REQUEST)["usage"] is None
    assert chat.read_reply(chat.write_reply(reply, REQUEST)).usage == Usage()


# ---- streams


words = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=30)


@st.composite
def replies(draw):
    choices = []
    for index in range(draw(st.integers(1, 3))):
        parts = []
        if draw(st.booleans()):
            parts.append(Reasoning(draw(words)))
        if draw(st.booleans()):
            parts.append(Text(draw(words)))
        parts += [ToolCall("f", draw(words), f"c{n}") for n in range(draw(st.integers(0, 3)))]
        calls = any(isinstance(part, ToolCall) for part in parts)
        choices.append(
            Choice(index, tuple(parts), "tool_calls" if calls else draw(st.sampled_from(["stop", "length"])))
        )
    usage = draw(st.sampled_from([Usage(), Usage(3, 4, 1, 2)]))
    return ModelReply("id", "m", 17, tuple(choices), usage)


@settings(max_examples=50, deadline=None)
@given(replies(), st.integers(1, 80))
def test_reading_a_stream_gives_the_reply_however_it_was_cut(reply, cut):
    request = ModelRequest(
        REQUEST.messages,
        sampling=Sampling(n=3),
        origin=chat.read_request({"messages": [], "stream": True, "stream_options": {"include_usage": True}}).origin,
    )
    stream = b"".join(replay(chat.stream_writer(request, Head.of(reply)), reply))
    reader = chat.stream_reader()
    increments = []
    for start in range(0, len(stream), cut):
        increments += reader.feed(stream[start : start + cut])
    read = reader.finish()
    assert read == reply
    flowing = {
        choice.index: tuple(part for part in choice.parts if not isinstance(part, ToolCall)) for choice in reply.choices
    }
    assert fold(increments) == {index: parts for index, parts in flowing.items() if parts}


def chunk(**choice):
    return b"data: " + json.dumps({"id": "i", "model": "m", "created": 1, "choices": [{"index": 0, **choice}]}).encode()


def test_a_vllm_stream_with_token_ids():
    first = {
        "id": "i",
        "model": "m",
        "created": 1,
        "prompt_token_ids": [1, 2],
        "choices": [
            {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        ],
    }
    stream = b"\n\n".join(
        [
            b"data: " + json.dumps(first).encode(),
            chunk(delta={"content": "a"}, token_ids=[5], logprobs={"content": [vllm_entry("a", -0.5)]}),
            chunk(delta={"content": "b"}, token_ids=[6], logprobs={"content": [vllm_entry("b", -0.25)]}),
            chunk(delta={}, token_ids=[2], logprobs={"content": [vllm_entry("", 0.0)]}, finish_reason="stop"),
            b"data: [DONE]",
            b"",
        ]
    )
    reader = chat.stream_reader()
    increments = reader.feed(stream)
    assert [i.tokens.ids[0] for i in increments] == [5, 6]
    reply = reader.finish()
    assert reply.prompt_ids == array("i", [1, 2])
    assert reply.choices[0].tokens.ids == array("i", [5, 6, 2])
    assert reply.choices[0].tokens.logprobs == array("f", [-0.5, -0.25, 0.0])


def test_a_pair_of_surrogates_over_two_chunks():  # A13
    stream = b"\n\n".join(
        [
            rb'data: {"choices":[{"index":0,"delta":{"content":"a\ud83d"}}]}',
            rb'data: {"choices":[{"index":0,"delta":{"content":"\ude00b\ud800"}}]}',
            rb'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}',
            b"data: [DONE]",
            b"",
        ]
    )
    reader = chat.stream_reader()
    text = "".join(i.part.text for i in reader.feed(stream))
    assert text == "a\U0001f600b"
    assert reader.finish().choices[0].parts == (Text("a\U0001f600b\ufffd"),)


def test_a_stream_that_just_stops_is_an_error():
    reader = chat.stream_reader()
    reader.feed(chunk(delta={"content": "a"}) + b"\n\n")
    with pytest.raises(ModelError):
        reader.finish()


def test_an_error_in_the_stream():
    reader = chat.stream_reader()
    with pytest.raises(ModelError) as caught:
        reader.feed(b'data: {"error": {"message": "no memory", "type": "oom", "code": 503}}\n\n')
    assert (caught.value.status, caught.value.kind, caught.value.message) == (503, "overloaded", "no memory")


@pytest.mark.parametrize("texts", [False, True])
@pytest.mark.parametrize("floor", [None, -0.5])
def test_bytes_with_token_ids_are_read_as_their_object_is(texts, floor):
    entry = {"token": "a", "logprob": floor, "bytes": [97], "top_logprobs": [{"token": "b", "logprob": -1.0}]}
    message = {"role": "assistant", "content": "aé", "big": 10**30}
    choice = {
        "index": 1,
        "message": message,
        "finish_reason": "stop",
        "token_ids": [5],
        "logprobs": {"content": [entry]},
    }
    other = choice | {"index": 0, "token_ids": [7, 8], "stop_reason": "x"}  # ids and log-probs that do not line up
    body = {"id": "i", "model": "m", "created": 1, "choices": [choice, other], "prompt_token_ids": [1, 2]}
    body["usage"] = {"prompt_tokens": 2, "completion_tokens": 3}
    whole = chat.read_reply(body)
    found = decode_reply(json.dumps(body).encode(), texts=texts)
    if not texts:
        whole = replace(
            whole, choices=tuple(replace(c, tokens=replace(c.tokens, texts=None, top=None)) for c in whole.choices)
        )
    assert found == whole
    assert chat.write_reply(found, REQUEST) == chat.write_reply(whole, REQUEST)
