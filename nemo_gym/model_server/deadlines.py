"""One timer for the deadlines of all calls: to make one for each and cancel it costs six times what is kept here.

All have the same time, so who began first is late first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Deadlines:
    """Used on one event loop.

    Args:
        seconds: from `begin` on.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._running: dict[Callable[[], None], float] = {}
        self._timed = False
        """Whether the timer runs: until the first deadline, or earlier."""

    def begin(self, late: Callable[[], None]) -> float:
        """Has `late` called once, unless `end` comes first; when, by the loop's clock."""
        loop = asyncio.get_running_loop()
        until = self._running[late] = loop.time() + self._seconds
        if not self._timed:
            self._timed = True
            loop.call_at(until, self._look)
        return until

    def end(self, late: Callable[[], None]) -> None:
        self._running.pop(late, None)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        self._timed = False
        while self._running:
            late, until = next(iter(self._running.items()))
            if until > loop.time():
                self._timed = True
                loop.call_at(until, self._look)
                return
            del self._running[late]
            late()
