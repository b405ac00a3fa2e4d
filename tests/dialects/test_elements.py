"""What bodies share, and that sharing changes nothing."""

from __future__ import annotations

import msgspec
import pytest

from nemo_gym.dialects import chat, codec, messages
from nemo_gym.dialects.elements import Elements
from nemo_gym.exchange.errors import InvalidRequest
from nemo_gym.exchange.parts import Element, ToolResult, element_of
from nemo_gym.exchange.tools import Tool

LONG = "a history " * 600
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
TOOL_OF_MESSAGES = {"name": "f", "description": LONG, "input_schema": {"type": "object"}}
ASKED = {"role": "user", "content": LONG}


def body(*more: object) -> dict[str, object]:
    return {"model": "m", "messages": [{"role": "user", "content": LONG}, *more], "tools": [TOOL], "seed": 2**70}


def test_the_same_bytes_give_one_object() -> None:
    elements = Elements()
    first = elements.decode(msgspec.json.encode(body()))
    second = elements.decode(msgspec.json.encode(body({"role": "assistant", "content": "yes"})))
    assert first == body() and type(first["messages"][0]) is Element
    assert second["messages"][0] is first["messages"][0] and second["tools"][0] is first["tools"][0]
    one, other = (chat.read_request(found) for found in (first, second))
    assert one.messages[0] is other.messages[0] and one.tools[0] is other.tools[0]
    assert element_of(one.messages[0]) is first["messages"][0]


def test_an_element_that_is_a_message_and_a_tool_is_read_as_each() -> None:
    both = {"role": "user", "content": LONG} | TOOL
    request = chat.read_request(Elements().decode(msgspec.json.encode({"messages": [both], "tools": [both]})))
    assert request.messages[0].role == "user" and request.tools[0].name == "f"


def test_an_element_that_is_a_message_and_a_tool_is_written_as_each() -> None:
    both = {"role": "user", "content": LONG, "name": "f", "input_schema": {}}
    elements, told = Elements(), {"model": "m", "max_tokens": 9}
    for body in ({"messages": [both], "tools": [TOOL_OF_MESSAGES]}, {"messages": [ASKED], "tools": [both]}) * 2:
        shared = messages.read_request(elements.decode(msgspec.json.encode(told | body)))
        alone = messages.read_request(told | body)
        assert codec.encode(chat.write_encoded(shared)) == codec.encode(chat.write_request(alone))


def test_tools_of_anthropic_bodies_are_read_once_and_held_back_when_a_body_says_so() -> None:
    elements = Elements()
    removal = {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "f"}}
    without = [ASKED, {"role": "system", "content": [removal]}]

    def tool_of(history: list[object]) -> Tool:
        told = {"model": "m", "max_tokens": 9, "messages": history, "tools": [TOOL_OF_MESSAGES]}
        (tool,) = messages.read_request(elements.decode(msgspec.json.encode(told))).tools
        return tool

    first = tool_of([ASKED])
    assert element_of(first) is not None and first.kind == "function"
    assert tool_of(without).kind == "provider"
    assert tool_of([ASKED]) is first


def test_messages_of_anthropic_bodies_are_read_once() -> None:
    elements = Elements()
    result = {"type": "tool_result", "tool_use_id": "t", "content": LONG}
    history = [
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]},
        {"role": "user", "content": [result]},
        {"role": "user", "content": [result, {"type": "text", "text": "go on"}]},
    ]
    told = {"model": "m", "max_tokens": 9, "messages": history}
    one, other = (messages.read_request(elements.decode(msgspec.json.encode(told))) for _ in range(2))
    assert [message.role for message in one.messages] == ["assistant", "tool", "tool", "user"]
    assert isinstance(one.messages[1].parts[0], ToolResult)
    assert all(first is second for first, second in zip(one.messages, other.messages, strict=True))
    assert [element_of(message) is not None for message in one.messages] == [True, True, False, False]
    assert one == messages.read_request(told)


def test_what_bodies_share_is_written_once_for_as_long_as_tools_are_called_the_same() -> None:
    elements = Elements()
    call = {"type": "tool_use", "id": "t", "name": "search", "input": {"q": LONG}}
    history = [{"role": "user", "content": LONG}, {"role": "assistant", "content": [call]}]
    tools = [{"name": name, "description": LONG, "input_schema": {}} for name in ("search", "web")]

    def written(*declared: object) -> dict[str, list[msgspec.Raw]]:
        told = {"model": "m", "max_tokens": 9, "messages": history, "tools": declared}
        return chat.write_encoded(messages.read_request(elements.decode(msgspec.json.encode(told))))

    one, two = written(*tools), written(*tools)
    assert all(first is second for first, second in zip(one["messages"], two["messages"], strict=True))
    fewer = written(tools[1])
    assert fewer["messages"][0] == one["messages"][0] and fewer["messages"][1] is not one["messages"][1]
    renamed = written({"name": "web.search", "input_schema": {}})
    called = msgspec.json.decode(renamed["messages"][1])["tool_calls"][0]["function"]["name"]
    assert called == "web.search"


@pytest.mark.parametrize("dialect", [chat, messages])
def test_what_is_wrong_beside_shared_elements_is_named_where_it_is(dialect) -> None:
    elements = Elements()
    good, wrong = {"role": "user", "content": LONG}, {"role": "user", "content": 1}
    told = {"model": "m", "max_tokens": 9, "messages": [good, good]}
    dialect.read_request(elements.decode(msgspec.json.encode(told)))
    for history in ([good, wrong, good], [wrong], []):
        bad = told | {"messages": history, "seed": "one", "temperature": "hot"}
        found = []
        for body in (bad, elements.decode(msgspec.json.encode(bad))):
            with pytest.raises(InvalidRequest) as error:
                dialect.read_request(body)
            found.append(error.value.errors)
        assert found[0] == found[1] and found[0]


def test_what_is_forgotten_is_read_anew() -> None:
    elements = Elements(max_bytes=48_000)
    data = msgspec.json.encode(body())
    first = elements.decode(data)["messages"][0]
    chat.read_request({"messages": [first]})
    assert first.read is not None
    elements.decode(data.replace(b"a history", b"another history"))
    assert elements.decode(data)["messages"][0] is not first
    # Nothing holds what was read from it, so that it is freed with its last request.
    assert chat.read_request({"messages": [first]}).messages[0].parts and first.read is None


@pytest.mark.parametrize(
    "data",
    [
        b'{"messages": [{"role": "user", "content": NaN}]}',
        b'{"messages": [{"a": "\\ud800"}], "input": "\\ud800"}',
        b'{"messages": [1, "x", null, [], {"a": 1}], "messages": [{"b": 2}]}',
        b'{"messages": {"0": 1}, "tools": null}',
        b'[{"messages": []}]',
        b'{"messages": [{"a": 1}',
        b'{"messages": [{"a": "\xff"}]}',
        b'\xef\xbb\xbf{"messages": [{}]}',
    ],
)
def test_any_bytes_are_read_as_without_it(data: bytes) -> None:
    padded = data.rstrip() + b" " * 5000

    def outcome(decode: object) -> object:
        try:
            return repr(decode(padded))  # type: ignore[operator]
        except (ValueError, RecursionError) as error:
            return type(error)

    assert outcome(Elements().decode) == outcome(codec.decode_body)
