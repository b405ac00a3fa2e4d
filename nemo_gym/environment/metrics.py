"""The figures of `/aggregate_metrics`, which environments and agents extend by overriding two methods.

The arithmetic is `rollouts.statistics`, the same that a job prints: one figure has one definition.
"""

from __future__ import annotations

from typing import Any

from ..config.types import AggregateMetrics
from ..rollouts.statistics import describe, numeric_fields

_TASK = "_ng_task_index"
_ROLLOUT = "_ng_rollout_index"


class AggregateMetricsMixin:
    """Aggregation over verify responses; both kinds of server have it."""

    def compute_metrics(self, tasks: list[list[dict[str, Any]]]) -> dict[str, Any]:
        """Further figures over all rollouts, grouped by task. Merged into `agent_metrics`."""
        return {}

    def get_key_metrics(self, agent_metrics: dict[str, Any]) -> dict[str, Any]:
        """The headline figures: the means, unless overridden."""
        return {name: value for name, value in agent_metrics.items() if name.startswith("mean/")}

    def aggregate(self, verify_responses: list[dict[str, Any]]) -> AggregateMetrics:
        scored = [row for row in verify_responses if not row.get("mask_sample")]
        if not scored:
            return AggregateMetrics()
        tasks: dict[Any, list[dict[str, Any]]] = {}
        for row in scored:
            tasks.setdefault(row.get(_TASK, 0), []).append(row)
        groups = [
            {_TASK: task} | _described(rows)
            for task, rows in sorted(tasks.items(), key=lambda item: str(item[0]).zfill(12))
        ]
        metrics = _described(scored)
        metrics |= self.compute_metrics(list(tasks.values()))
        metrics["num_repeats"] = len({row.get(_ROLLOUT, 0) for row in scored})
        return AggregateMetrics(
            group_level_metrics=groups, agent_metrics=metrics, key_metrics=self.get_key_metrics(metrics)
        )


def _described(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """`mean/reward`, `max/reward`, ... of every numeric field."""
    return {
        f"{figure}/{name}": value
        for name, values in numeric_fields(rows).items()
        for figure, value in describe(values).items()
    }
