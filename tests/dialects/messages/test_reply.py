"""Messages objects in both directions: blocks, ends, usage, ids, errors. # M3 M5"""

import json

import pytest
from anthropic.types import Message
from hypothesis import example, given
from hypothesis import strategies as st

from nemo_gym.dialects import chat, messages, responses
from nemo_gym.dialects.dialect import Head, replay
from nemo_gym.dialects.messages import ids
from nemo_gym.dialects.signature import is_ours, sign, use_secret
from nemo_gym.exchange.errors import InvalidRequest, ModelError
from nemo_gym.exchange.increments import fold
from nemo_gym.exchange.parts import Other, Reasoning, Refusal, Text, ToolCall
from nemo_gym.exchange.reply import Choice, ModelReply, Usage
from tests.scripted import messages_events, messages_reply

REQUEST = messages.read_request({"messages": [{"role": "user", "content": "q"}], "max_tokens": 9})


def written(*parts, finish="stop", **fields):
    body = messages.write_reply(ModelReply("msg_1", "m", 17, (Choice(0, parts, finish),), **fields), REQUEST)
    Message.model_validate(body)
    return body


@given(st.text(st.characters(exclude_categories=("Cs",)), max_size=20))
@example("functions.read:0")
@example("")
@example("toolu_ng_a")
@example("_2e")
def test_an_id_is_allowed_and_comes_back(call_id):  # M5
    safe = ids.safe(call_id)
    assert ids.original(safe) == call_id
    assert safe and all(letter.isascii() and (letter.isalnum() or letter in "_-") for letter in safe)


@pytest.mark.parametrize("call_id", ["toolu_01A_b-c", "call_1", "9"])
def test_an_allowed_id_stays(call_id):
    assert ids.safe(call_id) == call_id == ids.original(call_id)


def test_two_ids_never_share_a_spelling():
    assert ids.safe("a.b") != ids.safe(ids.safe("a.b"))
    assert ids.original("toolu_ng_zz.") == "toolu_ng_zz."  # none of ours


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"a": 1}', {"a": 1}),
        ("", {}),
        ("null", {}),
        ("[1]", {}),
        ('"x"', {}),
        ("3", {}),
        ('{"a": ', {}),
        ('{"n": 123456789012345678901234567890}', {"n": 123456789012345678901234567890}),
    ],
)
def test_the_input_is_an_object(arguments, expected):  # M5 A13
    reply = ModelReply("x", "m", 1, (Choice(0, (ToolCall("f", arguments, "c"),), "tool_calls"),))
    assert messages.write_reply(reply, REQUEST)["content"][0]["input"] == expected
    assert (
        chat.write_reply(reply, REQUEST)["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] == arguments
    )


@pytest.mark.parametrize(
    ("finish", "parts", "reason"),
    [
        ("stop", (Text("x"),), "end_turn"),
        ("stop", (ToolCall("f", "{}", "c"),), "tool_use"),
        ("tool_calls", (ToolCall("f", "{}", "c"),), "tool_use"),
        ("stop_sequence", (ToolCall("f", "{}", "c"),), "tool_use"),
        ("length", (Text("x"),), "max_tokens"),
        ("stop_sequence", (Text("x"),), "stop_sequence"),
        ("content_filter", (), "refusal"),
        ("refusal", (Text("x"),), "refusal"),
        ("stop", (Refusal("no"),), "refusal"),
    ],
)
def test_stop_reasons(finish, parts, reason):  # M3
    assert written(*parts, finish=finish)["stop_reason"] == reason


def test_thinking_always_has_a_signature():
    ours, theirs, hidden = written(Reasoning("a"), Reasoning("b", "r2", "theirs"), Reasoning("", "r3", "sealed"))[
        "content"
    ]
    assert ours == {"type": "thinking", "thinking": "a", "signature": sign("a")}
    assert theirs == {"type": "thinking", "thinking": "b", "signature": "theirs"}
    assert hidden == {"type": "redacted_thinking", "data": "sealed"}


def test_thinking_whose_text_is_not_wanted_is_signed_without_it():
    body = {"messages": [{"role": "user", "content": "q"}], "max_tokens": 9}
    request = messages.read_request(body | {"thinking": {"type": "adaptive", "display": "omitted"}})
    reply = ModelReply("msg_1", "m", 17, (Choice(0, (Reasoning("a"), Reasoning("b", "r2", "theirs")), "stop"),))
    ours, theirs = messages.write_reply(reply, request)["content"]
    assert ours == {"type": "thinking", "thinking": "", "signature": sign("")}
    assert theirs == {"type": "thinking", "thinking": "", "signature": "theirs"}
    told = b"".join(replay(messages.stream_writer(request, Head.of(reply)), reply))
    assert b"thinking_delta" not in told and told.count(b'"signature_delta"') == 2
    again = messages.read_request({**body, "messages": [*body["messages"], {"role": "assistant", "content": [ours]}]})
    assert again.messages[-1].parts[0].payload is None  # one of ours is known again


def test_a_signature_holds_for_one_text_and_one_secret():
    use_secret("one")
    signed = sign("a")
    assert (
        is_ours("a", signed) and not is_ours("b", signed) and not is_ours("a", "theirs") and not is_ours("a", "ng1.é")
    )
    use_secret("two")
    assert not is_ours("a", signed)
    use_secret("one")
    assert is_ours("a", signed)


def test_empty_parts_are_no_blocks():
    assert written(Text(""), Reasoning(""), Other("responses", {"type": "x"}))["content"] == []


def test_usage_leaves_out_what_was_cached():  # M3
    usage = written(Text("x"), usage=Usage(100, 7, 5, 60))["usage"]
    assert usage == {
        "input_tokens": 40,
        "cache_creation": None,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 60,
        "inference_geo": None,
        "output_tokens": 7,
        "output_tokens_details": {"thinking_tokens": 5},
        "server_tool_use": None,
        "service_tier": None,
    }
    assert written(Text("x"))["usage"]["input_tokens"] == 0


def provider_reply():
    usage = {
        "input_tokens": 40,
        "cache_creation_input_tokens": 8,
        "cache_read_input_tokens": 60,
        "output_tokens": 7,
        "cache_creation": None,
        "inference_geo": None,
        "output_tokens_details": None,
        "service_tier": "standard",
        "server_tool_use": {"web_search_requests": 1, "web_fetch_requests": 0},
    }
    return messages_reply(
        {"type": "thinking", "thinking": "", "signature": "sealed"},
        {"type": "text", "text": "one", "citations": None},
        {"type": "text", "text": "two", "citations": None},
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "x"}},
        {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
        {"type": "tool_use", "id": "t", "name": "f", "input": {}, "caller": {"type": "direct"}},
        usage=usage,
        stop_reason="pause_turn",
        container={"id": "c", "expires_at": "2030-01-01T00:00:00Z"},
    )


def test_a_provider_s_reply_is_told_as_it_came():
    body = provider_reply()
    reply = messages.read_reply(body)
    assert reply.usage == Usage(108, 7, None, 60)
    assert [type(part).__name__ for part in reply.choices[0].parts] == [
        "Reasoning",
        "Text",
        "Text",
        "Other",
        "Other",
        "ToolCall",
    ]
    assert messages.write_reply(reply, REQUEST) == body | {"stop_details": None}
    texts = responses.write_reply(reply, REQUEST)["output"]
    assert [item["content"][0]["text"] for item in texts if item["type"] == "message"] == ["one", "two"]
    assert len({item["id"] for item in texts}) == len(texts)  # R26


def test_thinking_beside_hidden_thinking_stays_two_blocks():
    body = messages_reply(
        {"type": "thinking", "thinking": "a", "signature": sign("a")},
        {"type": "redacted_thinking", "data": "sealed"},
        {"type": "thinking", "thinking": "b", "signature": "theirs"},
    )
    assert messages.write_reply(messages.read_reply(body), REQUEST)["content"] == body["content"]
    reader = messages.stream_reader()
    increments = [one for _, data in messages_events(body) for one in reader.feed(data)]
    assert fold(increments)[0] == messages.read_reply(body).choices[0].parts == reader.finish().choices[0].parts


@pytest.mark.parametrize("cut", [1, 7, 10_000])
def test_a_provider_s_stream_is_read_as_its_reply(cut):
    body = provider_reply()
    stream = b"".join(data for _, data in messages_events(body))
    reader = messages.stream_reader()
    increments = [one for at in range(0, len(stream), cut) for one in reader.feed(stream[at : at + cut])]
    assert reader.finish() == messages.read_reply(body)
    assert reader.begun.id == "msg_scripted"
    assert "".join(one.part.text for one in increments if isinstance(one.part, Text)) == "onetwo"


def test_the_model_s_own_arguments_are_kept():
    call = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    events = [
        {"type": "message_start", "message": messages_reply(content=[], stop_reason=None)},
        {"type": "content_block_start", "index": 0, "content_block": call},
        *(
            {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": piece}}
            for piece in ("", '{"a":', "1.50}")
        ),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 1}},
    ]
    reader = messages.stream_reader()
    reader.feed("".join(f"data: {json.dumps(event)}\n\n" for event in events).encode())
    (part,) = reader.finish().choices[0].parts
    assert part.arguments == '{"a":1.50}'


@pytest.mark.parametrize("lost", [1, 2])
def test_a_stream_that_just_stops_has_failed(lost):
    events = messages_events(messages_reply())
    reader = messages.stream_reader()
    for _, data in events[: len(events) - 1 - lost]:
        reader.feed(data)
    with pytest.raises(ModelError, match="ended before its last event"):
        reader.finish()


@pytest.mark.parametrize(("kind", "status"), [("overloaded_error", 529), ("rate_limit_error", 429), ("strange", 502)])
def test_an_error_in_a_stream_is_the_backend_s(kind, status):
    reader = messages.stream_reader()
    error = {"type": "error", "error": {"type": kind, "message": "busy"}}
    with pytest.raises(ModelError) as caught:
        reader.feed(f"event: error\ndata: {json.dumps(error)}\n\n".encode())
    assert (caught.value.status, caught.value.message) == (status, "busy")


@pytest.mark.parametrize(
    "body", [{}, {"content": []}, {"type": "error", "error": {}}, {"id": "x", "content": 3, "stop_reason": "end_turn"}]
)
def test_what_is_no_reply(body):
    with pytest.raises(ModelError) as caught:
        messages.read_reply(body)
    assert caught.value.status == 502


def test_a_reply_without_a_stop_reason_has_failed():  # A19
    with pytest.raises(ModelError, match="without a stop reason"):
        messages.read_reply(messages_reply(stop_reason=None))


TOO_LARGE = (
    "'max_tokens' or 'max_completion_tokens' is too large: 32000. This model's maximum context length is 4096 tokens "
    "and your request has 120 input tokens (32000 > 4096 - 120)."
)


@pytest.mark.parametrize(
    ("error", "written_error"),
    [
        (InvalidRequest("tools: no", param="tools"), ("invalid_request_error", "tools: no", {"param": "tools"})),
        (ModelError(403, "auth", "no"), ("permission_error", "no", {"status": 403})),
        (ModelError(404, "not_found", "no"), ("not_found_error", "no", {"status": 404})),
        (ModelError(502, "backend", "x"), ("api_error", "x", None)),
        (ModelError(503, "capture", "x"), ("api_error", "x", None)),
        (ModelError(501, "invalid", "x"), ("api_error", "x", None)),
        (
            ModelError(
                400,
                "invalid",
                "This model's maximum context length is 64 tokens, and the prompt has 99.",
                code="context_length_exceeded",
                param="messages",
            ),
            (
                "invalid_request_error",
                "prompt is too long: 99 tokens > 64 maximum",
                {"error_code": "context_length_exceeded", "param": "messages"},
            ),
        ),
        (
            ModelError(400, "invalid", TOO_LARGE),
            (
                "invalid_request_error",
                "input length and `max_tokens` exceed context limit: 120 + 32000 > 4096, "
                "decrease input length or `max_tokens` and try again",
                None,
            ),
        ),
    ],
)
def test_errors(error, written_error):  # A5 A12
    body = messages.write_error(error)
    kind, message, details = written_error
    assert body["type"] == "error"
    assert body["error"] == {"type": kind, "message": message} | ({"details": details} if details else {})


def test_a_backend_s_words_pass():
    said = {"type": "error", "error": {"type": "billing_error", "message": "pay", "details": {"error_code": "spent"}}}
    error = messages.read_error(402, {"Retry-After": "3"}, json.dumps(said).encode())
    assert (error.code, error.retry_after) == ("spent", 3.0)
    error.call_id = "0123-45"
    assert messages.write_error(error) == {
        "type": "error",
        "error": {"type": "billing_error", "message": "pay", "details": {"error_code": "spent", "status": 402}},
        "request_id": "req_012345",
    }
    assert chat.write_error(error)["error"]["type"] == "billing_error"
