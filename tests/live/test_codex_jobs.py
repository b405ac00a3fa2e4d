"""`ng_run` with Codex: a sub-agent and a compaction come out as branches, and each of its tool protocols is played."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.live.test_codex import DELEGATED, items
from tests.live.test_workspace import ROWS, Played, played
from tests.player import Call, Conversation, Player, Turn, shell

pytestmark = [pytest.mark.live, pytest.mark.ci]

AGENT = "codex_agent.responses_api_agents.codex_agent"


def task(name: str, words: str) -> dict[str, Any]:
    """A row whose reward is for a note."""
    return {
        "task_id": name,
        "responses_create_params": {"input": f"TASK {name}: {words} (Task {name};)"},
        "checks": [{"kind": "file_is", "path": "note.txt", "text": "written by a tool"}],
    }


def trained(found: Played, row: dict) -> list[tuple[int, int]]:
    """A rollout's sequences: branch, and trained tokens."""
    mine = [one for one in found.trained if one["rollout_id"] == row["_ng_rollout_id"]]
    return sorted((one["branch"], sum(one["loss_mask"])) for one in mine)


def test_a_sub_agent_and_a_compaction_are_branches(tmp_path: Path) -> None:
    rows = [task("delegate", "have a sub-agent write note.txt."), task("compact", "write note.txt, then read it.")]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    writes = Turn((shell("printf 'written by a tool' > note.txt"),))
    spawns = Turn((Call(("spawn_agent",), {"message": "TASK write: write note.txt for me. (Task delegate;)"}),))
    plans = {
        "TASK delegate": [spawns, *DELEGATED["TASK delegate"][1:]],
        "TASK write": [writes, Turn(text="note.txt is there.")],
        "TASK compact": [writes, Turn((shell("cat note.txt"),)), Turn(text="It was written and read.")],
    }
    found = played(
        tmp_path,
        "codex",
        Player(plans, usage=tokens_told),
        f"++job.input={tmp_path}/tasks.jsonl",
        f"++{AGENT}.compact_at_tokens=20000",
    )
    assert [row["reward"] for row in found.rows] == [1.0, 1.0]
    by_task = {row["task_id"]: row for row in found.rows}
    delegated, compacted = by_task["delegate"], by_task["compact"]

    assert delegated["branches"] == [{"relation": "first", "calls": 3}, {"relation": "subagent", "calls": 2}]
    assert delegated["final_message"] == "The sub-agent wrote it."
    assert trained(found, delegated) == [(0, 60), (1, 40)]

    assert compacted["branches"] == [{"relation": "first", "calls": 3}, {"relation": "compaction", "calls": 1}]
    assert compacted["final_message"] == "It was written and read."
    # A summary goes on from the conversation that it is of; what came after it has a prompt of its own.
    assert trained(found, compacted) == [(0, 40), (1, 40)]
    relations = Counter(call.relation for call in found.calls)
    assert relations == {"first": 2, "subagent": 1, "compaction": 2, "turn": 4}


def tokens_told(seen: Conversation) -> int:
    """So many that a compaction is due, once, in the task that is to have one."""
    return 50_000 if "TASK compact" in " ".join(seen.said) and not seen.done and seen.tools else 1000


def patched(row: dict) -> list[Turn]:
    """Writes the row's file with the free-form tool for patches."""
    (check,) = row["checks"]
    patch = f"*** Begin Patch\n*** Add File: {check['path']}\n+{check['text'].rstrip()}\n*** End Patch\n"
    return [Turn((Call(("apply_patch",), patch),)), Turn(text="It is written.")]


def run_by_code(row: dict) -> list[Turn]:
    return [Turn((shell(row["solution"]["command"]),)), Turn(text="It is written.")]


@pytest.mark.parametrize(
    ("model", "turns", "tool"), [("gpt-5.5", patched, "apply_patch"), ("gpt-5.6-sol", run_by_code, "exec")]
)
def test_free_form_tools(tmp_path: Path, model: str, turns: Any, tool: str) -> None:  # R5 R7
    rows = [row for row in ROWS if row["task_id"].startswith("write-")][:4]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = played(
        tmp_path,
        "codex",
        Player({f"(Task {row['task_id']};": turns(row) for row in rows}),
        f"++job.input={tmp_path}/tasks.jsonl",
        f"++{AGENT}.model_name={model}",
    )
    assert [row["reward"] for row in found.rows] == [1.0] * 4
    for row in found.rows:
        kinds = [item["type"] for item in row["response"]["output"]]
        assert kinds == ["custom_tool_call", "custom_tool_call_output", "message"]
        assert row["response"]["output"][0]["name"] == tool
        assert trained(found, row) == [(0, 40)]
    second = [call for call in found.calls if call.relation == "turn"]
    assert [items(call, "custom_tool_call")[0]["name"] for call in second] == [tool] * 4
