"""`ng_run` with real agents on workspace tasks, before a scripted model that solves them: rewards, captures, export."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest
from msgspec import Struct

from nemo_gym.capture import CaptureStore
from nemo_gym.capture.record import CallRecord
from nemo_gym.dialects import chat
from tests.live.conftest import Listening
from tests.player import Player, Turn, shell
from tests.project import ROOT, World, left
from tests.scripted import ScriptedBackend

pytestmark = pytest.mark.live

DATA = ROOT / "resources_servers" / "workspace_tasks" / "data" / "example.jsonl"
ROWS = [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]


def player(delay: float = 0.0) -> Player:
    """Solves every task by its reference: one tool call, then the answer."""
    plans = {}
    for row in ROWS:
        turns = [Turn((shell(row["solution"]["command"]),)), Turn(text=row["solution"]["answer"])]
        plans[f"(Task {row['task_id']};"] = turns
    return Player(plans, delay=delay)


def job(agent: str, url: str, out: Path) -> list[str]:
    """Its clients bear the mark of the world in whose folder the job's output is."""
    mark = f"{{NG_TEST_TREE: '{out.parent}'}}"
    return [
        f"+config_paths=[configs/{agent}_workspace.yaml]",
        f"++policy_base_url={url}",
        "++policy_model_name=scripted-model",
        "++policy_api_key=none",
        f"++job.output={out}",
        f"++{agent}_agent.responses_api_agents.{agent}_agent.environment={mark}",
    ]


class Played(Struct):
    """What a job left."""

    rows: list[dict]
    calls: list[CallRecord]
    trained: list[dict]
    """Its token rows."""


def played(folder: Path, agent: str, player: Player, *settings: str, seconds: float = 1500) -> Played:
    """A whole job, at whose end every account balances: rollouts, calls, tokens."""
    world = World(folder)
    backend = ScriptedBackend(player)
    out = folder / "out"
    try:
        with Listening(backend) as url:
            code, said, err = world.run(
                *job(agent, url, out), "++job.export=[token_rows]", *settings, config=False, seconds=seconds
            )
    finally:
        world.end()
    logs = "\n".join(path.read_text()[-3000:] for path in out.glob("logs/*.log"))
    assert code == 0, said + err + logs
    assert left(folder) == []

    store = CaptureStore(out / "captures")
    report = store.verify()
    assert report.ok, report.problems
    assert (report.without_rollout, report.unsealed, report.incomplete) == (0, [], {})
    rows = [json.loads(line) for line in (out / "rollouts.jsonl").read_text().splitlines()]
    calls = sorted(store.calls(), key=lambda call: call.times.received)
    assert {call.status for call in calls} == {"answered"}
    for row in rows:
        mine = [call for call in calls if call.rollout_id == row["_ng_rollout_id"]]
        assert sorted(map(sent, mine)) == sorted(asked(backend, row["task_id"]))
    assert len(calls) == sum(len(asked(backend, row["task_id"])) for row in rows)  # and none of no rollout

    trained = pq.read_table(out / "exports" / "token_rows").to_pylist()
    assert tokens_of(trained) == Counter(
        token for call in calls for token in zip(call.reply.choices[0].tokens.ids, [-0.5] * 20, strict=True)
    )
    return Played(rows, calls, trained)


def sent(call: CallRecord) -> bytes:
    """The messages of a call as the record says that the backend got them."""
    assert call.sent is not None
    return msgspec.json.encode(chat.write_request(call.sent)["messages"])


def asked(backend: ScriptedBackend, task: str) -> list[bytes]:
    """The messages of a task's calls as the backend got them."""
    bodies = [request.json() for request in backend.calls if f"(Task {task};" in request.body.decode()]
    return [msgspec.json.encode(body["messages"]) for body in bodies]


def tokens_of(trained: list[dict]) -> Counter:
    """What the token rows train: each generated token, with its log-prob, as often as it is trained."""
    return Counter(
        (token, logprob)
        for row in trained
        for token, logprob, mask in zip(row["input_ids"], row["logprobs"], row["loss_mask"], strict=True)
        if mask
    )


@pytest.mark.ci
@pytest.mark.parametrize("agent", ["codex", "claude_code", "openclaw"])
def test_a_job(tmp_path: Path, agent: str) -> None:
    rollouts = 20
    found = played(tmp_path, agent, player(), f"++job.limit={rollouts}")
    assert [row["reward"] for row in found.rows] == [1.0] * rollouts
    assert len({row["_ng_rollout_id"] for row in found.rows}) == rollouts
    assert Counter(call.rollout_id for call in found.calls) == {row["_ng_rollout_id"]: 2 for row in found.rows}
    assert [row["branches"] for row in found.rows] == [[{"relation": "first", "calls": 2}]] * rollouts
    # One sequence a rollout: each prompt began with the one before and with what was said to it.
    assert Counter(row["rollout_id"] for row in found.trained) == {row["_ng_rollout_id"]: 1 for row in found.rows}
    assert {sum(row["loss_mask"]) for row in found.trained} == {40}


@pytest.mark.ci
def test_an_agent_server_that_is_killed_leaves_no_client_and_a_resume_finishes(tmp_path: Path) -> None:
    world = World(tmp_path)
    backend = ScriptedBackend(player(delay=1.0))
    out = tmp_path / "out"
    with Listening(backend) as url:
        settings = [*job("codex", url, out), "++job.limit=8", "++job.concurrency=4"]
        process = world.start("run", *settings)
        try:
            until(process, lambda: len([request for request in backend.requests if request.asks]) >= 6)
            until(process, lambda: len(clients(tmp_path, "codex exec")) >= 2)
            os.kill(server(world, "codex_agent"), signal.SIGKILL)
            said, _ = process.communicate(timeout=120)
            assert process.returncode == 1
            assert "codex_agent: was ended by SIGKILL" in said
            world.gone(30)
            done = len((out / "rollouts.jsonl").read_text().splitlines())
            code, said, err = world.run(*settings, "++job.resume=true", config=False, seconds=600)
        finally:
            world.end()
    assert code == 0, said + err
    rows = [json.loads(line) for line in (out / "rollouts.jsonl").read_text().splitlines()]
    assert done < 8
    assert [row["reward"] for row in rows] == [1.0] * 8
    assert sorted(row["task_id"] for row in rows) == sorted(row["task_id"] for row in ROWS[:8])
    assert left(tmp_path) == []
    assert CaptureStore(out / "captures").verify().ok


def until(process: subprocess.Popen, condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < end
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)


def clients(folder: Path, words: str) -> list[int]:
    """Living processes of the world whose command line has these words."""
    found = []
    for pid in left(folder):
        with contextlib.suppress(OSError):
            said = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if words in said and "keeper.py" not in said:
                found.append(pid)
    return found


def server(world: World, name: str) -> int:
    """The pid of a server of the world's only run."""
    (run,) = json.loads(world.run("--json", command="status", config=False)[1])["runs"]
    keeper = next(one["pid"] for one in run["servers"] if one["name"] == name)
    (child,) = Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()
    return int(child)


@pytest.mark.ci
def test_a_client_at_its_deadline_keeps_its_calls(tmp_path: Path) -> None:
    world = World(tmp_path)
    out = tmp_path / "out"
    backend = ScriptedBackend(Player([Turn((shell("sleep 300", yield_time_ms=30_000),)), Turn(text="Never said.")]))
    timeout = "++codex_agent.responses_api_agents.codex_agent.timeout_s=20"
    with Listening(backend) as url:
        try:
            world.run(*job("codex", url, out), "++job.limit=2", timeout, config=False, seconds=300)
        finally:
            world.end()
    failures = [json.loads(line) for line in (out / "failures.jsonl").read_text().splitlines()]
    assert [json.dumps(failure).count("not finished within 20 s (timeout_s)") for failure in failures] == [1, 1]
    report = CaptureStore(out / "captures").verify()
    assert report.ok
    assert sorted(report.incomplete.values()) == ["deadline", "deadline"]
    assert report.calls >= 2
    assert {call.status for call in CaptureStore(out / "captures").calls()} == {"answered"}
