"""`ng_run` with real agents on workspace tasks, before a scripted model that solves them: rewards, captures, export."""

from __future__ import annotations

import json
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


def player() -> Player:
    """Solves every task by its reference: one tool call, then the answer."""
    plans = {}
    for row in ROWS:
        turns = [Turn((shell(row["solution"]["command"]),)), Turn(text=row["solution"]["answer"])]
        plans[f"(Task {row['task_id']};"] = turns
    return Player(plans)


def asked_with_tools(request: Request) -> bool:
    return request.asks and bool(request.json().get("tools"))


@pytest.mark.parametrize(
    ("agent", "rollouts"),
    [
        pytest.param("codex", 20, marks=pytest.mark.ci),
        pytest.param("claude_code", 4, marks=pytest.mark.ci),
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
                f"+config_paths=[configs/{agent}_workspace.yaml]",
                f"++policy_base_url={url}",
                "++policy_model_name=scripted-model",
                "++policy_api_key=none",
                f"++job.output={out}",
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
