"""How many calls run at once: a bound, a visible queue behind it, and a 429 beyond that."""

from __future__ import annotations

import asyncio
from types import TracebackType

from ..exchange.errors import ModelError


class Admission:
    """`async with admission:` holds one place. Raises ModelError 429 when the queue is full."""

    def __init__(self, max_in_flight: int, max_queue: int) -> None:
        self._places = asyncio.Semaphore(max_in_flight)
        self._max_queue = max_queue
        self.in_flight = 0
        self.queued = 0

    async def __aenter__(self) -> None:
        if self._places.locked() and self.queued >= self._max_queue:
            raise ModelError(429, "rate_limit", "too many calls are waiting", code="queue_full", retry_after=1.0)
        self.queued += 1
        try:
            await self._places.acquire()
        finally:
            self.queued -= 1
        self.in_flight += 1

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.in_flight -= 1
        self._places.release()
