"""A pool of replicas: a place on one of them, now or after a wait that has an end.

First come, first served. Who waits can be seen, how many may wait is bounded, and whoever is refused is told when to
come back. A replica whose breaker is open is asked only when none is better; one that asked to be left alone is not.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Collection, Mapping
from typing import Any, Generic, TypeVar

from ..exchange.errors import ModelError
from .health import Health
from .limits import Limits, Spent
from .routing import choose, point_of

T = TypeVar("T")

_REST_S = 1.0
"""Of a replica that is overrun and does not say for how long."""
_LOOK_AGAIN_S = 1.0
"""Where there are limits: another process may have used less of them than was thought."""


class Replica(Generic[T]):
    """One of a pool: a name that is the same in every process, and whatever is asked."""

    def __init__(self, name: str, item: T, most: int | None = None, weight: float = 1.0) -> None:
        self.name = name
        self.item = item
        self.most = most
        self.weight = weight
        self.point = point_of(name)
        self.in_flight = 0
        self.load = 0.0
        self.given = 0
        """Calls, ever."""
        self.health = Health()

    @property
    def full(self) -> bool:
        return self.most is not None and self.in_flight >= self.most

    def count(self, change: int) -> None:
        self.in_flight += change
        self.load = self.in_flight / self.weight


class Place(Generic[T]):
    """A call's place on a replica: given back exactly once."""

    __slots__ = ("replica", "spent")

    def __init__(self, replica: Replica[T], spent: Spent) -> None:
        self.replica = replica
        self.spent = spent


class Pool(Generic[T]):
    """Args:
    items: name -> what is asked.
    most: calls in flight at one replica; None has no bound.
    max_queue: calls that may wait for a place.
    limits: of all replicas together.
    patient: a replica that asks for a rest gets it, and calls wait; without it they find out for themselves.
    weights: name -> how much it can take, beside the others' 1.
    """

    def __init__(
        self,
        items: Mapping[str, T],
        *,
        most: int | None = None,
        max_queue: int = 4096,
        limits: Limits | None = None,
        patient: bool = True,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        known = weights or {}
        self.replicas = [Replica(name, item, most, known.get(name, 1.0)) for name, item in items.items()]
        self._most = most
        self._max_queue = max_queue
        self._unwell: set[Replica[T]] = set()
        """Those whose health has to be looked at."""
        self._limits = limits or Limits()
        self._look_again_s = math.inf if self._limits.none else _LOOK_AGAIN_S
        self._patient = patient
        self._waiting: deque[asyncio.Event] = deque()

    @property
    def queued(self) -> int:
        return len(self._waiting)

    def describe(self) -> list[dict[str, Any]]:
        """Each replica's state, for whoever watches."""
        return [
            {
                "replica": replica.name,
                "state": replica.health.state,
                "in_flight": replica.in_flight,
                "given": replica.given,
                "opened": replica.health.opened,
            }
            for replica in self.replicas
        ]

    def another(self, avoid: Collection[str]) -> bool:
        """Whether a healthy replica is left beside these."""
        now = asyncio.get_running_loop().time()
        return any(one.name not in avoid and one.health.passes(now) for one in self.replicas)

    async def take(self, affinity: str | None, *, until: float, avoid: Collection[str] = ()) -> Place[T]:
        """A place. Raises ModelError with the time to come back when there is none by `until` (the loop's time)."""
        now = asyncio.get_running_loop().time()
        if not self._waiting and (place := self._begun(affinity, avoid, now)) is not None:
            return place
        if len(self._waiting) >= self._max_queue:
            raise ModelError(429, "rate_limit", "too many calls are waiting", code="queue_full", retry_after=1.0)
        mine = asyncio.Event()
        self._waiting.append(mine)
        try:
            return await self._wait(mine, affinity, avoid, until)
        finally:
            self._waiting.remove(mine)
            self._wake()

    async def _wait(self, mine: asyncio.Event, affinity: str | None, avoid: Collection[str], until: float) -> Place[T]:
        loop = asyncio.get_running_loop()
        while True:
            now = loop.time()
            change = math.inf
            if self._waiting[0] is mine:
                place = self._begun(affinity, avoid, now)
                if place is not None:
                    return place
                change = self._next_change(now)
                if change > until and not any(one.full for one in self.replicas):
                    raise self._late(change - now)
            if now >= until:
                raise self._late(1.0)
            mine.clear()
            at = loop.call_at(min(change, until, now + self._look_again_s), mine.set)
            try:
                await mine.wait()
            finally:
                at.cancel()

    def give_back(self, place: Place[T], error: ModelError | None = None, *, tokens: int | None = None) -> None:
        """The call has ended: well, or with an error that may speak against the replica."""
        replica, now = place.replica, asyncio.get_running_loop().time()
        replica.count(-1)
        self._limits.ended(place.spent, tokens)
        if error is None:
            replica.health.succeeded()
        elif error.kind in ("rate_limit", "overloaded") and self._patient:
            replica.health.rest(now, _REST_S if error.retry_after is None else error.retry_after)
        elif error.kind in ("backend", "timeout", "unreachable"):
            replica.health.failed(now)
        else:
            replica.health.abandoned(now)
        if error is not None:
            self._unwell.add(replica)
        self._wake()

    def abandon(self, place: Place[T]) -> None:
        """The call was cancelled; the replica is none the worse for it."""
        place.replica.count(-1)
        place.replica.health.abandoned(asyncio.get_running_loop().time())
        self._wake()

    def _choose(self, affinity: str | None, avoid: Collection[str], now: float) -> Replica[T] | None:
        good = self._well(now)
        if avoid and (others := [one for one in good if one.name not in avoid]):
            good = others
        if not good:  # none is well: rather one that may be down than nothing at all
            good = [one for one in self.replicas if now >= one.health.rests_until]
        free = good if self._most is None else [one for one in good if not one.full]
        return choose(free, affinity) if free else None

    def _well(self, now: float) -> list[Replica[T]]:
        if not self._unwell:
            return self.replicas  # as nearly always, and then nothing of the health is looked at
        self._unwell = {one for one in self._unwell if not one.health.is_plain(now)}
        return [one for one in self.replicas if one not in self._unwell or one.health.passes(now)]

    def _begun(self, affinity: str | None, avoid: Collection[str], now: float) -> Place[T] | None:
        replica = self._choose(affinity, avoid, now)
        spent = None if replica is None else self._limits.begin(now)
        if replica is None or spent is None:
            return None
        replica.count(1)
        replica.given += 1
        replica.health.begin()
        return Place(replica, spent)

    def _next_change(self, now: float) -> float:
        """When a place may come free by the clock alone."""
        limited = self._limits.wait(now)
        rested = min((one.health.rests_until for one in self.replicas if not one.full), default=math.inf)
        if limited or rested > now:
            return max(now + limited, rested)
        return now + self._look_again_s  # nothing, or what another process gave back this moment

    def _late(self, seconds: float) -> ModelError:
        words = "no place came free in time"
        return ModelError(429, "rate_limit", words, code="no_place", retry_after=max(1.0, min(seconds, 60.0)))

    def _wake(self) -> None:
        if self._waiting:
            self._waiting[0].set()
