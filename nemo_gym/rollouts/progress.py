"""How far a job is: a live panel on a terminal, a plain line now and then elsewhere, and the same for `ng_status`."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from types import TracebackType

from msgspec import Struct
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from .tally import Tally
from .traffic import Traffic

_LINE_EVERY_S = 10.0
_RATE_OVER_S = 60.0
"""Of so long the rate is that is shown."""
_REFRESH_S = 0.5


class State(Struct, frozen=True):
    """A job at one moment; this is what `ng_status --json` gives."""

    output: str
    done: int
    asked: int
    failed: dict[str, int]
    """By kind; those that are being made anew are not in it."""
    retried: dict[str, int]
    running: int
    """Rollouts in flight."""
    seconds: float
    a_second: float
    """Rollouts ended, lately."""
    left_s: float | None
    """Until the end at this rate; None where it is not known."""
    reward: float | None
    reward_low: float | None
    reward_high: float | None
    tokens: int
    cost: float | None
    calls_in_flight: int | None
    tokens_a_second: float | None


class Progress:
    """Looks at what is counted, and shows it.

    Args:
        running: how many rollouts are in flight.
    """

    def __init__(
        self,
        console: Console,
        output: str,
        asked: int,
        tally: Tally,
        traffic: Traffic,
        running: Callable[[], int],
        priced: bool = False,
    ) -> None:
        self._console = console
        self._output = output
        self._asked = asked
        self._tally = tally
        self._traffic = traffic
        self._running = running
        self._priced = priced
        self._began = self._shown = time.monotonic()
        self._ended: deque[tuple[float, int]] = deque([(self._began, self._count())])
        self._live: Live | None = None
        if console.is_terminal:
            self._live = Live(
                console=console, get_renderable=self._panel, refresh_per_second=1 / _REFRESH_S, transient=True
            )

    def __enter__(self) -> Progress:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def tick(self) -> None:
        """Once a second: the rate goes on, and a plain line is written if the last one is old."""
        now = time.monotonic()
        self._ended.append((now, self._count()))
        while len(self._ended) > 2 and now - self._ended[1][0] > _RATE_OVER_S:
            self._ended.popleft()
        if self._live is None and now - self._shown >= _LINE_EVERY_S:
            self._shown = now
            self._console.print(line(self.state()), highlight=False, markup=False, soft_wrap=True)

    def state(self) -> State:
        tally, now = self._tally, time.monotonic()
        count = self._count()
        then, before = self._ended[0]
        rate = (count - before) / max(now - then, 1e-3)
        left = max(0, self._asked - count)
        interval = tally.reward.interval()
        return State(
            output=self._output,
            done=tally.rollouts,
            asked=self._asked,
            failed=dict(tally.failed),
            retried=dict(tally.retried),
            running=self._running(),
            seconds=now - self._began,
            a_second=rate,
            left_s=left / rate if rate > 0 else None if left else 0.0,
            reward=None if interval is None else interval.mean,
            reward_low=None if interval is None else interval.low,
            reward_high=None if interval is None else interval.high,
            tokens=tally.tokens,
            cost=tally.cost if self._priced else None,
            calls_in_flight=self._traffic.calls_in_flight,
            tokens_a_second=self._traffic.tokens_a_second,
        )

    def _count(self) -> int:
        return self._tally.rollouts + self._tally.failed.total()

    def _panel(self) -> Group:
        state = self.state()
        bar = Table.grid(padding=(0, 1))
        ended = state.done + sum(state.failed.values())
        bar.add_row(
            "rollouts",
            ProgressBar(total=max(state.asked, 1), completed=ended, width=30),
            f"{ended:,}/{state.asked:,}",
            f"{state.a_second:.1f}/s",
            _left(state),
        )
        return Group(bar, *(Text(f"  {name:<12}{words}") for name, words in _facts(state)))


def line(state: State) -> str:
    """A job in one line."""
    ended = state.done + sum(state.failed.values())
    facts = [f"{name} {words}" for name, words in _facts(state)]
    return ", ".join([f"{ended:,}/{state.asked:,} rollouts", f"{state.a_second:.1f}/s", _left(state), *facts])


def _facts(state: State) -> list[tuple[str, str]]:
    facts = []
    if state.reward is not None:
        spread = "" if state.reward_low is None else f" [{state.reward_low:.3f}, {state.reward_high:.3f}]"
        facts.append(("mean reward", f"{state.reward:.3f}{spread}"))
    facts.append(("running", f"{state.running}" + _calls(state)))
    tokens = f"{state.tokens:,}"
    if state.tokens_a_second is not None:
        tokens += f" ({state.tokens_a_second:,.0f}/s generated)"
    facts.append(("tokens", tokens))
    if state.cost is not None:
        facts.append(("cost", f"{state.cost:.4g}"))
    for name, counts in (("failed", state.failed), ("retried", state.retried)):
        if counts:
            facts.append((name, " ".join(f"{kind} {count}" for kind, count in sorted(counts.items()))))
    return facts


def _calls(state: State) -> str:
    return "" if state.calls_in_flight is None else f" ({state.calls_in_flight} calls in flight)"


def _left(state: State) -> str:
    if state.left_s is None:
        return "ETA unknown"
    seconds = round(state.left_s)
    hours, minutes = seconds // 3600, seconds % 3600 // 60
    return f"ETA {hours}:{minutes:02}:{seconds % 60:02}" if hours else f"ETA {minutes}:{seconds % 60:02}"
