"""Which of many rollouts are worth reading: the worst, the most uncertain and the best.

One of a task in each, and none twice. Of equal rewards those of the hardest tasks come first, and of these the longest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ..rollouts.profile import TaskFigures
from ..rollouts.results import Result

CHOSEN = 6
"""Rollouts of each kind."""

Choice = tuple[Result, str]
"""A rollout, and why it is shown."""
_Task = tuple[str, int]


def choose(results: Iterable[Result], tasks: Sequence[TaskFigures]) -> tuple[list[Choice], list[Choice], list[Choice]]:
    """The worst, the most uncertain and the best."""
    measured = [result for result in results if not result.masked]
    by_task = {(task.agent, task.task): task for task in tasks}
    uncertain = _disputed(measured, tasks) or _improbable(measured)
    taken = {_task(result) for result, _ in uncertain}
    rewards = [result.reward for result in measured]
    low, high = min(rewards, default=0.0), max(rewards, default=0.0)

    def telling(result: Result) -> tuple[float, float, int]:
        return by_task[_task(result)].mean, -(result.output_tokens or 0), result.task

    def chosen(some: Iterable[Result]) -> list[Choice]:
        firsts = _first_of_each(some, taken)
        return [(one, f"task {one.task} earns {by_task[_task(one)].mean:.2f} on average") for one in firsts]

    worst = sorted((r for r in measured if r.reward < high or low == high), key=lambda r: (r.reward, telling(r)))
    best = sorted((r for r in measured if r.reward > low), key=lambda r: (-r.reward, telling(r)))
    return chosen(worst), uncertain, chosen(best)


def _disputed(results: Iterable[Result], tasks: Sequence[TaskFigures]) -> list[Choice]:
    """The best and the worst rollout of the tasks whose repeats disagree most."""
    ordered = sorted((t for t in tasks if t.std > 0), key=lambda t: (-round(t.std, 9), -t.rollouts, t.task))
    wanted: dict[_Task, list[Result]] = {(task.agent, task.task): [] for task in ordered[: CHOSEN // 2]}
    for result in results:
        if (own := wanted.get(_task(result))) is not None:
            own.append(result)
    found: list[Choice] = []
    for task in ordered[: CHOSEN // 2]:
        own = wanted[task.agent, task.task]
        words = f"task {task.task} earns {task.mean:.2f} ± {task.std:.2f}"
        found.append((max(own, key=lambda r: r.reward), f"{words}; its best"))
        found.append((min(own, key=lambda r: r.reward), f"{words}; its worst"))
    return found


def _improbable(results: Iterable[Result]) -> list[Choice]:
    """Where no task has repeats that disagree: those that the model itself found least likely."""
    known = [r for r in results if r.log_prob is not None]
    known.sort(key=lambda r: (r.log_prob, r.task, r.repeat))
    return [(r, f"its tokens were improbable: log-prob {r.log_prob:.2f} on average") for r in known[:CHOSEN]]


def _first_of_each(ordered: Iterable[Result], taken: set[_Task]) -> Iterator[Result]:
    kept = 0
    for result in ordered:
        if kept == CHOSEN:
            return
        if _task(result) not in taken:
            taken.add(_task(result))
            kept += 1
            yield result


def _task(result: Result) -> _Task:
    return result.agent, result.task
