"""How many calls run at once: a bound, a visible queue behind it, and a 429 beyond that.

Both bounds are those of all the processes of a server. In one of them, first come is first served.
"""

from __future__ import annotations

import asyncio
from collections import deque
from types import TracebackType

from ..exchange.errors import ModelError
from ..pool.places import Places


class Admission:
    """`async with admission:` holds one place. Raises ModelError 429 when the queue is full.

    Args:
        places: of calls that run.
        queue: of calls that wait for one.
    """

    def __init__(self, places: Places, queue: Places) -> None:
        self._places = places
        self._queue = queue
        self._waiting: deque[asyncio.Event] = deque()
        self.in_flight = 0

    @property
    def queued(self) -> int:
        return len(self._waiting)

    async def __aenter__(self) -> None:
        if self._waiting or not self._places.take():
            await self._wait()
        self.in_flight += 1

    async def _wait(self) -> None:
        if not self._queue.take():
            raise ModelError(429, "rate_limit", "too many calls are waiting", code="queue_full", retry_after=1.0)
        mine = asyncio.Event()
        self._waiting.append(mine)
        try:
            while self._waiting[0] is not mine or not self._places.take():
                mine.clear()
                if self._waiting[0] is not mine:
                    await mine.wait()
                    continue
                tell_nobody = self._places.when_free(mine.set)
                try:
                    await mine.wait()
                finally:
                    tell_nobody()
        finally:
            self._waiting.remove(mine)
            self._queue.give()
            if self._waiting:
                self._waiting[0].set()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.in_flight -= 1
        self._places.give()
