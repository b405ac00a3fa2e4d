"""The law for Responses: the events tell the same as the unstreamed object, in the grammar of the API. # V0 R21-R30"""

import json

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import OpenAI
from openai.types.responses import Response

from nemo_gym.dialects import responses
from nemo_gym.dialects.cutoff import shown
from nemo_gym.dialects.dialect import Head, replay
from nemo_gym.dialects.responses.objects import NeMoGymResponse
from nemo_gym.dialects.sse import Decoder
from nemo_gym.exchange.errors import ModelError
from nemo_gym.exchange.increments import Increment, unfold
from nemo_gym.exchange.parts import Reasoning, Refusal, Text, ToolCall, merged
from nemo_gym.exchange.reply import Choice, ModelReply, Usage
from tests.dialects.responses.grammar import check_grammar
from tests.texts import long_texts

words = st.text(st.characters(exclude_categories=("Cs",)), max_size=40) | long_texts


@st.composite
def replies(draw):
    parts = []
    for place in range(draw(st.integers(0, 6))):
        kind = draw(st.sampled_from("trpfcx"))
        if kind == "t":
            parts.append(Text(draw(words), draw(st.sampled_from(["", f"m{place}"]))))
        elif kind == "r":
            parts.append(Reasoning(draw(words), draw(st.sampled_from(["", f"r{place}"]))))
        elif kind == "p":
            parts.append(Reasoning(draw(words), f"r{place}", "opaque"))
        elif kind == "f":
            parts.append(Refusal(draw(words)))
        else:
            cut = draw(st.sampled_from(['{"a": 1}', "{}", "", '{"a": ']))
            parts.append(ToolCall("f", cut, f"call_{place}", custom=kind == "x"))
    finish = draw(st.sampled_from(["stop", "length", "tool_calls", "content_filter"]))
    count = st.none() | st.integers(0, 1000)
    usage = Usage(draw(count), draw(count), draw(count), draw(count))
    choices = (Choice(0, tuple(parts), finish),) if draw(st.integers(0, 9)) else ()
    return ModelReply("resp_1", "m", 17, choices, usage)


REQUEST = responses.read_request(
    {"input": "q", "stream": True, "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}]}
)


def events_of(data: bytes) -> list[dict]:
    found = []
    for event in Decoder().feed(data):
        body = json.loads(event.data)
        assert event.event == body["type"]
        found.append(body)
    return found


def check_law(stream: bytes, reply: ModelReply) -> None:
    whole = responses.write_reply(reply, REQUEST)
    events = events_of(stream)
    assert check_grammar(events) == whole["output"]
    assert events[-1]["response"] == whole
    Response.model_validate(whole)
    NeMoGymResponse.model_validate(whole)
    found = [item["id"] for item in whole["output"]]
    assert len(set(found)) == len(found)


@settings(max_examples=80, deadline=None)
@given(replies())
def test_a_replay_tells_the_unstreamed_reply(reply):
    at_once = b"".join(replay(responses.stream_writer(REQUEST, Head.of(reply)), reply))
    check_law(at_once, reply)
    writer = responses.stream_writer(REQUEST, Head.of(reply))
    assert at_once == writer.open() + b"".join(map(writer.feed, unfold(reply))) + writer.close(reply)


@settings(max_examples=60, deadline=None)
@given(replies(), st.data())
def test_a_relay_may_stop_anywhere(reply, data):
    writer = responses.stream_writer(REQUEST, Head.of(reply))
    increments = list(unfold(reply))
    out = writer.open()
    for increment in increments[: data.draw(st.integers(0, len(increments)))]:
        out += writer.feed(increment)
        if data.draw(st.booleans()):
            out += writer.keep_alive()
    check_law(out + writer.close(reply), reply)


@settings(max_examples=60, deadline=None)
@given(replies(), st.integers(1, 50))
def test_reading_our_own_stream_gives_the_reply(reply, cut):  # R12 R25
    stream = b"".join(replay(responses.stream_writer(REQUEST, Head.of(reply)), reply))
    reader = responses.stream_reader()
    for start in range(0, len(stream), cut):
        reader.feed(stream[start : start + cut])
    read = reader.finish()
    assert reader.divergences == 0
    written = responses.write_reply(reply, REQUEST)
    assert read == responses.read_reply(written)
    (choice,) = read.choices
    if shown(choice, "responses") == tuple(merged(choice.parts)):  # else what now comes last is a cut call to a reader
        assert responses.write_reply(read, REQUEST)["output"] == written["output"]


PARTS = (
    Reasoning("think"),
    Text("hello"),
    ToolCall("f", '{"a": 1}', "call_1"),
    ToolCall("f", "{}", "call_2"),
    Text("after"),
)


def test_the_stock_client_folds_the_stream_to_the_same_object():
    reply = ModelReply("resp_1", "m", 17, (Choice(0, PARTS, "tool_calls"),), Usage(3, 4, 1))
    stream = b"".join(replay(responses.stream_writer(REQUEST, Head.of(reply)), reply))
    transport = httpx.MockTransport(
        lambda _: httpx.Response(200, content=stream, headers={"content-type": "text/event-stream"})
    )
    client = OpenAI(api_key="k", base_url="http://model/v1", http_client=httpx.Client(transport=transport))
    with client.responses.stream(model="m", input="q") as events:
        for _ in events:
            pass
        final = events.get_final_response()
    whole = responses.write_reply(reply, REQUEST)
    folded = [item.to_dict() for item in final.output]
    for item in folded:
        item.pop("parsed_arguments", None)
        for part in item.get("content", ()):
            part.pop("parsed", None)
    assert folded == whole["output"]
    assert final.output_text == "helloafter"
    assert final.usage.total_tokens == 7


def test_order_and_ids():  # R20 R26
    reply = ModelReply("resp_1", "m", 17, (Choice(0, PARTS, "tool_calls"),))
    output = responses.write_reply(reply, REQUEST)["output"]
    assert [(item["type"], item["id"]) for item in output] == [
        ("reasoning", "rs_resp_1_0"),
        ("message", "msg_resp_1_1"),
        ("function_call", "fc_resp_1_2"),
        ("function_call", "fc_resp_1_3"),
        ("message", "msg_resp_1_4"),
    ]
    long = ModelReply("x" * 300, "m", 17, reply.choices)
    assert all(len(item["id"]) <= 64 for item in responses.write_reply(long, REQUEST)["output"])


def test_no_call_closes_before_the_end():  # A8
    reply = ModelReply("resp_1", "m", 17, (Choice(0, PARTS, "tool_calls"),))
    writer = responses.stream_writer(REQUEST, Head.of(reply))
    out = writer.open() + b"".join(writer.feed(increment) for increment in unfold(reply))
    assert b"function_call" not in out
    assert b'"hello"' in out


def test_a_cut_off_call_is_withheld_and_its_id_is_no_others():  # A19 R26
    parts = (Text("a"), ToolCall("f", "{}", "c1"), ToolCall("f", '{"a": ', "c2"))
    reply = ModelReply("resp_1", "m", 17, (Choice(0, parts, "length"),))
    whole = responses.write_reply(reply, REQUEST)
    assert [item["id"] for item in whole["output"]] == ["msg_resp_1_0", "fc_resp_1_1"]
    assert whole["status"] == "incomplete"
    assert whole["incomplete_details"] == {"reason": "max_output_tokens"}


@pytest.mark.parametrize("fed", [0, 1, 2])
def test_a_failure_ends_the_stream_properly(fed):  # R28
    writer = responses.stream_writer(REQUEST, Head("resp_1", "m", 17))
    out = writer.open()
    for part in (Reasoning("hm"), Text("he"))[:fed]:
        out += writer.feed(Increment(part))
    events = events_of(out + writer.fail(ModelError(502, "backend", "gone")))
    check_grammar(events)
    assert events[-2]["type"] == "error"
    assert events[-2]["message"] == "gone"
    assert events[-1]["response"]["status"] == "failed"
    assert events[-1]["response"]["error"] == {"code": "server_error", "message": "gone"}


def test_usage():  # R29
    known = responses.write_reply(ModelReply("r", "m", 1, (), Usage(3, 4)), REQUEST)["usage"]
    assert known["total_tokens"] == 7
    assert known["output_tokens_details"] == {"reasoning_tokens": 0}
    assert responses.write_reply(ModelReply("r", "m", 1, (), Usage(3, None)), REQUEST)["usage"] is None


R32 = frozenset(
    {
        "background",
        "completed_at",
        "frequency_penalty",
        "max_tool_calls",
        "presence_penalty",
        "prompt_cache_key",
        "safety_identifier",
        "service_tier",
        "store",
        "temperature",
        "text",
        "tools",
        "top_logprobs",
        "top_p",
        "truncation",
    }
)


def test_every_field_of_the_sdks_response_that_is_required_everywhere_is_there():  # R32
    whole = responses.write_reply(ModelReply("r", "m", 1, ()), REQUEST)
    for field in R32:
        assert field in whole, field
    assert whole["completed_at"] == 1
    assert whole["tools"][0]["name"] == "f"
