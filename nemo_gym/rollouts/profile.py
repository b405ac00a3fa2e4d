"""What stored rollouts come to: the figures of a whole run, of each agent, of each subset and of each task.

A mean's interval is clustered by task. pass@k, pass^k and majority@k are means over the tasks that have k rollouts, so
each of them says of how many tasks. What is masked is no measurement: it is counted, and is in no other figure.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from .results import Result
from .statistics import (
    Distribution,
    Histogram,
    Interval,
    best_of,
    distribution,
    histogram,
    majority_of,
    mean_interval,
    worst_of,
)

MEASURES: dict[str, Callable[[Result], float | None]] = {
    "output_tokens": lambda result: result.output_tokens,
    "prompt_tokens": lambda result: result.prompt_tokens,
    "turns": lambda result: result.turns,
    "tool_calls": lambda result: result.tool_calls,
    "calls": lambda result: result.calls,
    "seconds": lambda result: result.seconds,
    "log_prob": lambda result: result.log_prob,
}
"""What has a distribution beside the reward: lengths, tokens, time, and how sure the model was."""


class AtK(Struct, frozen=True):
    """A figure over k rollouts of a task, averaged over the tasks that have so many."""

    k: int
    mean: float
    low: float | None
    high: float | None
    tasks: int


class Figures(Struct, frozen=True):
    rollouts: int
    masked: int
    reward: Interval | None
    pass_at: tuple[AtK, ...]
    """The expected best of k; for rewards of 0 and 1 the usual pass@k."""
    pass_hat: tuple[AtK, ...]
    """The expected worst of k; for rewards of 0 and 1 pass^k, the chance that all of k succeed."""
    majority_at: tuple[AtK, ...]
    """The score of the commonest answer of the first k; empty where no answers are known."""
    cut_off: int
    rewards: Histogram | None
    measures: dict[str, Distribution]


class TaskFigures(Struct, frozen=True):
    task: int
    agent: str
    subset: str | None
    rollouts: int
    mean: float
    std: float
    best: float
    worst: float


class Profile(Struct, frozen=True):
    overall: Figures
    agents: dict[str, Figures]
    subsets: dict[str, Figures]
    tasks: list[TaskFigures]
    """By agent and task, in that order; tasks whose rollouts are all masked are not there."""


def profile(results: Sequence[Result]) -> Profile:
    agents = _split(results, lambda result: result.agent)
    subsets = _split((one for one in results if one.subset is not None), lambda result: result.subset)
    return Profile(
        overall=figures(results),
        agents={name: figures(members) for name, members in agents.items()},
        subsets={name: figures(members) for name, members in subsets.items()},
        tasks=[task for name in agents for task in _tasks(name, agents[name])],
    )


def figures(results: Sequence[Result]) -> Figures:
    measured = [result for result in results if not result.masked]
    # k counts one agent's repeats of a task; another agent's are a group of their own.
    groups = list(_split(measured, lambda result: (result.task, result.agent)).values())
    for group in groups:
        group.sort(key=lambda result: result.repeat)
    rewards = [[result.reward for result in group] for group in groups]
    ks = powers(max(map(len, groups), default=0))
    answered = any(result.answer is not None for result in measured)
    votes = [[(result.answer, result.reward) for result in group] for group in groups]
    return Figures(
        rollouts=len(results),
        masked=len(results) - len(measured),
        reward=mean_interval(clusters(measured)),
        pass_at=_at_k(rewards, ks, best_of),
        pass_hat=_at_k(rewards, ks, worst_of),
        majority_at=_at_k(votes, ks, lambda group, k: majority_of(group[:k])) if answered else (),
        cut_off=sum(result.cut_off for result in measured),
        rewards=histogram([result.reward for result in measured]),
        measures=_distributions(measured),
    )


def clusters(results: Sequence[Result]) -> list[list[float]]:
    """The rewards by task: what is alike of one task, whoever played it, must not narrow an interval."""
    tasks = _split(results, lambda result: result.task)
    if len({result.agent for result in results}) < 2:
        return [[one.reward for one in group] for group in tasks.values()]
    groups: dict[int, list[Result]] = {}
    for group in tasks.values():  # a row has a number for each agent that plays it
        groups.setdefault(group[0].asked, []).extend(group)
    return [[one.reward for one in group] for group in groups.values()]


def powers(most: int) -> list[int]:
    """Powers of two up to a number, and that number itself."""
    return sorted({2**power for power in range(most.bit_length())} | {most}) if most else []


def plain(found: Profile) -> dict[str, Any]:
    """As JSON has it: flat names for what is looked up by name (`pass@4`, `pass^4`, `majority@4`)."""
    return {
        "overall": _plain(found.overall),
        "agents": {name: _plain(one) for name, one in found.agents.items()},
        "subsets": {name: _plain(one) for name, one in found.subsets.items()},
    }


def add_profile(folder: Path, found: Profile) -> None:
    """Puts the figures into the folder's `metrics.json`, beside what is there; whole or not at all."""
    path = folder / "metrics.json"
    try:
        known = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.MsgspecError):
        known = {}
    scratch = path.with_name("metrics.json.tmp")
    scratch.write_bytes(msgspec.json.format(msgspec.json.encode(known | {"profile": plain(found)}), indent=2) + b"\n")
    os.replace(scratch, path)


def _plain(found: Figures) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(found)
    for sign, name in (("pass@", "pass_at"), ("pass^", "pass_hat"), ("majority@", "majority_at")):
        fields |= {f"{sign}{one.pop('k')}": one for one in fields.pop(name)}
    return fields


def _split(results: Iterable[Result], key: Callable[[Result], Any]) -> dict[Any, list[Result]]:
    """The rollouts by some key, in its order."""
    groups: dict[Any, list[Result]] = {}
    for result in results:
        groups.setdefault(key(result), []).append(result)
    return dict(sorted(groups.items()))


def _at_k(
    groups: Sequence[Sequence[Any]], ks: Iterable[int], of: Callable[[Any, int], float | None]
) -> tuple[AtK, ...]:
    found = []
    for k in ks:
        values = [value for group in groups if len(group) >= k and (value := of(group, k)) is not None]
        interval = mean_interval([value] for value in values)
        if interval is not None:
            low, high = _within(values, interval)
            found.append(AtK(k, interval.mean, low, high, interval.tasks))
    return tuple(found)


def _within(values: Sequence[float], interval: Interval) -> tuple[float | None, float | None]:
    """Its ends; of chances no further than a chance can be."""
    low, high = interval.low, interval.high
    if low is None or high is None or min(values) < 0 or max(values) > 1:
        return low, high
    return max(0.0, low), min(1.0, high)


def _distributions(results: Sequence[Result]) -> dict[str, Distribution]:
    found = {}
    for name, measure in MEASURES.items():
        values = [value for value in map(measure, results) if value is not None]
        if (one := distribution(values)) is not None:
            found[name] = one
    return found


def _tasks(agent: str, results: Sequence[Result]) -> Iterable[TaskFigures]:
    for task, group in _split((one for one in results if not one.masked), lambda result: result.task).items():
        found = distribution(result.reward for result in group)
        assert found is not None
        yield TaskFigures(task, agent, group[0].subset, len(group), found.mean, found.std, found.max, found.min)
