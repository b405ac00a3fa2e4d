"""Figures by hand: what is masked is in none of them, and repeats are told apart."""

from __future__ import annotations

from typing import Any

import pytest

from nemo_gym.environment.metrics import AggregateMetricsMixin
from nemo_gym.reward_profile import add_avg_sample_std_dev, compute_aggregate_metrics


def row(task, repeat, reward, **more):
    return {"_ng_task_index": task, "_ng_rollout_index": repeat, "reward": reward, **more}


ROWS = [row(0, 0, 1.0), row(0, 1, 0.0), row(1, 0, 0.0), row(1, 1, 0.5), row(1, 2, 9.0, mask_sample=True)]


def test_tasks_repeats_and_what_they_vary():
    metrics = compute_aggregate_metrics(ROWS)
    assert [group["mean/reward"] for group in metrics.group_level_metrics] == [0.5, 0.25]
    assert metrics.agent_metrics["mean/reward"] == 0.375
    assert metrics.agent_metrics["num_repeats"] == 3
    first, second = metrics.repeat_level_metrics
    assert (first["_ng_rollout_index"], first["mean/reward"], first["sample_count"]) == (0, 0.5, 2)
    assert (second["mean/reward"], second["p75/reward"], second["missing_count"]) == (0.25, 0.375, 0)
    assert first["sem/reward"] == pytest.approx(0.5)
    assert metrics.agent_metrics["mean_across_repeats/mean/reward"] == 0.375
    assert metrics.agent_metrics["max_across_repeats/mean/reward"] == 0.5
    assert metrics.agent_metrics["std_across_repeats/mean/reward"] == pytest.approx(0.1767767)
    assert not any("_across_repeats/std" in name for name in metrics.agent_metrics)  # no spread of a spread
    assert metrics.key_metrics == {
        "mean/reward": 0.375,
        "coverage/measured_rollouts": 4,
        "coverage/masked_rollouts": 1,
        "coverage/measured_tasks": 2,
        "coverage/fully_masked_tasks": 0,
    }


def test_where_nothing_was_measured_nothing_is_made_up():
    assert compute_aggregate_metrics([]).agent_metrics == {}
    metrics = compute_aggregate_metrics([row(0, 0, 0.0, mask_sample=True)])
    assert metrics.group_level_metrics == []
    assert metrics.key_metrics["coverage/fully_masked_tasks"] == 1
    assert "mean/reward" not in metrics.agent_metrics


def test_hooks_add_to_tasks_repeats_and_all():
    class Own(AggregateMetricsMixin):
        def compute_metrics(self, tasks):
            assert [len(task) for task in tasks] == [2, 2]
            return {"tasks": len(tasks), "per_task_metrics": [{"_ng_task_index": 1, "hard": True}]}

        def compute_repeat_metrics(self, tasks):
            return {"mean/reward": 7.0, "odd": float("nan"), "solved": sum(task[0]["reward"] == 1 for task in tasks)}

        def get_key_metrics(self, agent_metrics):
            return {"tasks": agent_metrics["tasks"]}

    metrics = Own().aggregate(ROWS[:4])
    assert metrics.key_metrics == {"tasks": 2}
    assert [group.get("hard") for group in metrics.group_level_metrics] == [None, True]
    assert "per_task_metrics" not in metrics.agent_metrics
    assert [repeat["solved"] for repeat in metrics.repeat_level_metrics] == [1, 0]
    assert [repeat["mean/reward"] for repeat in metrics.repeat_level_metrics] == [7.0, 7.0]
    assert all("odd" not in repeat for repeat in metrics.repeat_level_metrics)
    assert metrics.agent_metrics["mean_across_repeats/solved"] == 0.5


def test_one_repeat_has_no_repeats_to_compare():
    assert compute_aggregate_metrics(ROWS[::2][:2]).repeat_level_metrics == []


def test_spread_within_tasks():
    metrics = {}
    add_avg_sample_std_dev(metrics, [[{"a": 0.0}, {"a": 1.0}], [{"a": 1.0}, {}]], ["a", "b"], 2)
    assert metrics == {"pass@1[avg-of-2]/a/avg_sample_std_dev": pytest.approx(0.7071068)}
    add_avg_sample_std_dev(metrics, [], ["a"], 1)
    assert len(metrics) == 1


def test_what_responses_took_is_a_figure_too() -> None:
    usage = [{"input_tokens": 10, "output_tokens": n, "input_tokens_details": {"cached_tokens": 4}} for n in (2, 6)]
    rows: list[dict[str, Any]] = [
        {"_ng_task_index": task, "_score": 5, "reward": 1.0, "response": {"usage": used}}
        for task, used in enumerate(usage)
    ]
    rows.append({"_ng_task_index": 2, "reward": 1.0, "response": {"usage": None}})
    rows.append({"_ng_task_index": 3, "reward": 1.0, "output_tokens": 10, "response": {"usage": usage[0]}})
    metrics = compute_aggregate_metrics(rows)
    assert metrics.agent_metrics["mean/output_tokens"] == pytest.approx(10 / 3)  # what the response says wins
    assert metrics.agent_metrics["max/input_tokens"] == 10.0
    assert metrics.key_metrics["mean/output_tokens"] == pytest.approx(10 / 3)
    assert [group.get("mean/output_tokens") for group in metrics.group_level_metrics] == [2.0, 6.0, None, 2.0]
    assert not any("cached_tokens" in name or "_score" in name for name in metrics.agent_metrics)


def test_a_task_says_which_rollouts_its_figures_are_of() -> None:
    rows = [
        {"_ng_task_index": 4, "_ng_rollout_index": repeat, "reward": reward, "right": reward > 0.5, "said": "x"}
        for repeat, reward in ((1, 0.0), (0, 1.0))
    ]
    rows[0]["response"] = {"usage": {"output_tokens": 7}}
    (task,) = compute_aggregate_metrics(rows).group_level_metrics
    assert (task["num_rollouts"], task["expected_num_rollouts"], task["missing_num_rollouts"]) == (2, 2, 0)
    assert task["reward_profile_completion_pct"] == 100.0
    named = {"rollout_id": "4:0", "_ng_task_index": 4, "_ng_rollout_index": 0}
    assert task["rollout_infos"] == [
        named | {"reward": 1.0, "right": 1},
        named | {"rollout_id": "4:1", "_ng_rollout_index": 1, "output_tokens": 7, "reward": 0.0, "right": 0},
    ]


@pytest.mark.parametrize(
    ("rows", "spread"),
    [
        ([{"reward": 1.0}, {"reward": 0.0, "extra": 3}], {"std/reward": 0.5**0.5}),  # of one value, beside others
        ([{"reward": 1.0, "extra": 3}], {"std/reward": 0.0, "std/extra": 0.0}),  # of one row, nothing varies
    ],
)
def test_what_is_known_of_one_row_alone_has_no_spread(rows: list[dict[str, Any]], spread: dict[str, float]) -> None:
    metrics = compute_aggregate_metrics([row | {"_ng_task_index": n} for n, row in enumerate(rows)]).agent_metrics
    assert {name: value for name, value in metrics.items() if name.startswith("std/")} == pytest.approx(spread)
