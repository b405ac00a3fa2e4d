"""The figures of a job: plain arithmetic on lists of numbers, no I/O.

Repeats of one task are not independent, so an interval is clustered by task: its width follows the number of tasks, not
the number of rollouts.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct


class Interval(Struct, frozen=True):
    """A mean with its 95 % interval; `low` and `high` are None where one task alone tells nothing of the spread."""

    mean: float
    low: float | None
    high: float | None
    error: float | None
    """Standard error, clustered by task."""
    tasks: int
    rollouts: int


def mean_interval(groups: Iterable[Sequence[float]]) -> Interval | None:
    """The mean over all rollouts; each group holds the values of one task. None when there is no value."""
    groups = [group for group in groups if group]
    count = sum(map(len, groups))
    if not count:
        return None
    mean = math.fsum(value for group in groups for value in group) / count
    tasks = len(groups)
    if tasks < 2:
        return Interval(mean, None, None, None, tasks, count)
    squares = math.fsum(math.fsum(value - mean for value in group) ** 2 for group in groups)
    error = math.sqrt(squares * tasks / (tasks - 1)) / count
    reach = t_quantile(tasks - 1) * error
    return Interval(mean, mean - reach, mean + reach, error, tasks, count)


def t_quantile(df: int) -> float:
    """The 97.5 % point of Student's t: exact for 1 and 2 degrees of freedom, else Cornish-Fisher (within 1 %)."""
    if df <= 2:
        return math.tan(math.pi * 0.475) if df == 1 else 0.95 * math.sqrt(2 / (1 - 0.95**2))
    z = statistics.NormalDist().inv_cdf(0.975)
    return (
        z
        + (z**3 + z) / (4 * df)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * df**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * df**3)
    )


def best_of(values: Sequence[float], k: int) -> float | None:
    """The expected best of k rollouts drawn without replacement, unbiased; None with fewer than k.

    For rewards of 0 and 1 this is the usual estimator of pass@k, 1 - C(n-c, k) / C(n, k).
    """
    count = len(values)
    if not 1 <= k <= count:
        return None
    total = math.comb(count, k)
    return math.fsum(math.comb(place, k - 1) / total * value for place, value in enumerate(sorted(values)))


def pass_at(groups: Iterable[Sequence[float]], k: int) -> float | None:
    """`best_of` averaged over the tasks that have k rollouts; None when none has."""
    values = [value for value in (best_of(group, k) for group in groups) if value is not None]
    return math.fsum(values) / len(values) if values else None


def describe(values: Sequence[float]) -> dict[str, float]:
    return {
        "mean": math.fsum(values) / len(values),
        "max": max(values),
        "min": min(values),
        "median": statistics.median(values),
        "std": statistics.stdev(values) if len(values) > 1 else 0.0,
    }


def numeric_fields(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[float]]:
    """The finite numbers of each top-level field that is not ours (`_ng_…`), booleans as 0 and 1."""
    fields: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row.items():
            if is_number(value) and not name.startswith("_ng_") and name != "mask_sample":
                fields.setdefault(name, []).append(float(value))
    return fields


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
