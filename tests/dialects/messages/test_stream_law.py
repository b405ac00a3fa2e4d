"""The law for Messages: the events tell the same as the unstreamed object, in the grammar of the API. # V0 M2"""

import json
from functools import partial

from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import Message, RawMessageStreamEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from pydantic import TypeAdapter

from nemo_gym.dialects import messages
from nemo_gym.dialects.dialect import Head, replay
from nemo_gym.dialects.sse import Decoder
from nemo_gym.exchange.errors import ModelError
from nemo_gym.exchange.increments import Increment, unfold
from nemo_gym.exchange.parts import Origin, Other, Reasoning, Refusal, Text, ToolCall
from nemo_gym.exchange.reply import Choice, ModelReply, Usage
from tests.scripted import messages_events, messages_reply
from tests.texts import long_texts

EVENT = TypeAdapter(RawMessageStreamEvent)
REQUEST = messages.read_request({"messages": [{"role": "user", "content": "q"}], "max_tokens": 9, "stream": True})
OMITTED = messages.read_request(
    {**REQUEST.origin.body, "thinking": {"type": "adaptive", "display": "omitted"}},
)
SEARCH = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "x"}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": []}
CITED = {
    "type": "char_location",
    "cited_text": "x",
    "document_index": 0,
    "document_title": None,
    "start_char_index": 0,
    "end_char_index": 1,
}
CITING = Text("said", origin=Origin("messages", {"type": "text", "citations": [CITED, CITED]}))
words = (
    st.text(st.characters(exclude_categories=("Cs",)), max_size=40)
    | long_texts
    | st.sampled_from([" ", "\n\n", "e\u0301\u0301", "👩‍👩‍👧", "\x00", " \t lead and trail \t "])
)
arguments = words | st.sampled_from(
    ["{}", '{"a": 1.50}', '{"a": [1, {"b": null}]}', "[1]", "null", '{"a": ', '{"a": NaN}', '{"a": "\\ud800"}', "", "3"]
)


@st.composite
def replies(draw):
    parts = []
    for place in range(draw(st.integers(0, 6))):
        kind = draw(st.sampled_from("ttrrphcccos"))
        own = draw(st.sampled_from(["", f"x{place}"]))
        if kind == "t":
            parts.append(Text(draw(words), own))
        elif kind == "r":
            parts.append(Reasoning(draw(words), own))
        elif kind == "p":
            parts.append(Reasoning(draw(words), own, "opaque"))
        elif kind == "h":
            parts.append(Reasoning("", own, "sealed", Origin("messages", {"type": "thinking"})))
        elif kind == "c":
            call_id = draw(st.sampled_from([f"call_{place}", f"functions.f:{place}", ""]))
            parts.append(ToolCall("f", draw(arguments), call_id, custom=draw(st.integers(0, 5)) == 0))
        elif kind == "o":
            parts += [Other("messages", SEARCH), Other("messages", FOUND)]
        else:
            parts.append(replace(CITING, id=f"s{place}"))
    if draw(st.integers(0, 5)) == 0:
        parts.append(Refusal(draw(words)))
    finish = draw(st.sampled_from(["stop", "length", "tool_calls", "content_filter", "stop_sequence", "refusal"]))
    count = st.none() | st.integers(0, 1000)
    usage = Usage(draw(count), draw(count), draw(count), draw(count))
    stop = "END" if finish == "stop_sequence" else None
    choices = (Choice(0, tuple(parts), finish, stop_sequence=stop),) if draw(st.integers(0, 9)) else ()
    return ModelReply("msg_1", "m", 17, choices, usage)


def events_of(data):
    found = []
    for event in Decoder().feed(data):
        body = json.loads(event.data)
        assert event.event == body["type"]
        found.append(body)
    return found


def folded(events):
    """As the stock client accumulates them; every event is one that its types describe."""
    snapshot = None
    buffers = {}
    for event in events:
        if event["type"] in ("ping", "error"):
            continue
        snapshot = accumulate_event(event=EVENT.validate_python(event), current_snapshot=snapshot, json_bufs=buffers)
    return snapshot


def check_grammar(events):
    """M2."""
    kinds = [event["type"] for event in events if event["type"] != "ping"]
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    assert events[0]["message"]["stop_reason"] is None
    count, is_open = 0, False
    for event in events[1:]:
        kind = event["type"].removeprefix("content_block_")
        if kind == "start":
            assert not is_open and event["index"] == count
            is_open = True
        elif kind == "delta":
            assert is_open and event["index"] == count
        elif kind == "stop":
            assert is_open and event["index"] == count
            count, is_open = count + 1, False
    assert not is_open


def tidy(message):
    dumped = message.model_dump(exclude_none=True)
    for block in dumped["content"]:
        block.pop("parsed_output", None)
    return dumped


def check_law(stream, reply, request=REQUEST):
    whole = messages.write_reply(reply, request)
    events = events_of(stream)
    check_grammar(events)
    assert tidy(folded(events)) == tidy(Message.model_validate(whole))
    assert all(block["signature"] for block in whole["content"] if block["type"] == "thinking")
    assert all(isinstance(block["input"], dict) for block in whole["content"] if block["type"] == "tool_use")


@settings(max_examples=50, deadline=None)
@given(replies(), st.sampled_from([REQUEST, OMITTED]))
def test_a_replay_tells_the_unstreamed_reply(reply, request):
    check_law(b"".join(replay(messages.stream_writer(request, Head.of(reply)), reply)), reply, request)


@settings(max_examples=50, deadline=None)
@given(replies(), st.data())
def test_a_relay_may_stop_anywhere(reply, data):
    writer = messages.stream_writer(REQUEST, Head.of(reply))
    increments = list(unfold(reply))
    out = writer.open()
    for increment in increments[: data.draw(st.integers(0, len(increments)))]:
        out += writer.feed(increment)
        if data.draw(st.booleans()):
            out += writer.keep_alive()
    check_law(out + writer.close(reply), reply)


@settings(max_examples=30, deadline=None)
@given(replies(), st.integers(1, 50))
def test_reading_our_own_stream_gives_the_reply(reply, cut):
    stream = b"".join(replay(messages.stream_writer(REQUEST, Head.of(reply)), reply))
    reader = messages.stream_reader()
    for start in range(0, len(stream), cut):
        reader.feed(stream[start : start + cut])
    read, whole = reader.finish(), messages.write_reply(reply, REQUEST)
    if whole["stop_reason"] == "max_tokens" and whole["content"] and whole["content"][-1]["type"] == "tool_use":
        assert messages.write_reply(read, REQUEST)["content"] == whole["content"][:-1]  # A19: it may have been cut
    else:
        assert messages.write_reply(read, REQUEST) == whole
    again = messages.read_reply(whole)
    spoken = partial(map, lambda part: (type(part), part.id, part.text) if isinstance(part, Text | Reasoning) else None)
    assert list(spoken(read.choices[0].parts)) == list(spoken(again.choices[0].parts))
    assert (read.usage, read.choices[0].finish) == (again.usage, again.choices[0].finish)


def relayed(pieces):
    """A backend's stream read and written as it comes, and the reply that came of it."""
    reader, writer, out = messages.stream_reader(), None, b""
    for piece in pieces:
        for increment in reader.feed(piece):
            if writer is None:
                writer = messages.stream_writer(REQUEST, Head.of(reader.begun))
                out = writer.open()
            out += writer.feed(increment)
    read = reader.finish()
    if writer is None:
        writer = messages.stream_writer(REQUEST, Head.of(read))
        out = writer.open()
    return out + writer.close(read), read


@settings(max_examples=30, deadline=None)
@given(replies(), st.integers(1, 50))
def test_a_relayed_stream_of_this_dialect_is_told_again(reply, cut):
    """A stream read in any pieces and written as it is read is the reply that came of it."""
    stream = b"".join(replay(messages.stream_writer(REQUEST, Head.of(reply)), reply))
    check_law(*relayed(stream[start : start + cut] for start in range(0, len(stream), cut)))


@settings(max_examples=50, deadline=None)
@given(replies(), st.sets(st.integers(0, 8)))
def test_blocks_that_a_backend_never_ends_are_told_whole(reply, unended):
    """What was signed, called or cited in them is out in its place; the next block ends the one before."""
    stream = b"".join(replay(messages.stream_writer(REQUEST, Head.of(reply)), reply))
    events = [b"data: " + json.dumps(event).encode() + b"\n\n" for event in events_of(stream)]
    kept = [one for one in events if not any(b'"content_block_stop", "index": %d}' % place in one for place in unended)]
    out, read = relayed(kept)
    check_law(out, read)
    assert messages.write_reply(read, REQUEST) == messages.write_reply(relayed(events)[1], REQUEST)


def test_a_signature_of_a_block_that_nothing_ends():
    blocks = ({"type": "thinking", "thinking": "Hm.", "signature": "seal"}, {"type": "text", "text": "Hi"})
    events = [data for _, data in messages_events(messages_reply(*blocks)) if b"content_block_stop" not in data]
    out, read = relayed(events)
    assert folded(events_of(out)).content[0].signature == "seal"
    check_law(out, read)


def test_what_the_last_block_cites_though_nothing_ends_it():
    reply = ModelReply("msg_1", "m", 17, (Choice(0, (CITING,), "stop"),))
    stream = b"".join(replay(messages.stream_writer(REQUEST, Head.of(reply)), reply))
    events = [b"data: " + json.dumps(event).encode() + b"\n\n" for event in events_of(stream)]
    out, read = relayed([data for data in events if b"content_block_stop" not in data])
    assert len(folded(events_of(out)).content[0].citations) == 2
    check_law(out, read)


def test_no_call_closes_before_the_end():  # A8
    parts = (Reasoning("think"), Text("hello"), ToolCall("f", '{"a": 1}', "c1"), Text("after"))
    reply = ModelReply("msg_1", "m", 17, (Choice(0, parts, "tool_calls"),))
    writer = messages.stream_writer(REQUEST, Head.of(reply))
    out = writer.open() + b"".join(writer.feed(increment) for increment in unfold(reply))
    assert b'"tool_use"' not in out
    assert b'"hello"' in out


def test_a_failure_ends_the_stream():  # M2
    writer = messages.stream_writer(REQUEST, Head("msg_1", "m", 17))
    out = writer.open() + writer.feed(Increment(Text("he")))
    events = events_of(out + writer.fail(ModelError(529, "overloaded", "busy")))
    assert [event["type"] for event in events] == [
        "message_start",
        "ping",
        "content_block_start",
        "content_block_delta",
        "error",
    ]
    assert events[-1]["error"] == {"type": "overloaded_error", "message": "busy"}


def test_keep_alive_is_a_ping():  # A7
    writer = messages.stream_writer(REQUEST, Head("msg_1", "m", 17))
    assert events_of(writer.open())[1] == {"type": "ping"}
    assert writer.keep_alive() == b'event: ping\ndata: {"type":"ping"}\n\n'
