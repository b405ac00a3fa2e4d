"""Requests and replies through Chat Completions and back keep what both can express."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from nemo_gym.capture.record import bare_request
from nemo_gym.dialects import chat, responses
from nemo_gym.exchange.parts import Reasoning, Text, ToolCall
from nemo_gym.exchange.reply import Choice, ModelReply, Usage
from nemo_gym.exchange.request import ModelRequest
from nemo_gym.exchange.tools import Toolbox

words = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=20)
texts = st.builds(lambda text: {"type": "input_text", "text": text}, words)
images = st.builds(lambda data: {"type": "input_image", "image_url": f"data:image/png;base64,{data}"}, st.just("AAAA"))
contents = words | st.lists(texts | images, min_size=1, max_size=3)
arguments = st.sampled_from(["{}", '{"a":  1}', '{"a": {"b": [1, 2.50]}}'])
TOOLS: list[Any] = [
    {"type": "function", "name": "f", "description": "F.", "parameters": {"type": "object"}},
    {"type": "namespace", "name": "n.s", "description": "", "tools": [{"type": "function", "name": "g"}]},
    {"type": "custom", "name": "p", "description": "P."},
]


@st.composite
def turns(draw: Any, number: int) -> list[dict[str, Any]]:
    """A user's message, and what came of it."""
    items: list[dict[str, Any]] = [{"type": "message", "role": "user", "content": draw(contents)}]
    if draw(st.booleans()):
        items.append({"type": "reasoning", "summary": [{"type": "summary_text", "text": draw(words)}]})
    said = draw(st.booleans())
    calls = draw(st.integers(0, 3))
    if said or not calls:
        items.append({"role": "assistant", "content": [{"type": "output_text", "text": draw(words)}]})
    made = []
    for place in range(calls):
        call = {"call_id": f"c{number}_{place}"}
        kind = draw(st.sampled_from(["f", "g", "p"]))
        if kind == "p":
            made.append({"type": "custom_tool_call", **call, "name": "p", "input": draw(words)})
        else:
            named = {"name": "g", "namespace": "n.s"} if kind == "g" else {"name": "f"}
            made.append({"type": "function_call", **call, **named, "arguments": draw(arguments)})
    items += made
    for call in draw(st.permutations(made)):
        kind = call["type"].replace("_call", "_call_output")
        items.append({"type": kind, "call_id": call["call_id"], "output": draw(contents)})
    return items


@st.composite
def bodies(draw: Any) -> dict[str, Any]:
    items = [item for number in range(draw(st.integers(1, 3))) for item in draw(turns(number))]
    if draw(st.booleans()):
        items.insert(0, {"role": "developer", "content": draw(words)})
    body: dict[str, Any] = {"input": items, "tools": TOOLS}
    optional: dict[str, Any] = {
        "instructions": words,
        "temperature": st.floats(0, 2),
        "top_p": st.floats(0, 1),
        "max_output_tokens": st.integers(1, 1000),
        "parallel_tool_calls": st.booleans(),
        "tool_choice": st.sampled_from(["auto", "none", "required"]),
        "text": st.sampled_from([{"format": {"type": "json_object"}}, {"format": {"type": "text"}}]),
        "reasoning": st.sampled_from([{"effort": "low"}, {"effort": None}]),
        "top_logprobs": st.integers(0, 20),
    }
    for name, values in optional.items():
        if draw(st.booleans()):
            body[name] = draw(values)
    return body


def bound(request: ModelRequest) -> ModelRequest:
    """With the names of its calls and the kinds of its tools as TOOLS declares them: a chat backend has them flat."""
    declared = responses.read_request({"input": "x", "tools": TOOLS}).tools
    box = Toolbox(declared)
    messages = tuple(
        replace(one, parts=tuple(box.bind(part) if isinstance(part, ToolCall) else part for part in one.parts))
        for one in request.messages
    )
    return replace(bare_request(replace(request, messages=messages)), tools=())


@settings(max_examples=60, deadline=None)
@given(bodies())
def test_a_request_through_chat(body: dict[str, Any]) -> None:
    request = responses.read_request(body)
    written = json.loads(json.dumps(chat.write_request(request)))
    assert bound(chat.read_request(written)) == bound(request)
    assert len(written["tools"]) == len(request.tools) == 3


@settings(max_examples=60, deadline=None)
@given(bodies())
def test_a_request_to_a_backend_of_the_dialect(body: dict[str, Any]) -> None:
    request = responses.read_request(body)
    written = responses.write_request(request)
    assert written["input"] == body["input"]
    assert written["tools"] == TOOLS
    again = responses.read_request(written)
    assert bare_request(again) == bare_request(request)
    # One that has forgotten where it came from says the same.
    bare = bare_request(request)
    assert bound(responses.read_request(responses.write_request(bare))) == replace(
        bound(request), messages=tuple(without_unsealed(one) for one in bound(request).messages if one.parts)
    )


def without_unsealed(message: Any) -> Any:
    """A provider takes back only what it sealed."""
    return replace(message, parts=tuple(part for part in message.parts if not isinstance(part, Reasoning)))


@settings(max_examples=60, deadline=None)
@given(
    st.none() | words,
    st.none() | words,
    st.lists(st.tuples(st.sampled_from(["f", "g"]), arguments), max_size=3),
    st.sampled_from(["stop", "length", "tool_calls", "content_filter"]),
)
def test_a_reply_through_chat(thought: str | None, said: str | None, calls: list[Any], finish: Any) -> None:
    parts: list[Any] = [Reasoning(thought)] if thought else []
    parts += [Text(said)] if said else []
    parts += [ToolCall(name, text, f"c{n}") for n, (name, text) in enumerate(calls)]
    if calls and finish == "stop":
        finish = "tool_calls"
    reply = ModelReply("resp_1", "m", 17, (Choice(0, tuple(parts), finish),), Usage(3, 4, 1, 2))
    request = responses.read_request({"input": "q"})
    through = chat.read_reply(chat.write_reply(reply, request))
    assert (through.choices[0].parts, through.usage) == (reply.choices[0].parts, reply.usage)
    back = responses.read_reply(responses.write_reply(through, request))
    assert [replace(part, id="") for part in back.choices[0].parts] == parts
    assert back.usage == reply.usage
    assert back.choices[0].finish == finish or (finish == "tool_calls" and not calls)
