"""Two runs held against each other, task by task.

Rollouts of one task are alike in two runs, so the runs are compared by each task's own difference: of a task the mean
over its rollouts counts, and every task counts the same. Two tests are made of these differences. The paired t-test
gives the interval and a p-value; the sign-flip permutation test gives a second p-value that supposes no shape: exact up
to 14 tasks that differ, drawn with a fixed seed up to 500, and its normal limit beyond. Where the two disagree there
are too few tasks to say.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from msgspec import Struct

from .profile import MEASURES
from .results import Result
from .statistics import best_of, worst_of
from .student import t_quantile, two_sided_p

_EXACT, _DRAWN = 14, 500
_DRAWS = 10_000
TEST = "paired t-test over tasks"


class Paired(Struct, frozen=True):
    """One figure in both runs, over the tasks that both have; `difference` is the second less the first."""

    figure: str
    tasks: int
    first: float
    second: float
    difference: float
    low: float | None
    """The 95 % interval of the difference; None with fewer than two tasks."""
    high: float | None
    p: float | None
    p_sign_flip: float | None
    better: int
    """Tasks in which the second is higher."""
    worse: int


class TaskDifference(Struct, frozen=True):
    task: str
    first: float
    second: float


class Comparison(Struct, frozen=True):
    test: str
    reward: Paired | None
    others: list[Paired]
    """pass@k and pass^k at the largest k that all tasks have in both, lengths, tokens, time."""
    only_first: int
    """Tasks that the other run has not, and which are left out."""
    only_second: int
    moved: list[TaskDifference]
    """The tasks whose mean reward differs, the largest differences first."""


Tasks = dict[str, list[Result]]


def compare(
    first: Iterable[Result], second: Iterable[Result], key: Callable[[Result], str] | None = None
) -> Comparison:
    """The second run against the first.

    Args:
        key: what makes two tasks the same; the number of the row in the dataset unless it is given.
    """
    key = key or (lambda result: str(result.task))
    left, right = _by_task(first, key), _by_task(second, key)
    shared = [task for task in left if task in right]
    rewards = _pairs(left, right, shared, lambda group: _mean(one.reward for one in group))
    k = min((min(len(left[task]), len(right[task])) for task in shared), default=0)
    others: list[Paired | None] = []
    for sign, at_k in (("pass@", best_of), ("pass^", worst_of)) if k > 1 else ():
        of_k = partial(_at_k, at_k, k)
        others.append(_paired(f"{sign}{k}", _pairs(left, right, shared, of_k)))
    for name, measure in MEASURES.items():
        others.append(_paired(name, _pairs(left, right, shared, partial(_mean_of, measure))))
    moved = [TaskDifference(task, a, b) for task, a, b in rewards if a != b]
    moved.sort(key=lambda one: (-abs(one.second - one.first), one.task))
    return Comparison(
        test=TEST,
        reward=_paired("reward", rewards),
        others=[one for one in others if one is not None],
        only_first=len(left.keys() - right.keys()),
        only_second=len(right.keys() - left.keys()),
        moved=moved,
    )


def sign_flip_p(differences: Sequence[float], seed: int = 0) -> float:
    """How often differences of these sizes and random signs have a mean that is at least as far from 0."""
    sizes = [abs(difference) for difference in differences if difference]
    reach = abs(math.fsum(differences)) * (1 - 1e-12)  # as far is as far, whatever the order of adding up
    if not sizes:
        return 1.0
    if len(sizes) <= _EXACT:
        sums = [0.0]
        for size in sizes:
            sums = [total + sign * size for total in sums for sign in (1, -1)]
        return sum(abs(total) >= reach - 1e-15 for total in sums) / len(sums)
    if len(sizes) > _DRAWN:
        return math.erfc(reach / math.sqrt(2 * math.fsum(size * size for size in sizes)))
    draw = random.Random(seed)
    hits = 0
    for _ in range(_DRAWS):
        bits = draw.getrandbits(len(sizes))
        total = sum(size if bits >> place & 1 else -size for place, size in enumerate(sizes))
        hits += abs(total) >= reach - 1e-15
    return (hits + 1) / (_DRAWS + 1)


def _by_task(results: Iterable[Result], key: Callable[[Result], str]) -> Tasks:
    tasks: Tasks = {}
    for result in results:
        if not result.masked:
            tasks.setdefault(key(result), []).append(result)
    return tasks


def _pairs(
    left: Tasks, right: Tasks, shared: Sequence[str], of: Callable[[list[Result]], float | None]
) -> list[tuple[str, float, float]]:
    found = []
    for task in shared:
        a, b = of(left[task]), of(right[task])
        if a is not None and b is not None:
            found.append((task, a, b))
    return found


def _at_k(at_k: Callable[[Sequence[float], int], float | None], k: int, group: Sequence[Result]) -> float | None:
    return at_k([one.reward for one in group], k)


def _mean_of(measure: Callable[[Result], float | None], group: Sequence[Result]) -> float | None:
    return _mean(map(measure, group))


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def _paired(figure: str, pairs: Sequence[tuple[str, float, float]]) -> Paired | None:
    if not pairs:
        return None
    differences = [b - a for _, a, b in pairs]
    count = len(pairs)
    difference = math.fsum(differences) / count
    low = high = p = p_flip = None
    if count > 1:
        error = statistics.stdev(differences) / math.sqrt(count)
        reach = t_quantile(count - 1) * error
        low, high = difference - reach, difference + reach
        p = two_sided_p(difference / error, count - 1) if error > 0 else float(difference == 0)
        p_flip = sign_flip_p(differences)
    return Paired(
        figure=figure,
        tasks=count,
        first=math.fsum(a for _, a, _ in pairs) / count,
        second=math.fsum(b for _, _, b in pairs) / count,
        difference=difference,
        low=low,
        high=high,
        p=p,
        p_sign_flip=p_flip,
        better=sum(one > 0 for one in differences),
        worse=sum(one < 0 for one in differences),
    )
