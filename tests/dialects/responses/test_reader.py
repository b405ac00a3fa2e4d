"""Reading the Responses streams of different gateways: each item's text and payload exactly once. # R25"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.dialects import responses
from nemo_gym.dialects.dialect import Head
from nemo_gym.dialects.sse import Decoder
from nemo_gym.exchange.errors import ModelError
from nemo_gym.exchange.increments import Increment, fold
from nemo_gym.exchange.parts import Other, Part, Reasoning, Refusal, Text, ToolCall
from nemo_gym.exchange.reply import Usage
from tests.scripted import responses_events, responses_reply

THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]}
SECRET = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x9"}
SAID = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "Hello", "annotations": [], "logprobs": None}],
}
CALL = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": '{"a": 1}'}
CUSTOM = {"type": "custom_tool_call", "id": "ctc_1", "call_id": "c2", "name": "p", "input": "raw"}


def ended(*output: Any, **fields: Any) -> dict[str, Any]:
    usage = {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7}
    response = {"id": "resp_1", "model": "m", "created_at": 17, "status": "completed", "usage": usage}
    return {"type": "response.completed", "response": {**response, "output": list(output), **fields}}


def added(place: int | None, item: Any) -> dict[str, Any]:
    return {"type": "response.output_item.added", "output_index": place, "item": item}


def done(place: int | None, item: Any) -> dict[str, Any]:
    return {"type": "response.output_item.done", "output_index": place, "item": item}


def event(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": f"response.{kind}", **fields}


def read(*events: Any) -> tuple[tuple[Part, ...], tuple[Part, ...], Any]:
    """The parts of the reply, those of the increments on the way, and the reader."""
    reader = responses.stream_reader()
    increments: list[Increment] = []
    for one in events:
        increments += reader.feed(b"data: " + json.dumps(one).encode() + b"\n\n")
    reply = reader.finish()
    assert (reply.id, reply.model, reply.usage) == ("resp_1", "m", Usage(3, 4))
    return reply.choices[0].parts, fold(increments).get(0, ()), reader


THOUGHTS = {
    "summary in deltas": [
        added(0, {**THOUGHT, "summary": []}),
        event("reasoning_summary_part.added", item_id="rs_1", output_index=0, summary_index=0, part={"text": ""}),
        event("reasoning_summary_text.delta", item_id="rs_1", output_index=0, summary_index=0, delta="h"),
        event("reasoning_summary_text.delta", item_id="rs_1", output_index=0, summary_index=0, delta="m"),
        event("reasoning_summary_text.done", item_id="rs_1", output_index=0, summary_index=0, text="hm"),
        event("reasoning_summary_part.done", item_id="rs_1", output_index=0, summary_index=0, part={"text": "hm"}),
        done(0, THOUGHT),
    ],
    "content in deltas": [
        added(0, {"type": "reasoning", "id": "rs_1", "summary": [], "content": []}),
        event("reasoning_text.delta", item_id="rs_1", output_index=0, content_index=0, delta="hm"),
        event("reasoning_text.done", item_id="rs_1", output_index=0, content_index=0, text="hm"),
        done(
            0, {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
        ),
    ],
    "the names of the Open Responses specification": [
        added(0, {"type": "reasoning", "id": "rs_1", "summary": []}),
        event("reasoning.delta", item_id="rs_1", output_index=0, content_index=0, delta="hm"),
        event("reasoning.done", item_id="rs_1", output_index=0, content_index=0, text="hm"),
    ],
    "both, the same": [
        added(0, {"type": "reasoning", "id": "rs_1", "summary": []}),
        event("reasoning_text.delta", item_id="rs_1", output_index=0, content_index=0, delta="hm"),
        event("reasoning_summary_text.delta", item_id="rs_1", output_index=0, summary_index=0, delta="hm"),
        done(0, {**THOUGHT, "content": [{"type": "reasoning_text", "text": "hm"}]}),
    ],
    "only where its text ends": [
        added(0, {"type": "reasoning", "id": "rs_1", "summary": []}),
        event("reasoning_summary_text.done", item_id="rs_1", output_index=0, summary_index=0, text="hm"),
        done(0, {"type": "reasoning", "id": "rs_1", "summary": []}),
    ],
    "only where its part ends": [
        event("reasoning_summary_part.done", item_id="rs_1", output_index=0, summary_index=0, part={"text": "hm"}),
        done(0, {"type": "reasoning", "id": "rs_1", "summary": []}),
    ],
    "only as it is added": [added(0, THOUGHT), done(0, {"type": "reasoning", "id": "rs_1", "summary": []})],
    "only as it is done, and again": [done(0, THOUGHT), done(0, THOUGHT)],
    "a bare text": [done(0, {"type": "reasoning", "id": "rs_1", "text": "hm"})],
    "only in the last event": [],
}


@pytest.mark.parametrize("shape", THOUGHTS)
@pytest.mark.parametrize("listed", [True, False])
def test_reasoning_is_found_wherever_it_is_told(shape: str, listed: bool) -> None:  # R25
    events = THOUGHTS[shape]
    if not events and not listed:
        return
    answer = [
        added(1, {**SAID, "content": []}),
        event("output_text.delta", item_id="msg_1", output_index=1, delta="Hello"),
    ]
    parts, streamed, reader = read(*events, *answer, done(1, SAID), ended(*([THOUGHT, SAID] if listed else [])))
    expected = (Reasoning("hm", "rs_1"), Text("Hello", "msg_1"))
    if not events:  # the answer is out already, so it stands before it
        assert (parts, streamed, reader.divergences) == (expected[::-1], expected[1:], 1)
        return
    assert parts == expected
    assert reader.divergences == 0
    # What is behind an item that nothing ended comes with the reply.
    assert streamed == (expected if any(one["type"].endswith("item.done") for one in events) else expected[:1])


def test_only_a_payload() -> None:  # R24 R25
    for events in ([added(0, SECRET), done(0, SECRET)], [done(0, SECRET)], []):
        parts, streamed, _ = read(*events, ended(SECRET, SAID))
        assert parts == (Reasoning("", "rs_1", "x9"), Text("Hello", "msg_1"))
        assert streamed == (parts[:1] if events else ())
    told = {**THOUGHT, "encrypted_content": "x9"}
    deltas = [added(0, {**told, "summary": []}), event("reasoning_summary_text.delta", output_index=0, delta="hm")]
    parts, streamed, _ = read(*deltas, done(0, told), done(0, told), ended(told))
    assert parts == streamed == (Reasoning("hm", "rs_1", "x9"),)


TOLD = responses_reply({**THOUGHT, "encrypted_content": "x9"}, SAID, SECRET | {"id": "rs_2"}, CALL)
REQUEST = responses.read_request({"input": "q"})


def relayed(events: list[bytes]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The response as a client's stream ends with it, and as the unstreamed one would be."""
    reader = responses.stream_reader()
    writer = responses.stream_writer(REQUEST, Head("resp_scripted", "scripted-model", 1_700_000_000))
    out = writer.open()
    for event in events:
        out += b"".join(writer.feed(increment) for increment in reader.feed(event))
    reply = reader.finish()
    out += writer.close(reply)
    data = [json.loads(event.data) for event in Decoder().feed(out)]
    said = "".join(one["delta"] for one in data if one["type"] == "response.output_text.delta")
    assert said == "".join(part.text for part in reply.choices[0].parts if isinstance(part, Text))
    return data[-1]["response"], responses.write_reply(reply, REQUEST)


@settings(max_examples=100, deadline=None)
@given(st.sets(st.integers(1, 16)))
def test_whatever_a_backend_leaves_out_of_its_stream_the_views_agree(left_out: set[int]) -> None:  # V0 R25
    events = [data for _, data in responses_events(TOLD)]
    kept = [data for number, data in enumerate(events[:-1]) if number not in left_out]
    streamed, whole = relayed([*kept, events[-1]])
    assert streamed["output"] == whole["output"]
    payloads = [item["encrypted_content"] for item in whole["output"] if item["type"] == "reasoning"]
    assert sorted(payloads) == ["x9", "x9"]


def test_a_payload_that_only_the_last_event_tells() -> None:  # R24 R25
    kept = [data for _, data in responses_events(TOLD) if b"output_item.done" not in data]
    streamed, whole = relayed(kept)
    assert streamed["output"] == whole["output"]
    assert [item.get("encrypted_content") for item in streamed["output"]] == ["x9", None, "x9", None]


def test_several_parts_and_several_items() -> None:  # R24 R25
    two = {**THOUGHT, "summary": [{"type": "summary_text", "text": text} for text in ("a", "b")]}
    other = {**THOUGHT, "id": "rs_2", "encrypted_content": "y"}
    events = [
        added(0, {**two, "summary": []}),
        event("reasoning_summary_text.delta", item_id="rs_1", output_index=0, summary_index=0, delta="a"),
        event("reasoning_summary_text.delta", item_id="rs_1", output_index=0, summary_index=1, delta="b"),
        done(0, two),
        added(1, {**other, "summary": []}),
        event("reasoning_summary_text.delta", item_id="rs_2", output_index=1, summary_index=0, delta="hm"),
        done(1, other),
    ]
    parts, streamed, reader = read(*events, ended(two, other))
    assert parts == streamed == (Reasoning("a\nb", "rs_1"), Reasoning("hm", "rs_2", "y"))
    assert reader.divergences == 0


def test_calls_come_once_and_whole() -> None:  # R25
    search = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
    expected = (
        Other("responses", search),
        ToolCall("f", '{"a": 1}', "c1", "fc_1"),
        ToolCall("p", "raw", "c2", "ctc_1", custom=True),
    )
    in_deltas = [
        added(0, {**search, "status": "in_progress"}),
        event("web_search_call.searching", item_id="ws_1", output_index=0),
        done(0, search),
        added(1, {**CALL, "arguments": ""}),
        event("function_call_arguments.delta", item_id="fc_1", output_index=1, delta='{"a"'),
        event("function_call_arguments.delta", item_id="fc_1", output_index=1, delta=": 1}"),
        event("function_call_arguments.done", item_id="fc_1", output_index=1, arguments='{"a": 1}'),
        done(1, {**CALL, "arguments": ""}),
        added(2, {**CUSTOM, "input": ""}),
        event("custom_tool_call_input.done", item_id="ctc_1", output_index=2, input="raw"),
        done(2, {**CUSTOM, "input": ""}),
    ]
    for events in (in_deltas, [done(0, search), done(1, CALL), done(2, CUSTOM), done(2, CUSTOM)]):
        for listed in ([], [search, CALL, CUSTOM]):
            parts, streamed, reader = read(*events, ended(*listed))
            assert parts == streamed == expected
            assert reader.divergences == 0
    assert read(ended(search, CALL, CUSTOM))[0] == expected


def test_items_are_told_apart_however_they_are_numbered() -> None:  # R25
    expected = (Reasoning("hm", "rs_1"), Text("Hello", "msg_1"), ToolCall("f", '{"a": 1}', "c1", "fc_1"))
    for place in (0, None):
        parts, streamed, _ = read(
            added(place, {**THOUGHT, "summary": []}),
            event("reasoning_summary_text.delta", item_id="rs_1", output_index=place, delta="hm"),
            done(place, THOUGHT),
            added(place, {**SAID, "content": []}),
            event("output_text.delta", item_id="msg_1", output_index=place, delta="Hello"),
            done(place, SAID),
            done(place, CALL),
            ended(THOUGHT, SAID, CALL),
        )
        assert parts == streamed == expected
    # No item is ever added or done, and each event has another name for it.
    parts, streamed, _ = read(
        event("reasoning_summary_text.delta", item_id="a", output_index=0, delta="h"),
        event("reasoning_summary_text.delta", item_id="b", output_index=0, delta="m"),
        event("output_text.delta", item_id="c", output_index=1, delta="Hel"),
        event("output_text.delta", item_id="d", output_index=1, delta="lo"),
        ended(),
    )
    assert parts == (Reasoning("hm", "a"), Text("Hello", "c"))
    assert streamed == parts[:1]
    bare = [event("reasoning_text.delta", delta="hm"), event("output_text.delta", delta="Hello"), done(None, CALL)]
    assert read(*bare, ended())[0] == (Reasoning("hm"), Text("Hello"), expected[2])


def test_a_text_that_says_nothing_is_no_part() -> None:  # V0 R25
    empty = {"type": "output_text", "text": "", "annotations": []}
    refused = [{**SAID, "id": one, "content": [empty, {"type": "refusal", "refusal": "no"}]} for one in ("a", "b")]
    events = [
        event("refusal.delta", item_id=one, output_index=n, content_index=1, delta="no") for n, one in enumerate("ab")
    ]
    parts, streamed, _ = read(*events, done(0, refused[0]), done(1, refused[1]), ended(*refused))
    assert parts == streamed == (Refusal("no", "a"), Refusal("no", "b"))


def test_what_was_streamed_stands() -> None:  # R25
    delta = event("output_text.delta", item_id="msg_1", output_index=0, content_index=0, delta="Hel")
    for events in ([delta, done(0, SAID), ended(SAID)], [delta, ended(SAID)]):
        parts, streamed, reader = read(added(0, {**SAID, "content": []}), *events)
        assert parts == streamed == (Text("Hel", "msg_1"),)
        assert reader.divergences == 1
    parts, _, reader = read(
        event("output_text.delta", item_id="msg_1", output_index=0, content_index=0, delta="a"),
        event("refusal.delta", item_id="msg_1", output_index=0, content_index=1, delta="no"),
        ended(SAID),
    )
    assert parts == (Text("a", "msg_1"), Refusal("no", "msg_1"))
    assert reader.divergences == 1


def test_a_pair_in_two_pieces_is_one_character() -> None:  # A13
    halves = [b'"\\ud83d"', b'"\\ude00"']
    reader = responses.stream_reader()
    out = []
    for half in halves:
        out += reader.feed(b'data: {"type": "response.output_text.delta", "delta": ' + half + b"}\n\n")
    reader.feed(b"data: " + json.dumps(ended()).encode() + b"\n\n")
    assert [one.part for one in out] == [Text("\U0001f600")]
    assert reader.finish().choices[0].parts == (Text("\U0001f600"),)


def test_what_a_stream_begins_with_is_known_at_once() -> None:  # A15
    reader = responses.stream_reader()
    assert reader.begun is None
    response = {"id": "resp_1", "model": "m", "created_at": 17.0, "status": "in_progress", "output": []}
    reader.feed(b"data: " + json.dumps(event("created", response=response)).encode() + b"\n\n")
    assert (reader.begun.id, reader.begun.model, reader.begun.created) == ("resp_1", "m", 17)
    with pytest.raises(ModelError, match="ended before its last event"):
        reader.finish()
    reader.feed(b'data: {"type": "response.completed", "response": {"output": []}}\n\n')
    assert reader.finish().id == "resp_1"


@pytest.mark.parametrize(
    ("last", "kind", "message"),
    [
        (event("failed", response={"error": {"code": "server_error", "message": "boom"}}), "backend", "boom"),
        (event("failed", response={"error": {"code": "rate_limit_exceeded", "message": "s"}}), "rate_limit", "s"),
        ({"type": "error", "message": "boom", "code": "x"}, "backend", "boom"),
        (event("output_text.delta", delta=5), "backend", "malformed"),
        (event("completed", response=5), "backend", "malformed"),
        (event("output_item.done", item=None), "backend", "malformed"),
        (ended(5), "backend", "malformed|not a Responses"),
    ],
)
def test_a_stream_that_fails(last: Any, kind: str, message: str) -> None:  # R27
    with pytest.raises(ModelError, match=message) as caught:
        read(last)
    assert caught.value.kind == kind


NAMES = [
    *(f"output_item.{last}" for last in ("added", "done")),
    *(f"{name}.{last}" for name in ("content_part", "reasoning_summary_part") for last in ("added", "done")),
    *(
        f"{name}.{last}"
        for name in ("output_text", "refusal", "reasoning_text", "reasoning_summary_text", "function_call_arguments")
        for last in ("delta", "done")
    ),
    "created",
    "completed",
]
leaf = st.none() | st.integers(-1, 2) | st.sampled_from(["", "a", "rs_1", "message", "reasoning", "function_call"])
parts = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["output_text", "refusal", "reasoning_text", "summary_text"]) | leaf,
        "text": leaf,
        "refusal": leaf,
    },
)
some = st.lists(parts | leaf, max_size=2) | leaf
items = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(["type", "id", "role", "call_id", "name", "arguments", "text", "encrypted_content"], leaf),
        **dict.fromkeys(["content", "summary"], some),
    },
)
fields = {
    **dict.fromkeys(["output_index", "item_id", "content_index", "summary_index", "delta", "text", "arguments"], leaf),
    "item": items | leaf,
    "part": parts | leaf,
    "response": st.fixed_dictionaries({}, optional={"output": st.lists(items | leaf, max_size=2) | leaf, "id": leaf}),
}
events = st.fixed_dictionaries({"type": st.sampled_from([f"response.{name}" for name in NAMES])}, optional=fields)


@settings(max_examples=200, deadline=None)
@given(st.lists(events, max_size=6))
def test_any_events_are_read_or_refused(found: list[Any]) -> None:
    reader = responses.stream_reader()
    increments = []
    try:
        for one in found:
            increments += reader.feed(b"data: " + json.dumps(one).encode() + b"\n\n")
        reply = reader.finish()
    except ModelError:
        return
    said = "".join(getattr(one.part, "text", "") for one in increments)
    # Nothing that went out is missing from what is kept.
    assert len(said) <= len("".join(getattr(part, "text", "") for part in reply.choices[0].parts))
