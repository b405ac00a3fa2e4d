"""The real Codex: three tool protocols, reasoning that comes back, a sub-agent, a compaction, a resume, a search."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nemo_gym.agent_server.trajectory import Trajectory
from nemo_gym.capture.record import CallRecord
from tests.live import clients
from tests.live.conftest import Servers
from tests.live.test_clients import PLAN, PROMPT, finished, written
from tests.player import Call, Player, Turn, shell

pytestmark = [pytest.mark.live, pytest.mark.ci]

PATCH = "*** Begin Patch\n*** Add File: note.txt\n+written by a tool\n*** End Patch\n"
THOUGHTS = ["The task is to write a file.", "A patch will do."]
PATCHED = {
    "TASK write": [
        Turn((Call(("apply_patch",), PATCH),), reasoning=tuple(THOUGHTS)),
        Turn(text="note.txt is there.", reasoning=("Nothing is left to do.",)),
    ]
}


def items(call: CallRecord, kind: str) -> list[dict]:
    """The input items of a kind, as the client sent them."""
    assert call.received is not None and call.received.origin is not None
    return [item for item in call.received.origin.body["input"] if item.get("type") == kind]


def kinds(call: CallRecord) -> set[str]:
    """The kinds of tools that are offered outside the input."""
    assert call.received is not None and call.received.origin is not None
    return {tool["type"] for tool in call.received.origin.body.get("tools", ())}


@pytest.mark.parametrize("backend", ["chat", "responses"])
def test_function_and_namespace_tools(servers: Servers, tmp_path: Path, backend: str) -> None:  # R4 R6 R24
    rollout_id = f"codex-functions-{backend}"
    agent = clients.codex(servers.urls[backend])
    first, second = written(servers, agent, tmp_path, rollout_id)
    assert (first.relation, second.relation) == ("first", "turn")
    assert kinds(first) == {"function", "namespace"}
    (thought,) = items(second, "reasoning")
    assert thought["summary"] == [{"type": "summary_text", "text": "The task is to write a file."}]
    if backend == "responses":
        assert thought["encrypted_content"] == "gAAAA00010000" * 8
        assert thought.pop("content") is None  # what a provider would refuse (R4)
        assert servers.backend.calls[1].json()["input"] == second.received.origin.body["input"]


@pytest.mark.parametrize("backend", ["chat", "responses"])
def test_custom_tools(servers: Servers, tmp_path: Path, backend: str) -> None:  # R7
    rollout_id = f"codex-custom-{backend}"
    agent = clients.codex(servers.urls[backend], model_name="gpt-5.5")
    servers.play(Player(PATCHED))
    ended = clients.run(agent, tmp_path, rollout_id, PROMPT)
    first, second = finished(servers, ended, rollout_id)
    assert ended.note() == "written by a tool\n"
    assert kinds(first) == {"function", "custom", "tool_search"}
    (patch,) = items(second, "custom_tool_call")
    assert (patch["name"], patch["input"]) == ("apply_patch", PATCH)
    sent = [part["text"] for thought in items(second, "reasoning") for part in thought["summary"]]
    assert "\n".join(sent) == "\n".join(THOUGHTS)


@pytest.mark.parametrize("backend", ["chat", "responses"])
def test_code_in_additional_tools(servers: Servers, tmp_path: Path, backend: str) -> None:  # R5 R7
    rollout_id = f"codex-code-{backend}"
    agent = clients.codex(servers.urls[backend], model_name="gpt-5.6-sol")
    first, second = written(servers, agent, tmp_path, rollout_id)
    assert kinds(first) == set()
    assert len(items(first, "additional_tools")) == 1
    (code,) = items(second, "custom_tool_call")
    assert code["name"] == "exec"


AGENT_ID = re.compile(r'"agent_id":\s*"([^"]+)"')
DELEGATED = {
    "TASK delegate": [
        Turn((Call(("spawn_agent",), {"message": "TASK write: write the file note.txt for me."}),)),
        Turn((Call(("wait_agent",), {"targets": [AGENT_ID]}),)),
        Turn(text="The sub-agent wrote it."),
    ],
    **PLAN,
}


@pytest.mark.parametrize("backend", ["chat", "responses"])
def test_a_sub_agent(servers: Servers, tmp_path: Path, backend: str) -> None:  # R3 R6
    rollout_id = f"codex-subagent-{backend}"
    agent = clients.codex(servers.urls[backend])
    servers.play(Player(DELEGATED))
    ended = clients.run(agent, tmp_path, rollout_id, "TASK delegate: have a sub-agent write note.txt.")
    calls = finished(servers, ended, rollout_id)
    assert ended.note() == "written by a tool"
    assert "The sub-agent wrote it." in ended.said
    assert sorted(call.relation for call in calls) == ["first", "subagent", "turn", "turn", "turn"]
    parents = {call.call_id: call.parent_call_id for call in calls}
    (spawned,) = [call for call in calls if call.relation == "subagent"]
    (main,) = [call for call in calls if call.relation == "first"]
    assert spawned.parent_call_id == main.call_id
    assert list(parents.values()).count(spawned.call_id) == 1
    trajectory = Trajectory(calls)
    assert [(branch.relation, len(branch.call_ids)) for branch in trajectory.branches] == [
        ("first", 3),
        ("subagent", 2),
    ]
    said = [item["type"] for item in trajectory.items()]
    assert said == ["function_call", "function_call_output", "function_call", "function_call_output", "message"]


def test_tools_that_were_searched_for(servers: Servers, tmp_path: Path) -> None:  # A18
    rollout_id = "codex-tool-search"
    searches = Turn((Call(("tool_search",), {"query": "spawn a sub-agent", "limit": 8}),))
    plans = DELEGATED | {"TASK delegate": [searches, *DELEGATED["TASK delegate"]]}
    servers.play(Player(plans))
    agent = clients.codex(servers.urls["chat"], model_name="gpt-5.5")
    ended = clients.run(agent, tmp_path, rollout_id, "TASK delegate: have a sub-agent write note.txt.")
    calls = finished(servers, ended, rollout_id)
    assert ended.note() == "written by a tool"
    assert len(items(calls[-1], "tool_search_call")) == 1


@pytest.mark.parametrize("backend", ["chat", "responses"])
def test_a_compaction(servers: Servers, tmp_path: Path, backend: str) -> None:  # R29
    rollout_id = f"codex-compaction-{backend}"
    agent = clients.codex(servers.urls[backend], compact_at_tokens=20_000)
    plan = {"TASK write": [*PLAN["TASK write"][:1], Turn((shell("cat note.txt"),)), Turn(text="note.txt is there.")]}
    servers.play(Player(plan, usage=lambda seen: 1000 if seen.done else 50_000))
    ended = clients.run(agent, tmp_path, rollout_id, PROMPT)
    first, asked, after, last = finished(servers, ended, rollout_id)
    assert ended.note() == "written by a tool"
    assert "note.txt is there." in ended.said
    assert (first.relation, asked.relation, after.relation, last.relation) == (
        "first",
        "compaction",
        "compaction",
        "turn",
    )
    assert [call.parent_call_id for call in (asked, after, last)] == [first.call_id, asked.call_id, after.call_id]
    assert not asked.received.tools
    assert [branch.call_ids for branch in Trajectory([first, asked, after, last]).branches] == [
        [first.call_id, after.call_id, last.call_id],
        [asked.call_id],
    ]
    assert (first.reply.usage.prompt, after.reply.usage.prompt) == (50_000, 1000)


def test_resume(servers: Servers, tmp_path: Path) -> None:  # R12
    rollout_id = "codex-resume"
    plan = {"TASK more": [*PLAN["TASK write"][:1], Turn(text="Still there.")], **PLAN}
    servers.play(Player(plan))
    ended = clients.run(clients.codex(servers.urls["chat"]), tmp_path, rollout_id, PROMPT)
    assert ended.code == 0, ended.said
    again = clients.codex_again(servers.urls["chat"])
    ended = clients.run(again, tmp_path, rollout_id, "TASK more: is it still there?")
    calls = finished(servers, ended, rollout_id)
    assert "Still there." in ended.said
    assert [call.relation for call in calls] == ["first", "turn", "turn"]
    assert len(items(calls[-1], "reasoning")) == 2


def test_a_refused_search_names_the_setting(servers: Servers, tmp_path: Path) -> None:  # R8
    rollout_id = "codex-search"
    servers.play(Player(PLAN))
    ended = clients.run(clients.codex(servers.urls["chat"], web_search="live"), tmp_path, rollout_id, PROMPT)
    assert ended.code == 1
    assert "web_search" in ended.said and "disabled" in ended.said
    (call,) = servers.calls(rollout_id)
    assert (call.status, call.error.status) == ("rejected", 400)
    assert servers.backend.calls == []
