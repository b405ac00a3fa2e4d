"""Where a job stands, counted as it goes: the mean with its interval, tokens, cost, failures by kind.

A task costs two numbers, so the interval is there at any moment and is the very one that the figures at the end have.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Mapping
from fnmatch import fnmatchcase

from ..config.types import Price
from .entries import Entry
from .statistics import Interval, t_quantile


class RunningMean:
    """A mean over values in groups, and its interval clustered by group."""

    def __init__(self) -> None:
        self._sums = array("d")
        self._counts = array("i")
        self._count = self._groups = 0
        self._total = 0.0
        # Over the groups: sum times sum, sum times count, count times count.
        self._squares = self._crossed = self._sizes = 0.0

    def add(self, group: int, value: float) -> None:
        missing = group + 1 - len(self._sums)
        if missing > 0:
            self._sums.extend([0.0] * missing)
            self._counts.extend([0] * missing)
        before, size = self._sums[group], self._counts[group]
        after = before + value
        self._squares += after * after - before * before
        self._crossed += after * (size + 1) - before * size
        self._sizes += 2 * size + 1
        self._sums[group], self._counts[group] = after, size + 1
        self._groups += size == 0
        self._count += 1
        self._total += value

    def interval(self) -> Interval | None:
        """As `statistics.mean_interval` has it; None without a value."""
        if not self._count:
            return None
        mean = self._total / self._count
        if self._groups < 2:
            return Interval(mean, None, None, None, self._groups, self._count)
        squares = max(0.0, self._squares - 2 * mean * self._crossed + mean * mean * self._sizes)
        error = math.sqrt(squares * self._groups / (self._groups - 1)) / self._count
        reach = t_quantile(self._groups - 1) * error
        return Interval(mean, mean - reach, mean + reach, error, self._groups, self._count)


class Unpriced(Exception):
    """A model that the price table does not have."""


class Tally:
    """All that is counted of a job, earlier starts included.

    Args:
        prices: by the model's name, `*` for anything in it; a name that is there whole goes before a pattern.
    """

    def __init__(self, prices: Mapping[str, Price]) -> None:
        self._prices = dict(prices)
        self._price_of: dict[str, Price | None] = {}
        self.reward = RunningMean()
        self.rollouts = 0
        self.prompt_tokens = 0
        self.output_tokens = 0
        self.cost = 0.0
        self.unpriced: str | None = None
        """A model that was answered by, and has no price."""
        self.failed: Counter[str] = Counter()
        """By kind, of this start; those that are made anew are not in it."""
        self.retried: Counter[str] = Counter()

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens

    def add(self, entry: Entry) -> None:
        self.rollouts += 1
        self.prompt_tokens += entry.prompt_tokens
        self.output_tokens += entry.output_tokens
        if not entry.masked:
            self.reward.add(entry.task, entry.reward)
        if self._prices:
            self._spend(entry)

    def _spend(self, entry: Entry) -> None:
        price = self._price(entry.model)
        if price is None:
            self.unpriced = entry.model
            return
        fresh = entry.prompt_tokens - min(entry.cached_tokens, entry.prompt_tokens)
        cached = price.input if price.cached is None else price.cached
        spent = fresh * price.input + (entry.prompt_tokens - fresh) * cached + entry.output_tokens * price.output
        self.cost += spent / 1e6

    def _price(self, model: str) -> Price | None:
        if model not in self._price_of:
            fitting = (price for name, price in self._prices.items() if fnmatchcase(model, name))
            self._price_of[model] = self._prices.get(model) or next(fitting, None)
        return self._price_of[model]
