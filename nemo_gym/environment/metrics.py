"""The figures of `/aggregate_metrics`, which environments and agents extend by overriding three methods.

The arithmetic is `rollouts.statistics`, the same that a job prints: one figure has one definition. What is masked is no
measurement: it is counted as coverage, and is in no other figure.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable
from typing import Any

from ..config.types import AggregateMetrics
from ..rollouts.statistics import describe, is_number, numeric_fields, t_quantile

_TASK = "_ng_task_index"
_ROLLOUT = "_ng_rollout_index"
_ACROSS = "_across_repeats/"

Row = dict[str, Any]
Tasks = list[list[Row]]


class AggregateMetricsMixin:
    """Aggregation over verify responses; both kinds of server have it."""

    def compute_metrics(self, tasks: Tasks) -> dict[str, Any]:
        """Further figures over all rollouts, grouped by task. Merged into `agent_metrics`; `per_task_metrics`, a list
        with a `_ng_task_index` each, into those of the tasks."""
        return {}

    def compute_repeat_metrics(self, tasks: Tasks) -> dict[str, Any]:
        """Further figures over one repeat, grouped by task; they take the place of those of the same name."""
        return {}

    def get_key_metrics(self, agent_metrics: dict[str, Any]) -> dict[str, Any]:
        """The headline figures: the means, unless overridden."""
        return {name: value for name, value in agent_metrics.items() if name.startswith("mean/")}

    def aggregate(self, verify_responses: list[Row]) -> AggregateMetrics:
        own = type(self).compute_repeat_metrics is not AggregateMetricsMixin.compute_repeat_metrics
        return compute_aggregate_metrics(
            verify_responses, self.compute_metrics, self.get_key_metrics, self.compute_repeat_metrics if own else None
        )


def compute_aggregate_metrics(
    verify_responses: list[Row],
    compute_metrics_fn: Callable[[Tasks], dict[str, Any]] | None = None,
    get_key_metrics_fn: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    compute_repeat_metrics_fn: Callable[[Tasks], dict[str, Any]] | None = None,
) -> AggregateMetrics:
    scored = [row for row in verify_responses if not row.get("mask_sample")]
    coverage = _coverage(verify_responses, scored)
    if not scored:
        return AggregateMetrics(agent_metrics=dict(coverage), key_metrics=dict(coverage))
    tasks = _by(scored, _TASK)
    groups = [described(rows) | _of_task(task, rows) for task, rows in tasks.items()]
    repeats = repeat_figures(scored, compute_repeat_metrics_fn)
    metrics = described(scored) | coverage
    if compute_metrics_fn is not None:
        further = compute_metrics_fn(list(tasks.values()))
        of_tasks = {row[_TASK]: row for row in further.pop("per_task_metrics", None) or ()}
        for group in groups:
            group |= of_tasks.get(group[_TASK], {})
        metrics |= further
    metrics["num_repeats"] = len({row.get(_ROLLOUT, 0) for row in verify_responses})
    choose = get_key_metrics_fn or AggregateMetricsMixin().get_key_metrics
    key_metrics = choose(metrics) | coverage
    return AggregateMetrics(
        group_level_metrics=groups,
        agent_metrics=metrics | across_repeats(repeats),
        key_metrics=key_metrics,
        repeat_level_metrics=repeats,
    )


def _by(rows: Iterable[Row], key: str) -> dict[Any, list[Row]]:
    """The rows by the value of one field, in its order: numbers as numbers, before texts."""
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.get(key, 0), []).append(row)
    return dict(sorted(groups.items(), key=lambda item: in_order(item[0])))


def in_order(key: Any) -> tuple[bool, Any]:
    return isinstance(key, str), key


def described(rows: list[Row]) -> dict[str, Any]:
    """`mean/reward`, `max/reward`, ... of every number.

    A number that one row alone has varies by nothing that is known, so it has no `std` beside others that have one.
    """
    numbers = _numbers(rows)
    several = any(len(values) > 1 for values in numbers.values())
    return {
        f"{figure}/{name}": value
        for name, values in numbers.items()
        for figure, value in describe(values).items()
        if figure != "std" or len(values) > 1 or (not several and len(values) == len(rows))
    }


def _of_task(task: Any, rows: list[Row]) -> dict[str, Any]:
    """Which rollouts a task's figures are of, and the numbers of each."""
    infos = [rollout_info(row, task, row.get(_ROLLOUT, 0)) for row in rows]
    return {
        _TASK: task,
        "num_rollouts": len(rows),
        "expected_num_rollouts": len(rows),
        "missing_num_rollouts": 0,
        "reward_profile_completion_pct": 100.0,
        "rollout_infos": sorted(infos, key=lambda info: in_order(info[_ROLLOUT])),
    }


def rollout_info(row: Row, task: Any, repeat: Any) -> Row:
    """One rollout's numbers; a row's own field wins over what its response says of the same name."""
    said = (_usage(row) | row).items()
    numbers = {name: value for name, value in said if is_number(value) and _is_measured(name)}
    plain = {name: int(value) if isinstance(value, bool) else value for name, value in numbers.items()}
    return {"rollout_id": f"{task}:{repeat}", _TASK: task, _ROLLOUT: repeat} | plain


def _is_measured(name: str) -> bool:
    return not name.startswith("_") and name != "mask_sample"


def _numbers(rows: list[Row]) -> dict[str, list[float]]:
    """The numbers of the rows' own fields and of their responses' usage, which wins over a field of the same name."""
    return numeric_fields(
        {name: value for name, value in (row | _usage(row)).items() if not name.startswith("_")} for row in rows
    )


def _usage(row: Row) -> Row:
    response = row.get("response")
    usage = response.get("usage") if isinstance(response, dict) else None
    return usage if isinstance(usage, dict) else {}


def _coverage(rows: list[Row], scored: list[Row]) -> dict[str, Any]:
    """Of how much the figures are; nothing where nothing is masked."""
    if len(rows) == len(scored):
        return {}
    measured = {row.get(_TASK, 0) for row in scored}
    return {
        "coverage/measured_rollouts": len(scored),
        "coverage/masked_rollouts": len(rows) - len(scored),
        "coverage/measured_tasks": len(measured),
        "coverage/fully_masked_tasks": len({row.get(_TASK, 0) for row in rows} - measured),
    }


def repeat_figures(scored: list[Row], further: Callable[[Tasks], dict[str, Any]] | None = None) -> list[dict[str, Any]]:
    """A row of figures for each repeat, where there are several."""
    repeats = _by(scored, _ROLLOUT)
    if len(repeats) < 2:
        return []
    every = {row.get(_TASK, 0) for row in scored}
    figures = []
    for repeat, rows in repeats.items():
        present = len({row.get(_TASK, 0) for row in rows})
        figures.append(
            {_ROLLOUT: repeat, "sample_count": present, "missing_count": len(every) - present} | _spread(rows)
        )
    if further is not None:
        own = [further(list(_by(rows, _TASK).values())) for rows in repeats.values()]
        for name in {name for row in own for name in row}:
            values = [row.get(name) for row in own]
            finite = all(_is_finite(value) for value in values)
            for row, value in zip(figures, values, strict=True):
                row.pop(name, None)
                if finite:
                    row[name] = float(value)  # type: ignore[arg-type]
    return figures


def _spread(rows: list[Row]) -> dict[str, float]:
    figures: dict[str, float] = {}
    for name, values in _numbers(rows).items():
        low, _, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
        error = describe(values)["std"] / math.sqrt(len(values))
        told = describe(values) | {"sem": error, "p25": low, "p75": high} | _interval(values, error)
        figures |= {f"{figure}/{name}": value for figure, value in told.items()}
    return figures


def _interval(values: list[float], error: float) -> dict[str, float]:
    if len(values) < 2:
        return {}
    mean, reach = statistics.fmean(values), t_quantile(len(values) - 1) * error
    return {"ci_low_95": mean - reach, "ci_high_95": mean + reach}


def across_repeats(repeats: list[dict[str, Any]]) -> dict[str, float]:
    """How each repeat's estimates vary; what is a measure of spread already is not spread again."""
    figures: dict[str, float] = {}
    names = {name for row in repeats for name, value in row.items() if _is_finite(value) and _is_estimate(name)}
    for name in sorted(names):
        values = [float(row[name]) for row in repeats if _is_finite(row.get(name))]
        error = describe(values)["std"] / math.sqrt(len(values))
        told = describe(values) | {"se": error} | _interval(values, error)
        figures |= {f"{figure}{_ACROSS}{name}": value for figure, value in told.items()}
    return figures


def _is_estimate(name: str) -> bool:
    head, _, rest = name.partition("/")
    spreads = ("max", "min", "median", "std", "sem", "p25", "p75", "ci_low_95", "ci_high_95")
    return not (rest and head in spreads) and name not in (_ROLLOUT, "sample_count", "missing_count")


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
