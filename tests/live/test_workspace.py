"""`ng_run` with real agents on workspace tasks, before a scripted model that solves them: rewards, captures, export."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from nemo_gym.capture import CaptureStore
from tests.live.conftest import Listening
from tests.player import Player, Turn, shell
from tests.project import ROOT, World, left
from tests.scripted import Request, ScriptedBackend

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
    return [
        f"+config_paths=[configs/{agent}_workspace.yaml]",
        f"++policy_base_url={url}",
        "++policy_model_name=scripted-model",
        "++policy_api_key=none",
        f"++job.output={out}",
    ]


def asked_with_tools(request: Request) -> bool:
    return request.asks and bool(request.json().get("tools"))


@pytest.mark.parametrize(
    ("agent", "rollouts"),
    [
        pytest.param("codex", 20, marks=pytest.mark.ci),
        pytest.param("claude_code", 4, marks=pytest.mark.ci),
        pytest.param("openclaw", 2, marks=pytest.mark.ci),
        pytest.param("openclaw", 20, marks=pytest.mark.nightly),
        pytest.param("claude_code", 20, marks=pytest.mark.nightly),
    ],
)
def test_a_job(tmp_path: Path, agent: str, rollouts: int) -> None:
    world = World(tmp_path)
    backend = ScriptedBackend(player())
    out = tmp_path / "out"
    try:
        with Listening(backend) as url:
            code, said, err = world.run(
                *job(agent, url, out),
                f"++job.limit={rollouts}",
                "++job.export=[token_rows]",
                config=False,
                seconds=1500,
            )
    finally:
        world.end()
    logs = "\n".join(path.read_text()[-3000:] for path in out.glob("logs/*.log"))
    assert code == 0, said + err + logs
    assert left(tmp_path) == []
    rewards = [json.loads(line)["reward"] for line in (out / "rollouts.jsonl").read_text().splitlines()]
    assert rewards == [1.0] * rollouts

    store = CaptureStore(out / "captures")
    report = store.verify()
    assert report.ok, report.problems
    assert (report.without_rollout, report.unsealed, report.incomplete) == (0, [], {})
    calls = list(store.calls())
    assert len(calls) == sum(asked_with_tools(request) for request in backend.requests)
    assert Counter(call.rollout_id for call in calls) == dict.fromkeys({call.rollout_id for call in calls}, 2)
    assert len({call.rollout_id for call in calls}) == rollouts

    trained = sum(sum(row["loss_mask"]) for row in pq.read_table(out / "exports" / "token_rows").to_pylist())
    assert trained == sum(len(call.reply.choices[0].tokens.ids) for call in calls) == 40 * rollouts


@pytest.mark.ci
def test_an_agent_server_that_is_killed_leaves_no_client_and_a_resume_finishes(tmp_path: Path) -> None:
    world = World(tmp_path)
    backend = ScriptedBackend(player(delay=1.0))
    out = tmp_path / "out"
    with Listening(backend) as url:
        settings = [*job("codex", url, out), "++job.limit=8", "++job.concurrency=4"]
        process = world.start("run", *settings)
        try:
            end = time.monotonic() + 120
            while len([request for request in backend.requests if request.asks]) < 6:
                assert time.monotonic() < end
                assert process.poll() is None, process.communicate()
                time.sleep(0.1)
            os.kill(server(world, "codex_agent"), signal.SIGKILL)
            said, _ = process.communicate(timeout=60)
            assert process.returncode == 1
            assert "codex_agent: was ended by SIGKILL" in said
            world.gone(10)
            code, said, err = world.run(*settings, "++job.resume=true", config=False, seconds=300)
        finally:
            world.end()
    assert code == 0, said + err
    rows = [json.loads(line) for line in (out / "rollouts.jsonl").read_text().splitlines()]
    assert [row["reward"] for row in rows] == [1.0] * 8
    assert CaptureStore(out / "captures").verify().ok


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
