"""Thoughts with what a provider signed or sealed, to a chat client and back. # V0"""

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from nemo_gym.dialects import chat, codec, messages, responses
from nemo_gym.dialects.signature import sign
from nemo_gym.exchange.parts import Message, Origin, Part, Reasoning, Text
from nemo_gym.exchange.reply import Choice, ModelReply

REQUEST = chat.read_request({"messages": [{"role": "user", "content": "q"}]})
OMITTED = Origin("messages", {"type": "thinking", "thinking": "", "signature": "s"})


def written(*parts: Part) -> dict[str, Any]:
    """The message that a client gets."""
    reply = ModelReply("x", "m", 1, (Choice(0, parts, "stop"),))
    return chat.write_reply(reply, REQUEST)["choices"][0]["message"]


def brought(message: dict[str, Any]) -> tuple[Part, ...]:
    """What a message says that a client brings back."""
    body = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", **message}]}
    return chat.read_request(body).messages[1].parts


def test_thoughts_travel_whole_and_once() -> None:
    parts = (Reasoning("a", payload="s"), Reasoning("", "m_1", "sealed"), Reasoning("b", "rs_1", "e"), Text("Hi"))
    message = written(*parts)
    assert message["reasoning_content"] == "ab"
    assert message["reasoning_details"] == [
        {"type": "reasoning.text", "text": "a", "signature": "s", "index": 0},
        {"type": "reasoning.encrypted", "data": "sealed", "id": "m_1", "index": 1},
        {"type": "reasoning.text", "text": "b", "signature": "e", "id": "rs_1", "index": 2},
    ]
    assert brought(message) == parts
    assert brought({**message, "reasoning_content": None}) == parts
    sent = Message("assistant", brought(message))
    thinking = messages.write_request(replace(REQUEST, messages=(sent,)))["messages"][0]["content"]
    assert thinking == [
        {"type": "thinking", "thinking": "a", "signature": "s"},
        {"type": "redacted_thinking", "data": "sealed"},
        {"type": "thinking", "thinking": "b", "signature": "e"},
        {"type": "text", "text": "Hi"},
    ]
    items = responses.write_request(replace(REQUEST, messages=(sent,)))["input"]
    assert items[2] == {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [{"type": "summary_text", "text": "b"}],
        "encrypted_content": "e",
    }


def test_nothing_is_added_where_nothing_was_signed() -> None:
    assert "reasoning_details" not in written(Reasoning("a"), Text("Hi"))
    assert "reasoning_details" not in written(Text("Hi"))


def test_signed_thinking_whose_text_was_left_out_stays_thinking() -> None:
    message = written(Reasoning("", payload="s", origin=OMITTED), Text("Hi"))
    assert message["reasoning_details"] == [{"type": "reasoning.text", "text": "", "signature": "s", "index": 0}]
    sent = messages.write_request(replace(REQUEST, messages=(Message("assistant", brought(message)),)))
    assert sent["messages"][0]["content"][0] == {"type": "thinking", "thinking": "", "signature": "s"}


def test_a_signature_of_our_own_says_nothing_to_a_provider() -> None:
    detail = {"type": "reasoning.text", "text": "a", "signature": sign("a"), "index": 0}
    assert brought({"reasoning_content": "a", "reasoning_details": [detail]}) == (Reasoning("a"),)
    assert brought({"reasoning_details": [{**detail, "text": "b"}]}) == (Reasoning("b", payload=sign("a")),)


TEXT, SUMMARY, SEALED = "reasoning.text", "reasoning.summary", "reasoning.encrypted"


@pytest.mark.parametrize(
    ("details", "parts"),
    [
        # The pieces of a stream as they came: some clients do not put them together.
        (
            [
                {"type": TEXT, "text": "h", "index": 0, "format": "anthropic-claude-v1"},
                {"type": TEXT, "text": "m", "index": 0},
                {"type": TEXT, "signature": "s", "index": 0},
                {"type": TEXT, "text": "b", "signature": "t", "index": 1},
            ],
            (Reasoning("hm", payload="s"), Reasoning("b", payload="t")),
        ),
        ([{"type": TEXT, "text": "hm"}, {"type": TEXT, "signature": "s"}], (Reasoning("hm", payload="s"),)),
        # A summary and what was sealed beside it are one thought.
        (
            [{"type": SUMMARY, "summary": "hm", "index": 0}, {"type": SEALED, "data": "e", "id": "rs_1", "index": 1}],
            (Reasoning("hm", "rs_1", "e"),),
        ),
        # A text without a signature and hidden thinking are two.
        ([{"type": TEXT, "text": "a"}, {"type": SEALED, "data": "e"}], (Reasoning("a"), Reasoning("", payload="e"))),
        ([{"type": SEALED, "data": "e"}], (Reasoning("said"), Reasoning("", payload="e"))),
        ([{"type": TEXT, "text": "hm"}], (Reasoning("said"),)),  # nothing that a provider would know
        ([{"type": "reasoning.other", "data": "e"}, {"type": SEALED, "data": ""}], (Reasoning("said"),)),
    ],
)
def test_what_clients_make_of_the_list(details: Any, parts: tuple[Part, ...]) -> None:
    assert brought({"reasoning_content": "said", "reasoning_details": details}) == parts


leaf = st.none() | st.integers(-1, 2) | st.text(max_size=3) | st.lists(st.integers(), max_size=1)
detail = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from([TEXT, SUMMARY, SEALED]) | leaf,
        **dict.fromkeys(["text", "summary", "signature", "data", "id", "index"], leaf),
    },
)


@settings(max_examples=100, deadline=None)
@example([{"type": []}])
@given(st.lists(detail | leaf, max_size=4) | leaf)
def test_any_list_is_read_and_none_refused(details: Any) -> None:  # A6
    parts = brought({"content": "Hi", "reasoning_content": "said", "reasoning_details": details})
    assert parts[-1] == Text("Hi")
    assert any(part.text for part in parts[:-1] if isinstance(part, Reasoning))


def test_a_chat_backend_gets_back_what_the_client_brings() -> None:
    details = [{"type": TEXT, "text": "a", "signature": "s", "format": "x", "index": 0}]
    body = {
        "messages": [{"role": "assistant", "content": "Hi", "reasoning_content": "a", "reasoning_details": details}]
    }
    request = chat.read_request(body)
    assert chat.write_request(request)["messages"] == body["messages"]
    changed = replace(request, messages=(replace(request.messages[0], origin=None),))
    (message,) = chat.write_request(changed)["messages"]
    assert message["reasoning_details"] == [{"type": TEXT, "text": "a", "signature": "s", "index": 0}]
    # Thoughts of another dialect's client are not told to a backend that never speaks so.
    other = replace(request, messages=(Message("assistant", (Reasoning("a", payload="s"), Text("Hi"))),))
    assert "reasoning_details" not in chat.write_request(other)["messages"][0]


def streamed(*deltas: dict[str, Any]) -> ModelReply:
    """A backend's reply, told in these deltas."""
    reader = chat.stream_reader()
    for delta in (*deltas, {}):
        choice = {"index": 0, "delta": delta, "finish_reason": None if delta else "stop"}
        reader.feed(b"data: " + codec.encode({"id": "x", "choices": [choice]}) + b"\n\n")
    return reader.finish()


def test_a_gateway_s_own_list_is_gathered_from_its_deltas() -> None:
    head = {"type": TEXT, "format": "anthropic-claude-v1", "index": 0}
    reply = streamed(
        {"reasoning": "h", "reasoning_details": [{**head, "text": "h"}]},
        {"reasoning": "m", "reasoning_details": [{**head, "text": "m"}, {**head, "text": None, "signature": "s"}]},
        {"content": "Hi", "reasoning_details": [{"type": SEALED, "data": "e", "index": 0}]},
        {"reasoning_details": None},
    )
    assert reply.choices[0].parts == (Reasoning("hm"), Text("Hi"))
    whole = chat.write_reply(reply, REQUEST)["choices"][0]["message"]
    assert whole["reasoning_content"] == "hm"
    assert whole["reasoning_details"] == [
        {**head, "text": "hm", "signature": "s"},
        {"type": SEALED, "data": "e", "index": 1},  # by its place: the stock client folds by it
    ]
    assert brought(whole)[:2] == (Reasoning("hm", payload="s"), Reasoning("", payload="e"))
    unnumbered = streamed({"reasoning_details": [{"type": SEALED, "data": "e"}]}, {"reasoning_details": ["x"]})
    told = chat.write_reply(unnumbered, REQUEST)["choices"][0]["message"]["reasoning_details"]
    assert told == [{"type": SEALED, "data": "e"}, "x"]
    assert (
        chat.write_reply(streamed({"reasoning_details": "x"}), REQUEST)["choices"][0]["message"]["reasoning_details"]
        == "x"
    )
