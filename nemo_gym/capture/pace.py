"""How a writer keeps step with its disk and its calls: what a batch is, and when and by whom it is written.

A disk whose syncs are brief, while calls come one at a time, is waited for on the loop: waking a thread and being woken
by it costs more. While a slow one syncs, the batch that follows is made, so that it never waits for more calls than
there are.
"""

from __future__ import annotations

import asyncio

from msgspec import Struct

from .record import CallRecord, Seal
from .shard import Shard

_BRIEF_S = 0.001
"""A sync that takes no longer may be waited for on the loop."""
_SINGLES = 8
"""After so many batches of one call each, one after the other."""
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
    watchdog: asyncio.TimerHandle | None = None


class Pace:
    def __init__(self) -> None:
        self._singles = 0
        self._took: float | None = None
        """The last sync, in seconds."""

    def wrote(self, job: Job) -> None:
        if job.items:  # else it was not synced
            self._took = job.took

    def alone(self, job: Job) -> bool:
        """Whether the next batch, which is this one, is to be written on the loop."""
        if job.items:
            self._singles = self._singles + 1 if len(job.items) == 1 else 0
        return self._singles > _SINGLES and self._took is not None and self._took < _BRIEF_S and not job.seal

    def fills(self, pending: int) -> bool:
        """Whether so many calls are a batch of their own while the disk is busy."""
        return pending >= _ENOUGH and self._took is not None and self._took > _SLOW_S
