"""What an export is asked for, checked before anything is read."""

from __future__ import annotations

import math
from typing import Literal

from msgspec import Struct

Branches = Literal["all", "main", "last", "calls"]
BRANCHES = ("all", "main", "last", "calls")
"""All sequences; those of the main line; its last call alone; one sequence a call."""
Advantage = Literal["grpo", "rloo", "plain"]
ADVANTAGES = ("grpo", "rloo", "plain")
INCLUDABLE = ("incomplete", "calls_missing", "masked", "off_policy", "raw_logprobs")
"""Why a rollout is left out, unless it is asked for."""


class ExportError(Exception):
    """Nothing was exported; words for the user."""


class Options(Struct, frozen=True, kw_only=True):
    branches: Branches = "all"
    shared: bool = False
    """The captures are other jobs' too: what this one has no result for is not read, and not accounted for."""
    include: frozenset[str] = frozenset()
    """Of INCLUDABLE: exported all the same."""
    max_staleness: int | None = None
    """How many policy versions a rollout's oldest token may be behind; None = any number."""
    policy_version: int | None = None
    """That staleness is counted from; None = the newest that the captures have."""
    advantage: Advantage | None = None
    where: str | None = None
    """An SQL expression over a rollout's figures (ledger.COLUMNS)."""
    agents: tuple[str, ...] = ()
    min_reward: float | None = None
    max_reward: float | None = None
    min_tokens: int | None = None
    """Of a rollout's longest sequence."""
    max_tokens: int | None = None
    dedupe: bool = False
    """Of rollouts of one task that said the same, the first one only."""
    sample: int | None = None
    """So many rollouts, drawn at random."""
    seed: int = 0
    splits: tuple[tuple[str, float], ...] = ()
    """Name and share; a task's rollouts are all in one."""
    rows_per_file: int | None = None

    @property
    def split_names(self) -> list[str | None]:
        return [name for name, _ in self.splits] or [None]


def check(options: Options) -> None:
    """Raises ExportError that names the option."""
    _one_of("branches", options.branches, BRANCHES)
    if options.advantage is not None:
        _one_of("advantage", options.advantage, ADVANTAGES)
    for reason in sorted(options.include):
        _one_of("include", reason, INCLUDABLE)
    for name in ("max_staleness", "sample", "min_tokens", "max_tokens"):
        value = getattr(options, name)
        if value is not None and value < 0:
            raise ExportError(f"{name}: {value} is negative")
    if options.rows_per_file is not None and options.rows_per_file < 1:
        raise ExportError(f"rows_per_file: {options.rows_per_file} is not a number of rows")
    for name in ("min_reward", "max_reward"):
        value = getattr(options, name)
        if value is not None and not math.isfinite(value):
            raise ExportError(f"{name}: {value} is not a finite number")
    _check_splits(options.splits)


def _one_of(name: str, value: str, values: tuple[str, ...]) -> None:
    if value not in values:
        raise ExportError(f"{name}: there is no {value!r}; there is {', '.join(values)}")


def _check_splits(splits: tuple[tuple[str, float], ...]) -> None:
    names = [name for name, _ in splits]
    if len(set(names)) < len(names):
        raise ExportError(f"splits: a name is given twice: {', '.join(names)}")
    for name, share in splits:
        if not name.isidentifier():
            raise ExportError(f"splits: {name!r} is not a name")
        if not 0 < share <= 1:
            raise ExportError(f"splits: the share of {name} is {share}; expected one between 0 and 1")
    if splits and not math.isclose(sum(share for _, share in splits), 1, abs_tol=1e-6):
        raise ExportError(f"splits: the shares add up to {sum(share for _, share in splits):g}, not to 1")
