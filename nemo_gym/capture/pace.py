"""How a writer keeps step with its disk: what a batch is, what is at the thread, and whether the disk still answers.

While a slow disk syncs, the batch that follows is made, so that it never waits for more calls than there are. The loop
itself never waits for the disk: a server whose disk hangs still says so.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

from msgspec import Struct

from .record import CallRecord, Seal
from .shard import Shard

_SLOW_S = 0.002
_ENOUGH = 32
"""Calls of a batch that is made while a slow disk syncs the one before."""


class Item(Struct, eq=False):
    value: CallRecord | Seal
    done: asyncio.Future[Seal | None] | None = None


class Job(Struct, eq=False):
    shard: Shard
    data: bytes
    items: list[Item]
    seal: bool
    """Seal the shard afterwards."""
    took: float = 0.0
    """To write and sync, in seconds."""


class InFlight:
    """The batches at the thread: one that is written and one that waits, at most.

    One timer watches over all of them: to make and cancel one for each costs a lone call a tenth of its record.

    Args:
        wait_s: a disk that has not answered by then hangs.
        hangs: told so, once until it answers again.
    """

    def __init__(self, wait_s: float, hangs: Callable[[], None]) -> None:
        self._jobs: deque[Job] = deque()
        self._since = 0.0
        """When the thread turned to the oldest."""
        self._wait_s = wait_s
        self._hangs = hangs
        self._timer: asyncio.TimerHandle | None = None
        self._took: float | None = None
        """The last sync, in seconds."""
        self.hung = False

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def items(self) -> list[Item]:
        return [item for job in self._jobs for item in job.items]

    def takes(self, pending: int) -> bool:
        """Whether the thread has nothing to do; or, where the disk is slow, will have nothing after this."""
        return not self._jobs or (len(self._jobs) == 1 and self.fills(pending))

    def fills(self, pending: int) -> bool:
        """Whether so many calls are a batch of their own while the disk is busy."""
        return pending >= _ENOUGH and self._took is not None and self._took > _SLOW_S

    def add(self, job: Job, loop: asyncio.AbstractEventLoop) -> None:
        if not self._jobs:
            self._since = time.monotonic()
        self._jobs.append(job)
        if self._timer is None:
            self._timer = loop.call_later(self._wait_s, self._look, loop)

    def landed(self) -> Job:
        """The oldest, which was written or failed."""
        job = self._jobs.popleft()
        self._since, self.hung = time.monotonic(), False
        if job.items:  # else it was not synced
            self._took = job.took
        return job

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        if not self._jobs:
            return
        left = self._since + self._wait_s - time.monotonic()
        if left <= 0 and not self.hung:
            self.hung = True
            self._hangs()
        self._timer = loop.call_later(left if left > 0 else self._wait_s, self._look, loop)
