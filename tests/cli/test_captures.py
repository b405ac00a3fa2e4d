"""`ng_captures` on a capture that a writer made."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "capture"))

from records import conversation, record

from nemo_gym.capture import ShardWriter
from nemo_gym.cli.captures import main


@pytest.fixture
def folder(tmp_path) -> str:
    async def write() -> None:
        writer = ShardWriter(str(tmp_path), "policy", "run", "flush")
        for one in [*conversation(2, rollout_id="task-1"), record(rollout_id=None)]:
            await writer.commit(one)
        await writer.seal("task-1")
        writer.close()

    asyncio.run(write())
    return str(tmp_path)


def test_list(folder, capsys):
    assert main(["list", folder]) == 0
    printed = capsys.readouterr().out
    assert "task-1" in printed
    assert "complete" in printed
    assert main(["list", "--json", folder]) == 0
    rollouts = json.loads(capsys.readouterr().out)["rollouts"]
    assert [row["calls"] for row in rollouts] == [2, 1]
    assert rollouts[0]["completion_tokens"] == 100


def test_show_a_rollout_and_a_call(folder, capsys):
    assert main(["show", "task", folder]) == 0
    printed = capsys.readouterr().out
    assert "answer 1: a1" in printed
    assert "more characters" in printed
    assert "messages as in the call before" in printed
    assert main(["show", "task-1", folder, "--json"]) == 0
    calls = json.loads(capsys.readouterr().out)["calls"]
    assert len(calls) == 2
    assert main(["show", calls[1]["call_id"], folder, "--full"]) == 0
    printed = capsys.readouterr().out
    assert "more characters" not in printed
    assert "50 token ids, log-prob mean -0.250" in printed


def test_verify(folder, capsys):
    assert main(["verify", folder]) == 0
    assert capsys.readouterr().out.endswith("clean\n")
    (path,) = Path(folder).rglob("*.arrow")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    assert main(["verify", folder]) == 1
    assert "PROBLEM" in capsys.readouterr().out
    assert main(["verify", folder, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["ok"] is False


def test_stats(folder, capsys):
    assert main(["stats", folder, "--json"]) == 0
    stats = json.loads(capsys.readouterr().out)
    assert (stats["calls"], stats["rollouts"], stats["shards"]) == (3, 1, 1)
    assert stats["tokens"]["completion_tokens"] == 100
    assert stats["status"] == {"answered": 3}
    assert main(["stats", folder]) == 0
    assert "calls  3" in capsys.readouterr().out


def test_faults_are_one_line(folder, capsys):
    assert main(["list", "/nowhere/at/all"]) == 2
    assert capsys.readouterr().err == "ng_captures: no such directory: /nowhere/at/all\n"
    assert main(["show", "nobody", folder]) == 2
    assert capsys.readouterr().err == "ng_captures: there is no rollout or call 'nobody'\n"
