"""A Responses body in: any shape that clients replay; and out again for a backend."""

import json

import pytest
from openai.types.responses import ResponseInputItem
from pydantic import TypeAdapter

from nemo_gym.dialects import chat, responses
from nemo_gym.dialects.dialect import Head, replay
from nemo_gym.dialects.responses.objects import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.exchange.errors import InvalidRequest
from nemo_gym.exchange.parts import Media, Message, Reasoning, Text, ToolCall, ToolResult
from nemo_gym.exchange.reply import Choice, ModelReply
from nemo_gym.exchange.request import Sampling
from nemo_gym.exchange.tools import Tool

TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}


def read(items, **fields):
    return responses.read_request({"input": items, **fields})


def test_strings_and_messages():  # R1 R2 R14
    assert read("q").messages == (Message("user", (Text("q"),)),)
    request = read(
        [
            {"role": "developer", "content": "d"},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
            {
                "role": "user",
                "content": [{"type": "input_text", "text": "b"}, {"type": "input_image", "image_url": "data:x"}],
            },
        ],
        instructions="i",
    )
    assert request.messages == (
        Message("system", (Text("i"),)),
        Message("developer", (Text("d"),)),
        Message("user", (Text("a"),)),
        Message("user", (Text("b"), Media("image", "data:x"))),
    )


TURN = [
    {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}], "encrypted_content": "x"},
    {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": '{"a":  1}'},
    {"type": "function_call", "id": "fc_2", "call_id": "c2", "name": "f", "arguments": "{}", "status": "completed"},
    {"type": "function_call_output", "call_id": "c2", "output": "2"},
    {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "1"}]},
]


def test_the_calls_of_a_turn_are_one_message():  # R4 R10
    request = read([{"role": "user", "content": "q"}, *TURN])
    assert request.messages[1:] == (
        Message(
            "assistant",
            (
                Reasoning("hm", "rs_1", "x"),
                ToolCall("f", '{"a":  1}', "c1", "fc_1"),
                ToolCall("f", "{}", "c2", "fc_2"),
            ),
        ),
        Message("tool", (ToolResult("c2", (Text("2"),)),)),
        Message("tool", (ToolResult("c1", (Text("1"),)),)),
    )
    written = chat.write_request(request)
    assert [m["role"] for m in written["messages"]] == ["user", "assistant", "tool", "tool"]
    assert [c["id"] for c in written["messages"][1]["tool_calls"]] == ["c1", "c2"]
    assert written["messages"][1]["reasoning_content"] == "hm"
    chat.read_request(written)


def test_a_custom_call_and_an_unknown_item():  # R3 R7
    request = read(
        [
            {"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": "raw"},
            {"type": "custom_tool_call_output", "call_id": "c", "output": "ok"},
            {
                "type": "agent_message",
                "content": [{"type": "encrypted_content", "encrypted_content": "do this"}],
            },
            {"type": "compaction", "encrypted_content": "A" * 300},
        ]
    )
    assert request.messages[0].parts == (ToolCall("patch", "raw", "c", custom=True),)
    assert request.messages[2] == Message("user", (Text("do this"),))
    assert [m["role"] for m in chat.write_request(request)["messages"]] == ["assistant", "tool", "user"]
    assert responses.write_request(request)["input"][3]["type"] == "compaction"


def test_sampling_tools_and_format():  # R13
    request = read(
        "q",
        tools=[TOOL],
        tool_choice={"type": "function", "name": "f"},
        parallel_tool_calls=False,
        max_output_tokens=5,
        temperature=0,
        top_p=0.5,
        text={"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}},
        reasoning={"effort": "low"},
        previous_response_id="resp_0",
        include=["message.output_text.logprobs"],
        top_logprobs=2,
    )
    assert request.tools == (Tool("f", parameters={"type": "object"}),)
    assert request.tool_choice == request.tools[0]
    assert not request.parallel_tool_calls
    assert request.sampling == Sampling(temperature=0, top_p=0.5, max_tokens=5, logprobs=2)
    assert request.output_schema == {"type": "object"}
    assert request.effort == "low"
    assert request.previous == "resp_0"
    written = chat.write_request(request)
    assert written["response_format"]["json_schema"]["schema"] == {"type": "object"}
    assert written["tool_choice"] == {"type": "function", "function": {"name": "f"}}
    assert written["tools"][0]["function"]["name"] == "f"


def test_namespaces_additional_tools_and_search():  # R5 R6 R8
    request = read(
        [
            {"type": "additional_tools", "role": "developer", "tools": [{"type": "custom", "name": "exec"}]},
            {"role": "user", "content": "q"},
        ],
        tools=[
            {"type": "namespace", "name": "ns", "description": "", "tools": [TOOL]},
            {"type": "web_search", "external_web_access": False},
            {"type": "web_search"},
        ],
    )
    assert [(t.name, t.namespace, t.kind) for t in request.tools] == [
        ("f", "ns", "function"),
        ("web_search", None, "provider"),
        ("exec", None, "custom"),
    ]
    assert len(request.messages) == 1
    written = responses.write_request(request)
    assert written["tools"] == [*request.origin.body["tools"], {"type": "custom", "name": "exec"}]
    assert written["input"] == [{"role": "user", "content": "q"}]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (None, None),
        ([], None),
        ({}, "input"),
        ({"input": 3}, "input"),
        ({"input": [{"role": "user", "content": ""}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": []}]}, "input[0].content"),
        ({"input": [{"type": "function_call", "name": "f", "call_id": "c"}]}, "input[0].arguments"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
        ({"input": [3]}, "input[0]"),
        ({"input": "q", "temperature": "hot"}, "temperature"),
        ({"input": "q", "stream": "true"}, "stream"),
        ({"input": "q", "tools": [{"type": "function"}]}, "tools[0].name"),
        ({"input": "q", "max_output_tokens": 0}, "max_output_tokens"),
    ],
)
def test_bad_input_is_a_400_that_names_the_field(body, param):  # A3 A2 R4
    with pytest.raises(InvalidRequest) as caught:
        responses.read_request(body)
    error = responses.write_error(caught.value)["error"]
    assert caught.value.status == 400
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert (param or "body") in error["message"]


def test_what_this_server_emitted_is_accepted_back():  # R12
    parts = (
        Reasoning("think"),
        Text("hello"),
        ToolCall("f", "{}", "call_1"),
        ToolCall("p", "raw", "call_2", custom=True),
    )
    reply = ModelReply("resp_1", "m", 17, (Choice(0, parts, "tool_calls"),))
    request = read("q", tools=[TOOL])
    output = responses.write_reply(reply, request)["output"]
    again = read([{"role": "user", "content": "q"}, *output])
    (turn,) = again.messages[1:]
    ids = [item["id"] for item in output]
    assert [part.id for part in turn.parts] == ids
    assert [getattr(part, "text", getattr(part, "arguments", None)) for part in turn.parts] == [
        "think",
        "hello",
        "{}",
        "raw",
    ]
    # The same through the objects that agents handle.
    response = NeMoGymResponse.model_validate(responses.write_reply(reply, request))
    params = NeMoGymResponseCreateParamsNonStreaming(input=response.output, tools=[TOOL])
    assert read(json.loads(params.model_dump_json(exclude_unset=True))["input"]).messages[0] == turn
    TypeAdapter(list[ResponseInputItem]).validate_python(output)


def test_a_responses_backend_gets_the_items_as_they_came():  # R4
    request = read([{"role": "user", "content": "q"}, *TURN], instructions="i", metadata={"a": "b"}, extra=1)
    written = responses.write_request(request)
    assert written["input"] == [{"role": "user", "content": "q"}, *TURN]
    assert written["instructions"] == "i"
    assert written["extra"] == 1
    assert written["store"] is False
    assert "stream" not in written


def test_a_chat_request_for_a_responses_backend():
    request = chat.read_request(
        {
            "messages": [
                {"role": "user", "content": "q"},
                {
                    "role": "assistant",
                    "content": "a",
                    "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
                },
                {"role": "tool", "tool_call_id": "c", "content": "1"},
            ],
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
        }
    )
    written = responses.write_request(request)
    assert [item["type"] for item in written["input"]] == [
        "message",
        "message",
        "function_call",
        "function_call_output",
    ]
    assert written["tools"][0]["name"] == "f"
    assert responses.read_request(written).messages == request.messages


def test_a_backends_reply_is_read_and_written_back():
    reply = ModelReply("resp_1", "m", 17, (Choice(0, (Text("x"), ToolCall("f", "{}", "c")), "tool_calls"),))
    request = read("q")
    body = responses.write_reply(reply, request)
    assert responses.write_reply(responses.read_reply(body), request) == body
    assert b"".join(replay(responses.stream_writer(request, Head.of(reply)), reply))
