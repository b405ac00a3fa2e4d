"""The figures of stored rollouts by task, by agent and by repeat, as NeMo Gym's scripts ask for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.reward_profile import RewardProfiler


def key(task: int, repeat: int) -> dict[str, int]:
    return {"_ng_task_index": task, "_ng_rollout_index": repeat}


ROWS: list[dict[str, Any]] = [
    key(task, repeat) | {"agent_ref": {"name": "solver"}, "question": f"q{task}"}
    for task in (0, 1)
    for repeat in (0, 1)
]
RESULTS: list[dict[str, Any]] = [
    key(1, 1) | {"reward": 0.5, "response": {}},
    key(0, 0) | {"reward": 1.0, "right": True, "response": {"usage": {"output_tokens": 8}}},
    key(0, 1) | {"reward": 0.0, "right": False, "response": {"usage": {"output_tokens": 4}}},
    key(1, 0) | {"reward": 1.0, "response": None},
]


def test_tasks_agents_and_repeats() -> None:
    tasks, (agent,), repeats = RewardProfiler().profile_from_data(ROWS, RESULTS)
    assert [task["mean/reward"] for task in tasks] == [0.5, 0.75]
    assert tasks[0]["sample"] == {"agent_ref": {"name": "solver"}, "question": "q0"}
    assert (tasks[0]["num_rollouts"], tasks[0]["mean/output_tokens"], tasks[0]["max/right"]) == (2, 6.0, 1.0)
    assert "mean/right" not in tasks[1]
    assert tasks[1]["rollout_infos"] == [
        {"rollout_id": "1:0", "reward": 1.0} | key(1, 0),
        {"rollout_id": "1:1", "reward": 0.5} | key(1, 1),
    ]
    assert (agent["agent_ref"], agent["mean/reward"]) == ({"name": "solver"}, 0.625)
    assert [repeat["mean/reward"] for repeat in repeats] == [1.0, 0.25]
    assert agent["mean_across_repeats/mean/reward"] == 0.625
    assert agent["se_across_repeats/mean/reward"] == pytest.approx(0.375)


def test_a_task_that_two_agents_played_is_a_group_of_each() -> None:
    rows = [key(0, repeat) | {"agent_ref": {"name": name}} for repeat, name in enumerate("ba")]
    tasks, agents, repeats = RewardProfiler().profile_from_data(rows, RESULTS[1:3])
    assert [(task["agent_ref"]["name"], task["mean/reward"]) for task in tasks] == [("a", 0.0), ("b", 1.0)]
    assert [agent["agent_ref"]["name"] for agent in agents] == ["a", "b"]
    assert repeats == []


def test_what_is_missing_is_told_or_left_out() -> None:
    profiler = RewardProfiler()
    with pytest.raises(ValueError, match=r"1 rows have no result, such as \[\(1, 0\)\]"):
        profiler.profile_from_data(ROWS, RESULTS[:3])
    with pytest.raises(ValueError, match="1 results belong to no row"):
        profiler.align_rows_and_results(ROWS[:3], RESULTS)
    with pytest.raises(ValueError, match=r"two results have the key \(1, 1\)"):
        profiler.align_rows_and_results(ROWS, [*RESULTS, RESULTS[0]])
    tasks, _, _ = profiler.profile_from_data(ROWS, RESULTS[:3], allow_partial_rollouts=True)
    assert [task["missing_num_rollouts"] for task in tasks] == [0, 1]
    assert tasks[1]["reward_profile_completion_pct"] == 50.0
    assert profiler.profile_completion_summary(ROWS, RESULTS[:3]) == {
        "expected_rollout_rows": 4,
        "completed_rollout_rows": 3,
        "missing_rollout_rows": 1,
        "extra_rollout_rows": 0,
        "reward_profile_completion_pct": 75.0,
        "total_input_rows": 2,
        "complete_input_rows": 1,
        "partial_input_rows": 1,
        "missing_input_rows": 0,
    }


def test_files_are_named_after_the_rollouts(tmp_path: Path) -> None:
    profiler = RewardProfiler()
    written = profiler.write_to_disk(*profiler.profile_from_data(ROWS, RESULTS), tmp_path / "rollouts.jsonl")
    assert [path.name for path in written] == [
        "rollouts_reward_profiling.jsonl",
        "rollouts_agent_metrics.json",
        "rollouts_repeat_level_metrics.json",
    ]
    assert [json.loads(line)["mean/reward"] for line in written[0].read_text().splitlines()] == [0.5, 0.75]
    assert json.loads(written[1].read_text())[0]["mean/reward"] == 0.625
