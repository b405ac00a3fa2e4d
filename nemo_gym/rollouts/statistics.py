"""The figures of a job: plain arithmetic on lists of numbers, no I/O.

Repeats of one task are not independent, so an interval is clustered by task: its width follows the number of tasks, not
the number of rollouts.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from .student import t_quantile as t_quantile


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


def worst_of(values: Sequence[float], k: int) -> float | None:
    """The expected worst of k rollouts drawn without replacement, unbiased; None with fewer than k.

    For rewards of 0 and 1 this is pass^k, the chance that k of k succeed: C(c, k) / C(n, k).
    """
    best = best_of([-value for value in values], k)
    return None if best is None else -best + 0.0  # and not -0.0


def pass_hat(groups: Iterable[Sequence[float]], k: int) -> float | None:
    """`worst_of` averaged over the tasks that have k rollouts; None when none has."""
    values = [value for value in (worst_of(group, k) for group in groups) if value is not None]
    return math.fsum(values) / len(values) if values else None


def majority_of(votes: Sequence[tuple[Any, float]]) -> float:
    """The score of the commonest answer, the mean of several that are equally common; 0 without an answer.

    Args:
        votes: (answer, score) of each rollout; an answer that is None is no vote.
    """
    counts = Counter((answer, score) for answer, score in votes if answer is not None)
    if not counts:
        return 0.0
    most = max(counts.values())
    return statistics.fmean(score for (_, score), count in counts.items() if count == most)


def quantile(ordered: Sequence[float], share: float) -> float:
    """Of values in ascending order, linear between neighbours (numpy's default)."""
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


class Histogram(Struct, frozen=True):
    """Equal bins from `low` to `high`; the last one holds `high` too."""

    low: float
    high: float
    counts: tuple[int, ...]


def histogram(values: Sequence[float], bins: int = 20) -> Histogram | None:
    """None without a value; one bin where all are alike."""
    if not values:
        return None
    low, high = min(values), max(values)
    if low == high:
        return Histogram(low, high, (len(values),))
    counts = [0] * bins
    for value in values:
        counts[min(bins - 1, int((value - low) / (high - low) * bins))] += 1
    return Histogram(low, high, tuple(counts))


class Distribution(Struct, frozen=True):
    count: int
    mean: float
    std: float
    min: float
    p25: float
    p50: float
    p75: float
    p95: float
    max: float


def distribution(values: Iterable[float]) -> Distribution | None:
    """None without a value."""
    ordered = sorted(values)
    if not ordered:
        return None
    mean = math.fsum(ordered) / len(ordered)
    std = statistics.stdev(ordered, mean) if len(ordered) > 1 else 0.0
    p25, p50, p75, p95 = (quantile(ordered, share) for share in (0.25, 0.5, 0.75, 0.95))
    return Distribution(len(ordered), mean, std, ordered[0], p25, p50, p75, p95, ordered[-1])


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
