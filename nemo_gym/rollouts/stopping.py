"""When a job ends before its data does: a limit that was set, or an interval that is narrow enough.

What is in flight by then is finished and counted, so a limit is passed by what was already under way, and by no more.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from ..config.types import JobLimits, StopWhen
from .statistics import Interval, is_number
from .tally import RunningMean, Tally

REWARD = "reward"


class Stopping:
    """Asked before each rollout whether there is to be one.

    Args:
        tally: what is done; kept up to date by others.
    """

    def __init__(self, limits: JobLimits, when: StopWhen | None, tally: Tally) -> None:
        self._limits = limits
        self._when = when
        self._tally = tally
        self._metric = tally.reward if when is None or when.metric == REWARD else RunningMean()
        self._began = time.monotonic()

    def saw(self, task: int, row: Mapping[str, Any]) -> None:
        """A finished rollout, for a metric that is not the reward."""
        if self._metric is self._tally.reward or self._when is None:
            return
        value: Any = row.get(self._when.metric)
        if is_number(value) and not row.get("mask_sample"):
            self._metric.add(task, float(value))

    def reason(self, begun: int) -> str | None:
        """Why no further rollout is begun, in the words of the config; None to go on.

        Args:
            begun: rollouts that are done from earlier starts, and all that this one has begun.
        """
        limits, tally = self._limits, self._tally
        if limits.rollouts is not None and begun >= limits.rollouts:
            return f"limits.rollouts: {limits.rollouts}"
        if limits.tokens is not None and tally.tokens >= limits.tokens:
            return f"limits.tokens: {tally.tokens:,} of {limits.tokens:,}"
        if limits.cost is not None and tally.unpriced is not None:
            return f"limits.cost: prices has no model {tally.unpriced!r}, so what it costs is not known"
        if limits.cost is not None and tally.cost >= limits.cost:
            return f"limits.cost: {tally.cost:.4g} of {limits.cost:g}"
        if limits.seconds is not None and time.monotonic() - self._began >= limits.seconds:
            return f"limits.seconds: {limits.seconds:g}"
        return self._narrow()

    def _narrow(self) -> str | None:
        when = self._when
        found = None if when is None else self._metric.interval()
        if when is None or found is None or found.low is None or found.high is None or found.tasks < when.tasks:
            return None
        if found.high - found.low >= when.narrower_than:
            return None
        over = f"over {found.tasks} tasks, narrower than {when.narrower_than:g}"
        return f"stop_when: {when.metric} is {_shown(found)} {over}"


def _shown(interval: Interval) -> str:
    return f"{interval.mean:.3f} (95 % interval {interval.low:.3f} to {interval.high:.3f})"
