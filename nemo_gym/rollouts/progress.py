"""How far a job is: a bar on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from .outcome import Outcome

_LINE_EVERY_S = 10.0


class Progress:
    """Counts outcomes and shows the count.

    Args:
        total: rollouts of the whole job.
        done: those that an earlier start finished.
        rewards: the sum of their rewards.
    """

    def __init__(self, console: Console, total: int, done: int = 0, rewards: float = 0.0) -> None:
        self._console = console
        self._total = total
        self._before = done
        self._done = done
        self._rewards = rewards
        self._failed = 0
        self._began = self._shown = time.monotonic()
        self._bar: Bar | None = None
        if console.is_terminal:
            self._bar = Bar(
                TextColumn("rollouts"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.description}"),
                console=console,
                transient=True,
            )
            self._task = self._bar.add_task("", total=total, completed=done)

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def ended(self, outcome: Outcome) -> None:
        if outcome.result is None:
            self._failed += 1
        else:
            self._done += 1
            self._rewards += float(outcome.result["reward"])
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done + self._failed, description=self._words())

    def tick(self) -> None:
        """A plain line, if there is no bar and the last one is old."""
        now = time.monotonic()
        if self._bar is None and now - self._shown >= _LINE_EVERY_S:
            self._shown = now
            share = f"{self._done + self._failed}/{self._total} rollouts"
            self._console.print(f"{share}, {self._words()}", highlight=False, soft_wrap=True)

    def _words(self) -> str:
        made = self._done + self._failed - self._before
        rate = made / max(time.monotonic() - self._began, 1e-3)
        mean = f"mean reward {self._rewards / self._done:.3f}, " if self._done else ""
        failed = f", {self._failed} failed" if self._failed else ""
        return f"{mean}{rate:.1f}/s{failed}"
