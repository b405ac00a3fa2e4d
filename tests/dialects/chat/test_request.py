"""A chat body in, a body for a backend out; and the 422, byte for byte FastAPI's."""

import json

import pytest
from fastapi import Body, FastAPI
from fastapi.testclient import TestClient

from nemo_gym.dialects import chat, codec
from nemo_gym.dialects.chat.schema import ChatRequest
from nemo_gym.dialects.validation import read_json, wants_stream
from nemo_gym.exchange.errors import InvalidRequest
from nemo_gym.exchange.parts import Media, Message, Reasoning, Text, ToolCall, ToolResult
from nemo_gym.exchange.request import ModelRequest, Sampling
from nemo_gym.exchange.tools import Tool

USER = {"role": "user", "content": "q"}
FUNCTION = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "strict": True}}


@pytest.fixture(scope="module")
def fastapi():
    app = FastAPI()

    @app.post("/")
    def route(body: ChatRequest = Body()):  # noqa: B008
        return {}

    return TestClient(app)


BAD = [
    b"",
    b"null",
    b"{",
    b'{"messages": [}',
    b"[]",
    b"3",
    b'"text"',
    b"{}",
    b'{"messages": "x"}',
    b'{"messages": [{"role": "user"}]}',
    b'{"messages": [{"role": "robot", "content": "x"}]}',
    b'{"messages": [{"content": "x"}]}',
    b'{"messages": [3]}',
    b'{"messages": [{"role": "user", "content": [{"type": "text"}]}]}',
    b'{"messages": [{"role": "user", "content": [{"type": "nonsense", "x": 1}]}]}',
    b'{"messages": [{"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {"name": 3}}]}]}',
    b'{"messages": [{"role": "user", "content": "x"}], "temperature": "hot", "n": 0, "tools": [{"type": "zzz"}]}',
    b'{"messages": [{"role": "user", "content": "x"}], "tool_choice": {"type": "function"}, "top_logprobs": -1}',
    b'{"messages": [{"role": "user", "content": "x"}], "response_format": {"type": "json_schema"}}',
    b'{"messages": [], "seed": 12345.5, "stop": [1]}',
    '{"messages": [{"role": "üser", "content": "日本"}]}'.encode(),
]


def rejected(data: bytes) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        chat.read_request(read_json(data, status=422))
    return caught.value


@pytest.mark.parametrize("data", BAD)
def test_bad_input_gets_fastapis_own_422(fastapi, data):  # A3
    theirs = fastapi.post("/", content=data, headers={"content-type": "application/json"})
    error = rejected(data)
    assert theirs.status_code == error.status == 422
    assert codec.encode(chat.write_error(error)) == theirs.content


@pytest.mark.parametrize("data", [b'{"stream": true}', b'{"stream": true, "stream_options": {"include_usage": true}}'])
def test_the_422_is_the_same_streamed_or_not(fastapi, data):  # A3
    theirs = fastapi.post("/", content=b"{}", headers={"content-type": "application/json"})
    assert codec.encode(chat.write_error(rejected(data))) == theirs.content


@pytest.mark.parametrize("value", ["false", "true", 1, [], 0.0, {}])
def test_only_a_boolean_selects_a_stream(value):  # A2
    error = rejected(codec.encode({"messages": [USER], "stream": value}))
    assert error.status == 422
    (entry,) = chat.write_error(error)["detail"]
    assert entry["loc"] == ["body", "stream"]


@pytest.mark.parametrize(("value", "streams"), [(True, True), (False, False), (None, False)])
def test_stream_values(value, streams):  # A2
    body = {"messages": [USER], "stream": value}
    chat.read_request(body)
    assert wants_stream(body) is streams
    assert not wants_stream({"messages": [USER]})


def test_a_large_422_echoes_little():  # A4
    picture = "data:image/png;base64," + "A" * 100_000
    data = codec.encode({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": picture}]}]})
    detail = chat.write_error(rejected(data))
    assert len(codec.encode(detail)) < 4096
    assert detail["detail"][0]["msg"]
    assert detail["detail"][0]["loc"][:3] == ["body", "messages", 0]


def test_reading_a_whole_request():
    body = {
        "model": "m",
        "messages": [
            {"role": "system", "content": "s"},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "look"},
                    {"type": "image_url", "image_url": {"url": "data:x", "detail": "low"}},
                ],
            },
            {
                "role": "assistant",
                "content": None,
                "reasoning_content": "hm",
                "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":  1}'}}],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "42"},
        ],
        "tools": [FUNCTION],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "parallel_tool_calls": False,
        "temperature": 0.5,
        "max_tokens": 5,
        "max_completion_tokens": 7,
        "stop": "END",
        "logit_bias": {"17": -100},
        "logprobs": True,
        "top_logprobs": 3,
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}},
        "reasoning_effort": "high",
        "n": 2,
        "seed": 2**70,
        "chat_template_kwargs": {"enable_thinking": True},
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    request = chat.read_request(body)
    assert request.messages == (
        Message("system", (Text("s"),)),
        Message("user", (Text("look"), Media("image", "data:x"))),
        Message("assistant", (Reasoning("hm"), ToolCall("f", '{"a":  1}', "c1"))),
        Message("tool", (ToolResult("c1", (Text("42"),)),)),
    )
    assert request.tool_choice == Tool("f", parameters={"type": "object"})
    assert request.sampling == Sampling(
        temperature=0.5, max_tokens=7, stop=("END",), seed=2**70, n=2, logit_bias={17: -100}, logprobs=3
    )
    assert request.output_schema == {"type": "object"}
    assert request.effort == "high"
    written = chat.write_request(request)
    # What it was, but for how it is delivered: unknown fields, spelling, the strict tool, the image's detail. # A6 A13
    expected = {k: v for k, v in body.items() if k not in ("stream", "stream_options", "max_tokens")}
    assert written == expected
    assert chat.read_request(json.loads(codec.encode(written))) == request


def test_a_changed_value_wins_over_what_was_read():
    from msgspec.structs import replace

    body = {"messages": [USER], "temperature": 1.0, "max_completion_tokens": 9, "top_k": 4, "vllm_only": 1}
    request = chat.read_request(body)
    changed = replace(request, sampling=Sampling(temperature=0.0, max_tokens=3), model="served", messages=())
    assert chat.write_request(changed) == {
        "messages": [],
        "model": "served",
        "temperature": 0.0,
        "max_completion_tokens": 3,
        "vllm_only": 1,
    }


def test_a_request_of_another_dialect():  # R6 R7 R13
    tools = (Tool("go", namespace="ns", parameters={"type": "object"}), Tool("patch", "edits", kind="custom"))
    calls = (ToolCall("go", "{}", "c1", namespace="ns"), ToolCall("patch", "x\n", "c2", custom=True))
    messages = (
        Message("developer", (Text("d"),)),
        Message(
            "assistant",
            (Text("a"), ToolCall("go", "{}", "c1", namespace="ns"), ToolCall("patch", "x\n", "c2", custom=True)),
        ),
        Message("tool", (ToolResult("c1", (Text("1"), Media("image", "data:image/png;base64,AA"))),)),
    )
    request = ModelRequest(messages, tools, tools[0], output_schema={})
    written = chat.write_request(request)
    assert written["tool_choice"] == {"type": "function", "function": {"name": "ns__go"}}
    assert [t["function"]["name"] for t in written["tools"]] == ["ns__go", "patch"]
    assert written["tools"][1]["function"]["parameters"]["required"] == ["input"]
    calls = written["messages"][1]["tool_calls"]
    assert calls[0]["function"] == {"name": "ns__go", "arguments": "{}"}
    assert json.loads(calls[1]["function"]["arguments"]) == {"input": "x\n"}
    assert written["messages"][2]["content"][1]["image_url"]["url"].startswith("data:image")
    assert written["response_format"] == {"type": "json_object"}
    chat.read_request(written)


def test_lone_surrogates_are_replaced_at_the_door():  # A13
    body = read_json(
        b'{"messages": [{"role": "user", "content": "a\\ud800b \\ud83d\\ude00"}], "big": 123456789012345678901}'
    )
    request = chat.read_request(body)
    assert request.messages[0].parts[0].text == "a\ufffdb \U0001f600"
    assert b"123456789012345678901" in codec.encode(chat.write_request(request))
