"""pass@k, majority@k and their spread over named scores, for environments that report more than a reward.

Values are percentages; keys are `{figure}/{score}`. `pass@k` is unbiased for scores of 0 and 1, and for others the best
of a task's first k. `pass@1[avg-of-k]` is the mean of the first k, and its spread is that between the k runs (rollout i
of every task is run i).
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from .statistics import best_of, majority_of

Scores = dict[str, float]
_SPREADS = ("/std_dev_across_runs", "/std_err_across_runs", "/avg_sample_std_dev")


def compute_pass_majority_metrics(
    tasks: Sequence[Sequence[Mapping[str, Any]]],
    score_fn: Callable[[Any], Mapping[str, float | bool]] | None = None,
    answer_key: str | None = None,
) -> tuple[dict[str, Any], list[list[Scores]], list[str], int]:
    """Figures over rollouts grouped by task.

    Args:
        score_fn: a rollout's named scores; its reward as `accuracy` unless given.
        answer_key: the field with the answer that was read out of the reply; with it come `majority@k` and `no_answer`.

    Returns:
        The figures, each rollout's scores, the names of the scores, and the largest number of rollouts of a task.
    """
    if not tasks:
        return {}, [], [], 0
    scores = [[_scores(rollout, score_fn, answer_key) for rollout in rollouts] for rollouts in tasks]
    names = sorted({name for task in scores for one in task for name in one})
    most = max(map(len, tasks))
    figures: dict[str, Any] = {}
    for k in range(1, most + 1):
        for name in names:
            columns = [[one[name] for one in task if name in one] for task in scores]
            _put(figures, f"pass@{k}/{name}", [_best(column, k) for column in columns if len(column) >= k])
            firsts = [[one[name] for one in task[:k] if name in one] for task in scores]
            _put(figures, f"pass@1[avg-of-{k}]/{name}", [statistics.fmean(first) for first in firsts if first])
            if answer_key is not None:
                votes = (_votes(task[:k], own, name, answer_key) for task, own in zip(tasks, scores, strict=True))
                _put(figures, f"majority@{k}/{name}", [majority_of(vote) for vote in votes])
    runs = {name: _runs(scores, name, most) for name in names}
    figures["per_sample_aggregate"] = {name: values for name, values in runs.items() if values}
    for k in range(2, most + 1):
        for name, values in runs.items():
            if len(values[:k]) >= 2:
                deviation = statistics.stdev(values[:k])
                key = f"pass@1[avg-of-{k}]/{name}"
                figures[f"{key}/std_dev_across_runs"] = deviation
                figures[f"{key}/std_err_across_runs"] = deviation / math.sqrt(len(values[:k]))
    return figures, scores, names, most


def add_avg_sample_std_dev(
    metrics: dict[str, Any], all_score_dicts: Sequence[Sequence[Scores]], score_names: Iterable[str], max_k: int
) -> None:
    """Adds to `metrics` how much a task's first k scores vary, on average over the tasks that have two of them."""
    for k in range(2, max_k + 1):
        for name in score_names:
            columns = [[one[name] for one in task[:k] if name in one] for task in all_score_dicts]
            spreads = [statistics.stdev(column) for column in columns if len(column) >= 2]
            if spreads:
                metrics[f"pass@1[avg-of-{k}]/{name}/avg_sample_std_dev"] = statistics.fmean(spreads)


def compute_subset_metrics(
    tasks: Sequence[Sequence[Mapping[str, Any]]],
    subset_key: str,
    score_fn: Callable[[Any], Mapping[str, float | bool]] | None = None,
    answer_key: str | None = None,
) -> dict[str, Any]:
    """The same for each value of a field, keys begun with that value."""
    subsets: dict[Any, list[Sequence[Mapping[str, Any]]]] = {}
    for rollouts in tasks:
        value = next((rollout[subset_key] for rollout in rollouts if rollout.get(subset_key)), None)
        if value:
            subsets.setdefault(value, []).append(rollouts)
    return {
        f"{subset}/{key}": value
        for subset, members in subsets.items()
        for key, value in compute_pass_majority_metrics(members, score_fn, answer_key)[0].items()
        if key != "per_sample_aggregate"
    }


def highest_k_metrics(
    agent_metrics: Mapping[str, Any],
    pattern: str,
    score_names: Iterable[str] | None = None,
    exclude_names: Iterable[str] | None = None,
) -> dict[str, Any]:
    """The figures that fit a pattern such as `pass@{k}` at the largest k there is; their spreads are left out."""
    shape = re.compile(re.escape(pattern).replace(r"\{k\}", r"(\d+)") + "/(.+)")
    wanted = None if score_names is None else frozenset(score_names)
    unwanted = frozenset(exclude_names or ())
    found = []
    for key in agent_metrics:
        fits = shape.fullmatch(key)
        if fits is None or key.endswith(_SPREADS):
            continue
        name = fits.group(2)
        if (wanted is None or name in wanted) and name not in unwanted:
            found.append((int(fits.group(1)), key))
    most = max((k for k, _ in found), default=0)
    return {key: agent_metrics[key] for k, key in found if k == most}


def _scores(rollout: Mapping[str, Any], score_fn: Any, answer_key: str | None) -> Scores:
    given = {"accuracy": rollout["reward"]} if score_fn is None else score_fn(rollout)
    scores = {name: int(value) if isinstance(value, bool) else value for name, value in given.items()}
    if answer_key is not None:
        scores["no_answer"] = int(rollout.get(answer_key) is None)
    return scores


def _best(values: Sequence[float], k: int) -> float:
    if all(value in (0, 1) for value in values):
        best = best_of(values, k)
        assert best is not None
        return best
    return max(values[:k])


def _votes(rollouts: Sequence[Any], scores: Sequence[Scores], name: str, answer_key: str) -> list[tuple[Any, float]]:
    pairs = zip(rollouts, scores, strict=False)
    return [(rollout.get(answer_key), own[name]) for rollout, own in pairs if name in own]


def _runs(scores: list[list[Scores]], name: str, most: int) -> list[float]:
    """The percentage of each run that has the score."""
    runs = ([task[run][name] for task in scores if run < len(task) and name in task[run]] for run in range(most))
    return [100 * statistics.fmean(run) for run in runs if run]


def _put(figures: dict[str, Any], key: str, values: list[float]) -> None:
    if values:
        figures[key] = 100 * statistics.fmean(values)
