"""What Messages clients send, as agents send it; what other backends and a Messages backend are asked. # M1"""

import json

import pytest

from nemo_gym.dialects import chat, messages, responses
from nemo_gym.dialects.signature import sign
from nemo_gym.exchange.errors import InvalidRequest
from nemo_gym.exchange.parts import Media, Message, Other, Reasoning, Text, ToolCall, ToolResult
from nemo_gym.exchange.request import ModelRequest, Sampling
from nemo_gym.exchange.tools import Tool

TOOL = {"name": "get_weather", "description": "W.", "input_schema": {"type": "object", "properties": {}}}
EPHEMERAL = {"type": "ephemeral"}


def read(*said, **fields):
    body = {"model": "m", "max_tokens": 9, "messages": list(said) or [{"role": "user", "content": "q"}]} | fields
    return messages.read_request(body)


def user(*blocks):
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks):
    return {"role": "assistant", "content": list(blocks)}


def text(words, **more):
    return {"type": "text", "text": words, **more}


def refused(**fields):
    with pytest.raises(InvalidRequest) as caught:
        messages.read_request({"messages": [{"role": "user", "content": "q"}], "max_tokens": 9} | fields)
    assert caught.value.status == 400
    return caught.value.message


def test_what_claude_code_sends():  # clients.md
    request = read(
        user(text("<system-reminder>r</system-reminder>"), text("Do it.")),
        {"role": "system", "content": [text("# Environment", cache_control=EPHEMERAL)]},
        system=[
            text("x-anthropic-billing-header: cc_version=2.1;"),
            text("You are an agent.", cache_control=EPHEMERAL),
        ],
        tools=[TOOL, {"name": "Later", "description": "", "input_schema": {"type": "object"}, "defer_loading": True}],
        thinking={"type": "adaptive", "display": "omitted"},
        output_config={"effort": "high"},
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        metadata={"user_id": "u"},
        stream=True,
    )
    assert request.messages == (
        Message("system", (Text("You are an agent."),)),
        Message("user", (Text("<system-reminder>r</system-reminder>"), Text("Do it."))),
        Message("system", (Text("# Environment"),)),
    )
    assert request.effort == "high"
    assert [(tool.name, tool.kind) for tool in request.tools] == [("get_weather", "function"), ("Later", "provider")]
    asked = chat.write_request(request)
    assert [tool["function"]["name"] for tool in asked["tools"]] == ["get_weather"]
    assert "billing" not in json.dumps(asked)
    again = messages.write_request(request)
    assert again["system"] == request.origin.body["system"]
    assert again["messages"][0] == request.origin.body["messages"][0]
    assert again["tools"] == request.origin.body["tools"]
    assert again["thinking"] == {"type": "adaptive", "display": "omitted"}
    assert again["context_management"] == request.origin.body["context_management"]
    assert "stream" not in again


def test_a_system_message_as_a_string_is_the_same_message():
    one = read({"role": "user", "content": "q"}, {"role": "system", "content": "S"})
    other = read({"role": "user", "content": "q"}, {"role": "system", "content": [text("S", cache_control=EPHEMERAL)]})
    assert one.messages == other.messages
    assert messages.write_request(one)["messages"][1] == {"role": "system", "content": "S"}


def test_every_block():
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
    blocks = [
        image,
        {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}},
        {"type": "image", "source": {"type": "file", "file_id": "f"}},
        {"type": "document", "title": "T", "source": {"type": "text", "media_type": "text/plain", "data": "D"}},
        {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "AA=="}},
        {"type": "document", "source": {"type": "content", "content": [text("a"), text("b")]}},
        {"type": "document", "title": "P", "source": {"type": "content", "content": [text("a"), image]}},
        {"type": "search_result", "title": "S", "source": "https://x", "content": [text("found")]},
        {"type": "container_upload", "file_id": "f"},
    ]
    (message,) = read(user(*blocks)).messages
    assert message.parts == (
        Media("image", "data:image/png;base64,AA=="),
        Media("image", "https://x/y.png"),
        Other("messages", blocks[2]),
        Text("T\nD"),
        Media("document", "data:application/pdf;base64,AA=="),
        Text("ab"),
        Text("P"),
        Text("a"),
        Media("image", "data:image/png;base64,AA=="),
        Text("S\nhttps://x\nfound"),
        Other("messages", blocks[8]),
    )
    written = messages.write_request(read(user(*blocks)))["messages"][0]["content"]
    assert written[:6] == blocks[:6]
    assert written[6:9] == [text("P"), text("a"), image]
    assert written[9:] == blocks[7:]


def test_a_turn_of_calls_and_its_results():
    request = read(
        {"role": "user", "content": "q"},
        assistant(
            {"type": "thinking", "thinking": "hm", "signature": "theirs"},
            {"type": "redacted_thinking", "data": "sealed"},
            text("I look."),
            {
                "type": "tool_use",
                "id": "toolu_1",
                "name": "get_weather",
                "input": {"city": "Oslo", "n": 12345678901234567890123},
            },
        ),
        user(
            text("Before."),
            {"type": "tool_result", "tool_use_id": "toolu_1", "content": [text("rain")], "is_error": True},
            {"type": "tool_result", "tool_use_id": "toolu_2"},
        ),
        tools=[TOOL],
    )
    arguments = '{"city": "Oslo", "n": 12345678901234567890123}'  # A13
    assert request.messages[1:] == (
        Message(
            "assistant",
            (
                Reasoning("hm", payload="theirs"),
                Reasoning("", payload="sealed"),
                Text("I look."),
                ToolCall("get_weather", arguments, "toolu_1"),
            ),
        ),
        Message("tool", (ToolResult("toolu_1", (Text("rain"),), True),)),
        Message("tool", (ToolResult("toolu_2", ()),)),
        Message("user", (Text("Before."),)),
    )
    asked = chat.write_request(request)["messages"]
    assert asked[1]["reasoning_content"] == "hm"
    assert asked[1]["tool_calls"][0]["function"]["arguments"] == arguments
    assert asked[2:] == [
        {"role": "tool", "tool_call_id": "toolu_1", "content": "rain"},
        {"role": "tool", "tool_call_id": "toolu_2", "content": ""},
        {"role": "user", "content": "Before."},
    ]
    given, again = request.origin.body["messages"], messages.write_request(request)["messages"]
    assert again[:2] == given[:2]
    assert again[2] == user(given[2]["content"][1], given[2]["content"][2], given[2]["content"][0])


def test_a_signature_of_ours_is_known_again():
    ours = {"type": "thinking", "thinking": "hm", "signature": sign("hm")}
    edited = {"type": "thinking", "thinking": "hmm", "signature": sign("hm")}
    bare = {"type": "thinking", "thinking": "x"}
    request = read({"role": "user", "content": "q"}, assistant(ours, edited, bare, text("a")))
    assert request.messages[1].parts == (
        Reasoning("hm"),
        Reasoning("hmm", payload=sign("hm")),
        Reasoning("x"),
        Text("a"),
    )
    # A provider would refuse what it did not sign; every other backend gets the text.
    assert messages.write_request(request)["messages"][1]["content"] == [edited, text("a")]
    assert chat.write_request(request)["messages"][1]["reasoning_content"] == "hm\nhmm\nx"


@pytest.mark.parametrize(
    ("choice", "read_as", "parallel", "asked"),
    [
        ({"type": "auto"}, "auto", True, None),
        ({"type": "any"}, "required", True, "required"),
        ({"type": "none"}, "none", True, "none"),
        ({"type": "auto", "disable_parallel_tool_use": True}, "auto", False, None),
        (
            {"type": "tool", "name": "get_weather"},
            Tool("get_weather", "W.", TOOL["input_schema"]),
            True,
            {"type": "function", "function": {"name": "get_weather"}},
        ),
    ],
)
def test_tool_choice(choice, read_as, parallel, asked):
    request = read(tools=[TOOL], tool_choice=choice)
    assert (request.tool_choice, request.parallel_tool_calls) == (read_as, parallel)
    written = chat.write_request(request)
    assert written.get("tool_choice") in (asked, "auto" if asked is None else asked)
    assert written.get("parallel_tool_calls") == (None if parallel else False)
    assert messages.write_request(request)["tool_choice"] == choice


@pytest.mark.parametrize(
    ("thinking", "effort", "asked"),
    [
        ({"type": "enabled", "budget_tokens": 2048}, None, None),
        ({"type": "adaptive"}, "max", "max"),
        ({"type": "disabled"}, "high", "none"),
        ({"type": "between_tools"}, "low", "low"),
    ],
)
def test_thinking(thinking, effort, asked):
    request = read(thinking=thinking, output_config={"effort": effort})
    assert request.effort == asked
    assert chat.write_request(request).get("reasoning_effort") == asked
    again = messages.write_request(request)
    assert again["thinking"] == thinking
    assert again["output_config"] == {"effort": effort}


def test_sampling_and_the_output_s_schema():
    schema = {"type": "object"}
    request = read(
        stop_sequences=["END", "\n\n"],
        top_k=5,
        top_p=0.9,
        temperature=0.1,
        output_config={"format": {"type": "json_schema", "schema": schema}},
    )
    assert request.sampling == Sampling(0.1, 0.9, 5, max_tokens=9, stop=("END", "\n\n"))
    assert request.output_schema == schema
    asked = chat.write_request(request)
    assert (asked["stop"], asked["top_k"], asked["max_tokens"]) == (["END", "\n\n"], 5, 9)
    assert asked["response_format"]["json_schema"]["schema"] == schema
    assert read(output_format={"type": "json_schema", "schema": schema}).output_schema == schema
    again = messages.write_request(request)
    assert again["stop_sequences"] == ["END", "\n\n"]
    assert again["output_config"]["format"]["schema"] == schema


def test_a_tool_that_is_held_back_is_loaded_by_a_reference():  # defer_loading
    later = {"name": "Later", "input_schema": {"type": "object"}, "defer_loading": True}
    found = {
        "type": "tool_result",
        "tool_use_id": "t",
        "content": [{"type": "tool_reference", "tool_name": "Later"}],
    }
    call = {"type": "tool_use", "id": "t", "name": "ToolSearch", "input": {}}
    before = read(tools=[TOOL, later])
    after = read({"role": "user", "content": "q"}, assistant(call), user(found), tools=[TOOL, later])
    assert [tool.kind for tool in before.tools] == ["function", "provider"]
    assert [tool.kind for tool in after.tools] == ["function", "function"]
    assert chat.write_request(after)["messages"][2]["content"] == "The tool Later is loaded."
    assert messages.write_request(after)["messages"][2]["content"] == [found]
    assert messages.write_request(after)["tools"] == [TOOL, later]
    searched = {
        "type": "tool_search_tool_result",
        "tool_use_id": "s",
        "content": {
            "type": "tool_search_tool_search_result",
            "tool_references": [{"type": "tool_reference", "tool_name": "Later"}],
        },
    }
    by_server = read({"role": "user", "content": "q"}, assistant(searched), tools=[TOOL, later])
    assert [tool.kind for tool in by_server.tools] == ["function", "function"]


def test_a_message_defines_and_removes_tools():
    new = {"name": "New", "input_schema": {"type": "object"}}
    added = {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": new}}
    gone = {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "get_weather"}}
    request = read({"role": "user", "content": "q"}, {"role": "system", "content": [added, gone]}, tools=[TOOL])
    assert [(tool.name, tool.kind) for tool in request.tools] == [("get_weather", "provider"), ("New", "function")]
    assert [tool["function"]["name"] for tool in chat.write_request(request)["tools"]] == ["New"]
    again = messages.write_request(request)
    assert again["tools"] == [TOOL]
    assert again["messages"][1]["content"] == [added, gone]


def test_tools_that_the_client_runs_are_functions():  # A18
    declared = [
        {"type": "bash_20250124", "name": "bash"},
        {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"},
        {"type": "memory_20250818", "name": "memory"},
        {"type": "computer_20250124", "name": "computer", "display_width_px": 1, "display_height_px": 1},
        {"type": "web_search_20250305", "name": "web_search"},
    ]
    request = read(tools=declared)
    asked = chat.write_request(request)["tools"]
    assert [tool["function"]["name"] for tool in asked] == [tool["name"] for tool in declared[:4]]
    assert all(tool["function"]["parameters"]["type"] == "object" for tool in asked)
    assert len(responses.write_request(request)["tools"]) == 4
    assert messages.write_request(request)["tools"] == declared


def test_a_chat_request_for_a_messages_backend():
    audio = {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}
    request = chat.read_request(
        {
            "messages": [
                {"role": "system", "content": "S"},
                {"role": "developer", "content": "D"},
                {"role": "user", "content": [{"type": "text", "text": "q"}, audio]},
                {
                    "role": "assistant",
                    "content": None,
                    "reasoning_content": "lost",
                    "tool_calls": [
                        {"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": "[1]"}}
                    ],
                },
                {"role": "tool", "tool_call_id": "functions.f:0", "content": "r"},
                {"role": "user", "content": "more"},
                {"role": "assistant", "content": ""},
                {"role": "system", "content": "later"},
            ],
            "tools": [
                {"type": "function", "function": {"name": "f", "parameters": {"properties": {}}}},
                {"type": "custom", "custom": {"name": "patch", "description": "P."}},
            ],
            "stop": "END",
            "reasoning_effort": "minimal",
            "response_format": {"type": "json_object"},
        }
    )
    asked = messages.write_request(request)
    mapped = "toolu_ng_functions_2ef_3a0"  # M5
    assert asked == {
        "system": [text("S"), text("D")],
        "messages": [
            {"role": "user", "content": [text("q"), text("[audio left out: this model takes none]")]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": mapped, "name": "f", "input": {}}]},
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": mapped, "content": "r"}, text("more")],
            },
            {"role": "system", "content": "later"},
        ],
        "max_tokens": 8192,
        "stop_sequences": ["END"],
        "tools": [
            {"name": "f", "input_schema": {"type": "object", "properties": {}}},
            {
                "name": "patch",
                "description": "P.",
                "input_schema": {
                    "type": "object",
                    "properties": {"input": {"type": "string"}},
                    "required": ["input"],
                },
            },
        ],
        "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}, "effort": "low"},
    }
    assert messages.read_request(asked).messages[2].parts[0].call_id == "functions.f:0"


def test_thinking_turned_off_for_a_messages_backend():
    request = ModelRequest((Message("user", (Text("q"),)),), effort="none")
    assert messages.write_request(request)["thinking"] == {"type": "disabled"}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"max_tokens": None}, "max_tokens: Input should be a valid integer"),
        ({"max_tokens": "9"}, ""),
        ({"messages": []}, "messages: List should have at least 1 item after validation, not 0"),
        ({"messages": {}}, "messages: Input should be a valid list"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role: Input should be 'user', 'assistant' or"),
        ({"messages": [{"role": "user"}]}, "messages[0].content: Field required"),
        (
            {"messages": [user({"type": "image", "source": {"type": "base64", "data": "x"}})]},
            "messages[0].content[0].source.media_type: Field required",
        ),
        ({"messages": [user({"text": "x"})]}, "messages[0].content[0].type: Field required"),
        (
            {"messages": [assistant({"type": "tool_use", "id": "i", "name": "f", "input": "x"})]},
            "messages[0].content[0].input: Input should be a valid dictionary",
        ),
        ({"system": [{"type": "image"}]}, "system[0].type: Input should be 'text'"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema: Field required"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.tool.name: Field required"),
        ({"stop_sequences": "END"}, "stop_sequences: Input should be a valid list"),
        ({"output_config": {"format": {"type": "text"}}}, "output_config.format.type: Input should be 'json_schema'"),
        ({"stream": "true"}, "stream: Input should be a valid boolean"),  # A2
        ({"temperature": float("nan")}, "temperature: Input should be a finite number"),
    ],
)
def test_bad_input_is_named(fields, said):  # A3
    if said:
        assert refused(**fields).startswith(said)
    else:
        assert messages.read_request({"messages": [{"role": "user", "content": "q"}]} | fields).sampling.max_tokens == 9


@pytest.mark.parametrize("body", [None, [], "x", 3, {}])
def test_what_is_no_request_at_all(body):
    with pytest.raises(InvalidRequest):
        messages.read_request(body)


def test_a_count_needs_no_limit():  # M4
    assert messages.read_count({"messages": [{"role": "user", "content": "q"}]}).sampling == Sampling()
