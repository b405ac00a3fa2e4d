"""Whatever JSON comes in: it is read, or it is bad input. Nothing else is raised, and what was read can be written."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.dialects import chat, codec, messages, responses
from nemo_gym.dialects.elements import Elements
from nemo_gym.exchange.errors import InvalidRequest, ModelError

KEYS = [
    "type",
    "role",
    "content",
    "text",
    "input_text",
    "image_url",
    "url",
    "refusal",
    "tool_calls",
    "id",
    "function",
    "name",
    "arguments",
    "custom",
    "input",
    "output",
    "call_id",
    "summary",
    "encrypted_content",
    "tools",
    "parameters",
    "format",
    "json_schema",
    "schema",
    "mode",
    "tool_call_id",
    "input_audio",
    "data",
    "file",
    "file_data",
    "namespace",
    "reasoning_content",
    "stop_reason",
    "token_ids",
    "logprobs",
    "token",
    "logprob",
    "message",
    "index",
    "finish_reason",
    "delta",
    "source",
    "media_type",
    "tool_use_id",
    "is_error",
    "thinking",
    "signature",
    "tool_name",
    "tool",
    "definition",
    "content_block",
    "partial_json",
    "action",
    "operation",
    "execution",
    "environment",
]
VALUES = [
    "text",
    "input_text",
    "output_text",
    "refusal",
    "image_url",
    "input_image",
    "input_file",
    "input_audio",
    "file",
    "user",
    "assistant",
    "system",
    "tool",
    "developer",
    "function",
    "custom",
    "function_call",
    "function_call_output",
    "custom_tool_call",
    "reasoning",
    "message",
    "additional_tools",
    "web_search",
    "namespace",
    "allowed_tools",
    "auto",
    "json_schema",
    "json_object",
    "stop",
    "length",
    "agent_message",
    "encrypted_content",
    "image",
    "document",
    "base64",
    "content",
    "tool_use",
    "tool_result",
    "tool_reference",
    "tool_addition",
    "thinking",
    "redacted_thinking",
    "search_result",
    "bash_20250124",
    "any",
    "message_start",
    "content_block_start",
    "content_block_delta",
    "content_block_stop",
    "message_delta",
    "message_stop",
    "end_turn",
    "tool_search",
    "tool_search_call",
    "tool_search_output",
    "local_shell",
    "local_shell_call",
    "local_shell_call_output",
    "apply_patch",
    "apply_patch_call",
    "shell_call_output",
    "item_reference",
    "compaction",
    "client",
]

leaf = (
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(allow_nan=False) | st.sampled_from(VALUES) | st.just("")
)
anything = st.recursive(
    leaf,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=12,
)


def fields(**known):
    return st.fixed_dictionaries({}, optional={name: value | anything for name, value in known.items()})


part = st.fixed_dictionaries({"type": st.sampled_from(VALUES)}, optional=dict.fromkeys(KEYS[2:8], anything))
call = fields(
    id=st.just("c"),
    type=st.sampled_from(["function", "custom"]),
    function=fields(name=st.just("f"), arguments=st.just("{}")),
    custom=fields(name=st.just("f"), input=st.just("{}")),
)
content = st.just("x") | st.lists(part, max_size=2)
tool = fields(
    type=st.sampled_from(VALUES),
    name=st.just("f"),
    function=fields(name=st.just("f"), parameters=st.just({})),
    tools=st.lists(fields(type=st.just("function"), name=st.just("g")), max_size=2),
)
choice = st.sampled_from(["auto", "none", "required"]) | tool
message = fields(
    role=st.sampled_from(["user", "assistant", "system", "tool", "developer"]),
    content=content,
    tool_calls=st.lists(call, max_size=2),
    tool_call_id=st.just("c"),
)
chat_body = fields(
    messages=st.lists(message, max_size=3),
    tools=st.lists(tool, max_size=2),
    tool_choice=choice,
    response_format=fields(type=st.sampled_from(VALUES), json_schema=fields(name=st.just("n"))),
    stop=st.just("x"),
    stream=st.booleans(),
    logit_bias=st.just({"a": 1}),
)
item = fields(
    type=st.sampled_from(VALUES),
    role=st.sampled_from(["user", "assistant"]),
    content=content,
    call_id=st.just("c"),
    name=st.just("f"),
    arguments=st.just("{}"),
    output=content,
    input=st.just("x"),
    id=st.just("i"),
    summary=st.lists(part, max_size=2),
    encrypted_content=st.just("x"),
    tools=st.lists(tool, max_size=2),
)
responses_body = fields(
    input=st.just("q") | st.lists(item, max_size=3),
    tools=st.lists(tool, max_size=2),
    tool_choice=choice,
    text=fields(format=fields(type=st.sampled_from(VALUES))),
    reasoning=fields(effort=st.just("low")),
    stream=st.booleans(),
)
block = fields(
    type=st.sampled_from(VALUES),
    text=st.just("x"),
    source=fields(type=st.sampled_from(VALUES), media_type=st.just("image/png"), data=st.just("AA=="), content=content),
    id=st.just("i"),
    name=st.just("f"),
    input=st.just({}),
    tool_use_id=st.just("i"),
    tool_name=st.just("f"),
    thinking=st.just("x"),
    data=st.just("x"),
    content=content,
    tool=fields(type=st.just("tool_definition"), name=st.just("f"), definition=tool),
)
blocks = st.just("x") | st.lists(block, max_size=3)
messages_body = st.fixed_dictionaries(
    {"max_tokens": st.just(9) | anything},
    optional={
        "messages": st.lists(
            fields(role=st.sampled_from(["user", "assistant", "system"]), content=blocks), min_size=1, max_size=3
        ),
        "system": blocks,
        "tools": st.lists(
            fields(
                type=st.sampled_from(VALUES), name=st.just("f"), input_schema=st.just({}), defer_loading=st.just(True)
            ),
            max_size=2,
        ),
        "tool_choice": fields(type=st.sampled_from(["auto", "any", "tool", "none"]), name=st.just("f")),
        "thinking": fields(type=st.sampled_from(["enabled", "disabled"])),
        "output_config": fields(format=fields(type=st.just("json_schema"), schema=st.just({}))),
        "stop_sequences": st.lists(st.just("x"), max_size=2),
    },
)


ELEMENTS = Elements()


def outcome(call, *arguments):
    """What the call gives, or the ModelError that it raises; nothing else may be raised."""
    try:
        return call(*arguments)
    except ModelError as error:
        return error


def check(dialect, body):
    request = outcome(dialect.read_request, body)
    if isinstance(request, ModelError):
        assert isinstance(request, InvalidRequest)
        assert request.errors
        codec.encode(dialect.write_error(request))
        return
    for other in (chat, responses, messages):
        json.loads(codec.encode(other.write_request(request)))
    written = codec.encode(chat.write_request(request))
    assert codec.encode(chat.write_encoded(request)) == written
    long = codec.encode(body) + b" " * 256
    for elements in (ELEMENTS, ELEMENTS, Elements(max_bytes=1)):
        assert codec.encode(chat.write_encoded(dialect.read_request(elements.decode(long)))) == written


@settings(max_examples=120, deadline=None)
@given(chat_body | anything)
def test_any_chat_body(body):
    check(chat, body)


@settings(max_examples=120, deadline=None)
@given(responses_body | anything)
def test_any_responses_body(body):
    check(responses, body)


@settings(max_examples=120, deadline=None)
@given(messages_body | anything)
def test_any_messages_body(body):
    check(messages, body)


@pytest.mark.parametrize("dialect", [chat, responses, messages])
@settings(max_examples=60, deadline=None)
@given(
    body=st.dictionaries(
        st.sampled_from(["id", "choices", "output", "content", "usage", "status", "stop_reason", "error"]), anything
    )
)
def test_any_reply(dialect, body):
    reply = outcome(dialect.read_reply, body)
    assert not isinstance(reply, ModelError) or reply.status in (429, 502)


@pytest.mark.parametrize("dialect", [chat, responses, messages])
@settings(max_examples=60, deadline=None)
@given(events=st.lists(anything, max_size=4))
def test_any_stream(dialect, events):
    reader = dialect.stream_reader()
    for event in events:
        if isinstance(outcome(reader.feed, b"data: " + codec.encode(event) + b"\n\n"), ModelError):
            return
    outcome(reader.finish)


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=50), st.integers(100, 599))
def test_any_error(body, status):
    for dialect in (chat, responses, messages):
        codec.encode(dialect.write_error(dialect.read_error(status, {"retry-after": "soon"}, body)))
