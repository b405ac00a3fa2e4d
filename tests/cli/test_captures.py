"""`ng_captures` on a capture that a writer made."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

sys.path.insert(0, str(Path(__file__).parents[1] / "capture"))

from records import chat_request, conversation, record

from nemo_gym.capture import CallRecord, ShardWriter
from nemo_gym.cli.captures import main


def write(
    folder: Path,
    made: list[CallRecord],
    run_id: str = "run",
    seals: Sequence[str] = (),
    late: Sequence[CallRecord] = (),
) -> None:
    async def run() -> None:
        writer = ShardWriter(str(folder), "policy", run_id, "flush")
        for one in made:
            await writer.commit(one)
        for rollout_id in seals:
            await writer.seal(rollout_id)
        for one in late:
            await writer.commit(one)
        writer.close()

    asyncio.run(run())


@pytest.fixture
def folder(tmp_path) -> str:
    write(tmp_path, [*conversation(2, rollout_id="task-1"), record(rollout_id=None)], seals=["task-1"])
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
    assert "(2 messages as in that call)" in printed
    assert main(["show", "task-1", folder, "--json"]) == 0
    calls = json.loads(capsys.readouterr().out)["calls"]
    assert len(calls) == 2
    assert main(["show", calls[1]["call_id"], folder, "--full"]) == 0
    printed = capsys.readouterr().out
    assert "more characters" not in printed
    assert "50 token ids, log-prob mean -0.250" in printed


def test_what_a_call_does_not_share_with_its_parent_is_shown(tmp_path, capsys):
    first, turn = conversation(2)
    brief = chat_request([{"role": "user", "content": "look into the logs"}])
    write(tmp_path, [first, turn, record(parent_call_id=turn.call_id, relation="subagent", received=brief)])
    assert main(["show", "r1", str(tmp_path)]) == 0
    subagent = capsys.readouterr().out.partition("  subagent of ")[2]
    assert "user │ look into the logs" in subagent
    assert "as in that call" not in subagent


def test_a_rollout_of_an_earlier_run_is_another(tmp_path, capsys):
    for number, run_id in enumerate(("one", "two")):
        made = [replace(call, run_id=run_id) for call in conversation(1 + number)]
        write(tmp_path, made, run_id, seals=["r1"] if run_id == "one" else [])
    assert main(["list", "--json", str(tmp_path)]) == 0
    rollouts = json.loads(capsys.readouterr().out)["rollouts"]
    assert [(row["run_id"], row["calls"], row["state"]) for row in rollouts] == [
        ("one", 1, "complete"),
        ("two", 2, "unsealed"),
    ]
    assert main(["stats", "--json", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out)["calls"] == 3


def test_a_call_after_the_seal_is_late(tmp_path, capsys):
    first, late = conversation(2)
    write(tmp_path, [first], seals=["r1"], late=[late])
    assert main(["verify", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "unsealed: 1 rollouts (r1)" in printed
    assert "late: 1 calls came after the seal of their rollout (r1)" in printed
    assert main(["list", "--json", str(tmp_path)]) == 0
    assert [row["state"] for row in json.loads(capsys.readouterr().out)["rollouts"]] == ["unsealed"]


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


@pytest.mark.parametrize("command", [["list"], ["verify"], ["repair"], ["prune", "--older-than", "1s"]])
def test_an_empty_path_is_not_the_working_folder(command, folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    before = sorted(Path(folder).rglob("*"))
    assert main([*command, ""]) == 2
    assert capsys.readouterr().err == "ng_captures: expected a folder of captures, found an empty path\n"
    assert sorted(Path(folder).rglob("*")) == before
    Path("calls.jsonl").touch()
    assert main([*command, "calls.jsonl"]) == 2
    assert capsys.readouterr().err == "ng_captures: calls.jsonl is a file; expected a folder of captures\n"


def test_faults_are_one_line(folder, capsys):
    assert main(["list", "/nowhere/at/all"]) == 2
    assert capsys.readouterr().err == "ng_captures: no such directory: /nowhere/at/all\n"
    assert main(["show", "nobody", folder]) == 2
    assert capsys.readouterr().err == "ng_captures: there is no rollout or call 'nobody'\n"
    target = Path(folder) / "calls.parquet"
    assert main(["export", folder, "--rollout", "nobody", "--output", str(target)]) == 2
    assert capsys.readouterr().err.startswith("ng_captures: no call is recorded of nobody: ng_captures list")
    assert not target.exists()
    target.write_text("a file, where folders are to be")
    assert main(["upload", folder, "--to", str(target)]) == 2
    assert capsys.readouterr().err.startswith(f"ng_captures: --to: {str(target)!r} cannot be written to: ")
    assert main(["export", folder, "--output", str(target / "calls.parquet")]) == 2
    assert str(target) in capsys.readouterr().err


def test_export_to_parquet_and_jsonl(folder, capsys, tmp_path):
    import pyarrow.parquet as pq

    target = tmp_path / "out" / "calls.parquet"
    assert main(["export", folder, "--output", str(target)]) == 0
    assert "3 calls" in capsys.readouterr().out
    rows = pq.read_table(target).to_pylist()
    assert len(rows) == 3
    assert len(rows[1]["prompt_ids"]) == rows[1]["prompt_tokens"]
    assert "answer 1" in rows[1]["choices"][0]["parts"]
    assert main(["export", folder, "--output", str(target), "--columns", "call_id,status", "--rollout", "task-1"]) == 0
    assert pq.read_table(target).column_names == ["call_id", "status"]
    lines = tmp_path / "calls.jsonl"
    capsys.readouterr()
    assert main(["export", folder, "--format", "jsonl", "--output", str(lines), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["calls"] == 3
    assert json.loads(lines.read_text().splitlines()[0])["rollout_id"] == "task-1"
    assert main(["export", folder, "--columns", "nothing"]) == 2
    assert "no column 'nothing'" in capsys.readouterr().err


def test_tail_repair_prune_and_upload(folder, capsys, tmp_path):
    assert main(["tail", folder, "--from-start", "--for", "0"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 3
    assert "task-1  turn  answered  153 + 50 tokens" in printed[1]
    assert main(["tail", folder, "--from-start", "--for", "0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[0])["completion_tokens"] == 50
    assert main(["repair", folder]) == 0
    assert capsys.readouterr().out == "nothing to repair\n"
    assert main(["repair", folder, "--dry-run"]) == 0
    assert capsys.readouterr().out == "nothing to repair\n"
    assert main(["upload", folder, "--to", str(tmp_path / "there"), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["uploaded"]) == 1
    assert main(["prune", str(tmp_path / "there"), "--older-than", "30d"]) == 0
    assert capsys.readouterr().out == "nothing is that old\n"
    assert main(["prune", str(tmp_path / "there"), "--rollout", "nobody"]) == 0
    assert capsys.readouterr().err.startswith("ng_captures: no call is recorded of nobody")
    assert main(["prune", str(tmp_path / "there"), "--rollout", "task-1", "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["removed"][0]["rollouts"] == 1
    assert main(["prune", str(tmp_path / "there")]) == 2
    assert "--older-than" in capsys.readouterr().err
    assert main(["prune", str(tmp_path / "there"), "--rollouts", "--older-than", "30d"]) == 0
    assert capsys.readouterr().out == "nothing is that old\n"
    assert main(["prune", str(tmp_path / "there"), "--older-than", "0s", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["removed"][0]["shards"] == 1
    with pytest.raises(SystemExit):
        main(["prune", folder, "--older-than", "soon"])
    assert "'soon' is no age" in capsys.readouterr().err
