"""Tools of Responses over a real server: namespaces, custom tools, those that the client runs, those of a provider."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import WebSearchTool

from nemo_gym.dialects import responses
from nemo_gym.exchange.errors import InvalidRequest
from nemo_gym.model_server import said
from tests.bench import bench
from tests.scripted import Answer, chat_reply, output_text, responses_reply, tool_call

SPAWN = {"type": "function", "name": "spawn", "parameters": {"type": "object"}}
F = {"type": "function", "name": "f", "parameters": {"type": "object"}}
EXEC = {"type": "custom", "name": "exec", "description": "Runs code."}


@pytest.fixture(autouse=True)
def _nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(said, "_said", set())


def called(*calls: tuple[str, str]) -> Answer:
    found = [tool_call(name, arguments, f"c{n}") for n, (name, arguments) in enumerate(calls)]
    return Answer(chat_reply(None, message={"tool_calls": found}))


async def both(client: openai.AsyncOpenAI, **asked: Any) -> list[dict[str, Any]]:
    """The output items, which are the same streamed and not, but for their response's id."""
    whole = await client.responses.create(model="m", **asked)
    items = []
    async for event in await client.responses.create(model="m", stream=True, **asked):
        if event.type == "response.output_item.done":
            items.append(event.item.to_dict())
    found = [item.to_dict() for item in whole.output]
    for one, other in zip(found, items, strict=True):
        assert {**one, "id": ""} == {**other, "id": ""}
    return found


async def test_a_namespaced_tool_is_flat_for_the_backend_and_itself_for_the_client(tmp_path: Path) -> None:  # R6
    spaces = ["agents", "mcp.server/one", "mcp_server_one", "x" * 70]
    tools: Any = [{"type": "namespace", "name": space, "description": "", "tools": [SPAWN]} for space in spaces]
    async with bench(tmp_path, [called(("agents__spawn", "{}"))]) as at:
        await both(at.client(), input="Hi", tools=tools)
        flat = [tool["function"]["name"] for tool in at.backend.calls[0].json()["tools"]]
    assert flat[0] == "agents__spawn"
    assert len(set(flat)) == 4
    assert all(len(name) <= 64 and name.replace("_", "").replace("-", "").isalnum() for name in flat)
    async with bench(tmp_path, [called(*((name, "{}") for name in flat))]) as at:
        items = await both(at.client(), input="Hi", tools=tools)
        assert [(item["type"], item["name"], item["namespace"]) for item in items] == [
            ("function_call", "spawn", space) for space in spaces
        ]
        await both(at.client(), input=[{"role": "user", "content": "Hi"}, *items], tools=tools)
        (turn,) = at.backend.calls[-1].json()["messages"][1:]
        assert [call["function"]["name"] for call in turn["tool_calls"]] == flat


@pytest.mark.parametrize("name", ["exec", "functions.exec", "code__exec", "functions__exec"])
async def test_a_call_reaches_the_tool_as_it_was_declared(tmp_path: Path, name: str) -> None:  # R5 R6 R7
    tools = {"type": "additional_tools", "role": "developer", "tools": [F, {"type": "namespace", "name": "code"}]}
    tools["tools"][1]["tools"] = [EXEC]  # type: ignore[index]
    asked: Any = [tools, {"role": "user", "content": "Hi"}]
    async with bench(tmp_path, [called((name, '{"input": "print(1)"}'))]) as at:
        (item,) = await both(at.client(), input=asked)
        body = at.backend.calls[0].json()
    assert (item["type"], item["name"], item["namespace"], item["input"]) == (
        "custom_tool_call",
        "exec",
        "code",
        "print(1)",
    )
    assert [tool["function"]["name"] for tool in body["tools"]] == ["f", "code__exec"]
    assert body["messages"] == [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize("broken", [{"type": "function"}, {"type": "namespace", "name": "n", "tools": [{}]}, 5])
def test_what_additional_tools_holds_is_checked_as_tools(broken: Any) -> None:  # R5
    with pytest.raises(InvalidRequest) as caught:
        responses.read_request({"input": [{"type": "additional_tools", "tools": [F, broken]}]})
    assert caught.value.param is not None
    assert caught.value.param.startswith("input[0].tools[1]")


GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": "start: WORD"}


@pytest.mark.parametrize(
    ("arguments", "raw"),
    [
        ('{"input": "a\\nb"}', "a\nb"),
        ('{"patch": "a"}', "a"),
        ('{"a": "b", "c": "d"}', '{"a": "b", "c": "d"}'),
        ('{"input": 5}', '{"input": 5}'),
        ("plain text", "plain text"),
        ('"quoted"', '"quoted"'),
        ("", ""),
    ],
)
async def test_a_custom_tool_comes_back_with_its_raw_input(tmp_path: Path, arguments: str, raw: str) -> None:  # R7
    tool: Any = {"type": "custom", "name": "apply_patch", "description": "Patches.", "format": GRAMMAR}
    async with bench(tmp_path, [called(("apply_patch", arguments))]) as at:
        (item,) = await both(at.client(), input="Hi", tools=[tool])
        assert (item["type"], item["call_id"], item["input"]) == ("custom_tool_call", "c0", raw)
        function = at.backend.calls[0].json()["tools"][0]["function"]
        assert function["parameters"] == {
            "type": "object",
            "properties": {"input": {"type": "string"}},
            "required": ["input"],
        }
        assert "start: WORD" in function["description"]
        result = {"type": "custom_tool_call_output", "call_id": "c0", "output": "done"}
        await both(at.client(), input=[{"role": "user", "content": "Hi"}, item, result], tools=[tool])
        _, turn, outcome = at.backend.calls[-1].json()["messages"]
    assert json.loads(turn["tool_calls"][0]["function"]["arguments"]) == {"input": raw}
    assert (outcome["tool_call_id"], outcome["content"]) == ("c0", "done")


SEARCH: Any = {
    "type": "tool_search",
    "execution": "client",
    "description": "Finds tools.",
    "parameters": {"type": "object", "properties": {"query": {"type": "string"}}},
}
CLIENT_RUN: Any = [
    (SEARCH, "tool_search", '{"query": "x"}', {"execution": "client", "arguments": {"query": "x"}}),
    (
        {"type": "local_shell"},
        "local_shell",
        '{"command": ["ls", "-l"]}',
        {"action": {"type": "exec", "command": ["ls", "-l"], "env": {}}},
    ),
    (
        {"type": "shell", "environment": {"type": "local"}},
        "shell",
        '{"commands": ["ls"], "timeout_ms": 5}',
        {"action": {"commands": ["ls"], "timeout_ms": 5, "max_output_length": None}},
    ),
    (
        {"type": "apply_patch"},
        "apply_patch",
        '{"type": "create_file", "path": "a", "diff": "+b"}',
        {"operation": {"type": "create_file", "path": "a", "diff": "+b"}},
    ),
    (SEARCH, "tool_search", "not JSON", {"arguments": {}}),
]


@pytest.mark.parametrize(("tool", "name", "arguments", "said_of_it"), CLIENT_RUN)
@pytest.mark.parametrize("from_disk", [False, True])
async def test_tools_that_the_client_runs_come_back_under_their_own_type(
    tmp_path: Path, tool: Any, name: str, arguments: str, said_of_it: Any, from_disk: bool
) -> None:  # A18
    async with bench(tmp_path, [called((name, arguments))]) as at:
        client = at.client()
        (item,) = await both(client, input="Hi", tools=[tool])
        assert (item["type"], item["call_id"], item["status"]) == (f"{name}_call", "c0", "completed")
        assert {field: item[field] for field in said_of_it} == said_of_it
        function = at.backend.calls[0].json()["tools"][0]["function"]
        assert (function["name"], function["parameters"]["type"]) == (name, "object")
        (record, *_) = at.records()
        assert record.reply.choices[0].parts[0].arguments == arguments
        if from_disk:
            found = await client.responses.retrieve(record.reply.id)
            assert found.output[0].to_dict() == item | {"id": found.output[0].id}
        # What the client sends back is the call and its result.
        output = {"type": f"{name}_call_output", "id": item["id"], "output": "it ran"}
        await both(client, input=[{"role": "user", "content": "Hi"}, item, output], tools=[tool])
        _, turn, *rest = at.backend.calls[-1].json()["messages"]
    (call,) = turn["tool_calls"]
    assert (call["id"], call["function"]["name"]) == ("c0", name)
    if arguments.startswith("{"):
        assert json.loads(call["function"]["arguments"]).items() >= json.loads(arguments).items()
    if name != "tool_search":
        assert rest == [{"role": "tool", "tool_call_id": "c0", "content": "it ran"}]


async def test_what_a_search_of_the_client_found_can_be_called(tmp_path: Path) -> None:  # A18 R5
    call = {"type": "tool_search_call", "call_id": "c0", "execution": "client", "arguments": {"query": "x"}}
    found = [F, {"type": "namespace", "name": "agents", "description": "", "tools": [SPAWN]}]
    output = {"type": "tool_search_output", "call_id": "c0", "execution": "client", "status": "completed"}
    asked: Any = [{"role": "user", "content": "Hi"}, call, {**output, "tools": found}]
    async with bench(tmp_path, [called(("agents__spawn", "{}"))]) as at:
        (item,) = await both(at.client(), input=asked, tools=[SEARCH])
        body = at.backend.calls[0].json()
    assert (item["type"], item["name"], item["namespace"]) == ("function_call", "spawn", "agents")
    assert [tool["function"]["name"] for tool in body["tools"]] == ["tool_search", "f", "agents__spawn"]
    told = json.loads(body["messages"][2]["content"])
    assert [tool["name"] for tool in told["tools"]] == ["f", "agents__spawn"]
    with pytest.raises(InvalidRequest) as caught:
        responses.read_request({"input": [{**output, "tools": [{"type": "function"}]}]})
    assert caught.value.param == "input[0].tools[0].name"


async def test_a_responses_backend_gets_its_own_items_and_tools(tmp_path: Path) -> None:  # A18 R3 R12
    shell: Any = {"type": "local_shell_call", "id": "lsh_1", "call_id": "c1", "status": "completed"}
    shell["action"] = {"type": "exec", "command": ["ls"], "env": {}, "user": "me"}
    reply = responses_reply(shell, output_text("x"))
    tools: Any = [{"type": "local_shell"}, {"type": "web_search"}, SEARCH, {"type": "mcp", "server_label": "s"}]
    async with bench(tmp_path, [Answer(reply)], api="responses") as at:
        client = at.client()
        items = await both(client, input="Hi", tools=tools)
        assert items[0] == shell
        asked: Any = [{"role": "user", "content": "Hi"}, *items, {"type": "local_shell_call_output", "id": "lsh_1"}]
        asked[-1]["output"] = "{}"
        await both(client, input=asked, tools=tools)
        body = at.backend.calls[-1].json()
    assert body["tools"] == tools
    assert body["input"] == asked


async def test_what_a_provider_ran_itself_is_passed_through(tmp_path: Path) -> None:  # A18 R12
    search = {"type": "tool_search_call", "id": "tsc_1", "execution": "server", "status": "completed", "arguments": {}}
    found = {"type": "tool_search_output", "id": "tso_1", "execution": "server", "status": "completed", "tools": [F]}
    container = {"type": "container_reference", "container_id": "c"}
    shell = {"type": "shell_call", "id": "sh_1", "call_id": "c1", "environment": container, "status": "completed"}
    ran = [search, found, shell | {"action": {"commands": ["ls"]}}]
    async with bench(tmp_path, [Answer(responses_reply(*ran, output_text("Done.")))], api="responses") as at:
        items = await both(at.client(), input="Hi", tools=[{"type": "tool_search"}, {"type": "shell"}, F])
        assert items[:3] == ran
        record, *_ = at.records()
        assert record.reply.choices[0].finish == "stop"


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "web_search"},
        {"type": "web_search", "external_web_access": True},
        {"type": "web_search_preview"},
        {"type": "code_interpreter", "container": {"type": "auto"}},
        {"type": "mcp", "server_label": "s"},
        {"type": "shell", "environment": {"type": "container_auto"}},
        {"type": "of_next_year"},
    ],
)
async def test_a_tool_that_a_provider_runs_is_refused_or_ignored(  # R8
    tmp_path: Path, tool: Any, caplog: pytest.LogCaptureFixture
) -> None:
    body = {"input": "Hi", "tools": [F, tool], "tool_choice": {"type": tool["type"]}}
    async with bench(tmp_path, [Answer(chat_reply())]) as at, httpx.AsyncClient(timeout=60) as client:
        answer = await client.post(f"{at.url}/v1/responses", json=body)
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error["param"] == "tools"
        assert error["message"].startswith(f"tools[1]: {tool['type']} is run by a provider")
        assert ('web_search="disabled"' in error["message"]) == tool["type"].startswith("web_search")
    async with (
        bench(tmp_path, [Answer(chat_reply())], web_search="ignore") as at,
        httpx.AsyncClient(timeout=60) as client,
    ):
        for _ in range(2):
            assert (await client.post(f"{at.url}/v1/responses", json=body)).status_code == 200
        sent = at.backend.calls[0].json()
    assert [one["function"]["name"] for one in sent["tools"]] == ["f"]
    assert sent.get("tool_choice", "auto") == "auto"
    assert sum("is left out" in one for one in caplog.messages) == 1


async def test_a_search_that_may_not_leave_the_cache_is_no_tool(tmp_path: Path) -> None:  # R8
    tool: Any = {"type": "web_search", "external_web_access": False}
    model_object = WebSearchTool.construct(**tool)
    assert responses.read_request({"input": "Hi", "tools": [tool]}).tools == ()
    assert responses.read_request({"input": "Hi", "tools": [model_object]}).tools == ()
    live = responses.read_request({"input": "Hi", "tools": [WebSearchTool(type="web_search")]}).tools
    assert live == responses.read_request({"input": "Hi", "tools": [{"type": "web_search"}]}).tools
    async with bench(tmp_path, [Answer(chat_reply())]) as at:
        await at.client().responses.create(model="m", input="Hi", tools=[tool])
        assert "tools" not in at.backend.calls[0].json()


async def test_background_warns_once_and_runs_in_the_foreground(  # A18
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with bench(tmp_path, [Answer(chat_reply())]) as at:
        for _ in range(2):
            response = await at.client().responses.create(model="m", input="Hi", background=True)
            assert (response.status, response.background) == ("completed", False)
        assert "background" not in at.backend.calls[0].json()
    warned = [one for one in caplog.records if one.levelno == logging.WARNING and "background" in one.message]
    assert len(warned) == 1


async def test_only_allowed_tools_are_offered(tmp_path: Path) -> None:  # R13
    tools: Any = [F, {**F, "name": "g"}, EXEC, {"type": "namespace", "name": "n", "description": "", "tools": [SPAWN]}]
    allowed = [{"type": "function", "name": "g"}, {"type": "custom", "name": "exec"}]
    choice: Any = {"type": "allowed_tools", "mode": "required", "tools": allowed}
    async with bench(tmp_path, [Answer(chat_reply())]) as at:
        response = await at.client().responses.create(model="m", input="Hi", tools=tools, tool_choice=choice)
        body = at.backend.calls[0].json()
    assert [tool["function"]["name"] for tool in body["tools"]] == ["g", "exec"]
    assert body["tool_choice"] == "required"
    assert response.tool_choice.to_dict() == choice
    assert len(response.tools) == 4
    async with bench(tmp_path, [Answer(responses_reply())], api="responses") as at:
        await at.client().responses.create(model="m", input="Hi", tools=tools, tool_choice=choice)
        body = at.backend.calls[0].json()
    assert (body["tools"], body["tool_choice"]) == (tools, choice)


async def test_named_and_forbidden_choices(tmp_path: Path) -> None:  # A10 R13
    tools: Any = [F, EXEC, {"type": "namespace", "name": "n", "description": "", "tools": [SPAWN]}]
    choices: Any = [
        ("none", "none"),
        ({"type": "function", "name": "f"}, {"type": "function", "function": {"name": "f"}}),
        ({"type": "custom", "name": "exec"}, {"type": "function", "function": {"name": "exec"}}),
        ({"type": "function", "name": "spawn"}, {"type": "function", "function": {"name": "n__spawn"}}),
    ]
    async with bench(tmp_path, [Answer(chat_reply("<tool_call>f</tool_call>"))]) as at:
        for choice, _ in choices:
            response = await at.client().responses.create(model="m", input="Hi", tools=tools, tool_choice=choice)
            assert response.output_text == "<tool_call>f</tool_call>"
        sent = [call.json()["tool_choice"] for call in at.backend.calls]
    assert sent == [expected for _, expected in choices]


LONG = "call_" + "x" * 100


@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_ids_that_are_too_long_fit_and_come_back(tmp_path: Path, api: str) -> None:  # R15
    other = LONG + "y"
    asked: Any = [
        {"role": "user", "content": "Hi"},
        {"type": "function_call", "id": "fc_" + LONG, "call_id": LONG, "name": "f", "arguments": "{}"},
        {"type": "custom_tool_call", "id": "ctc_1", "call_id": other, "name": "exec", "input": "x"},
        {"type": "function_call_output", "call_id": LONG, "output": "1"},
        {"type": "custom_tool_call_output", "call_id": other, "output": "2"},
    ]
    tools: Any = [F, EXEC]
    async with bench(tmp_path, [Answer(chat_reply() if api == "chat" else responses_reply())], api=api) as at:
        await at.client().responses.create(model="m", input=asked, tools=tools)
        body = at.backend.calls[0].json()
    if api == "chat":
        _, turn, *results = body["messages"]
        ids = [call["id"] for call in turn["tool_calls"]]
        assert [result["tool_call_id"] for result in results] == ids
    else:
        ids = [item["call_id"] for item in body["input"][1:3]]
        assert [item["call_id"] for item in body["input"][3:]] == ids
        assert len(body["input"][1]["id"]) == 64
    assert len(set(ids)) == 2
    assert {len(one) for one in ids} == {64}
    # A backend that names such a call again names the client's.
    again = tool_call("f", "{}", ids[0])
    reply = chat_reply(None, message={"tool_calls": [again]})
    if api == "responses":
        reply = responses_reply({"type": "function_call", "call_id": ids[0], "name": "f", "arguments": "{}"})
    async with bench(tmp_path, [Answer(reply)], api=api) as at:
        (item,) = await both(at.client(), input=asked, tools=tools)
    assert item["call_id"] == LONG
