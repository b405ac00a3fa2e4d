"""A pool of replicas: a place on one of them, now or after a wait that has an end.

First come, first served. Who waits can be seen, how many may wait is bounded, and whoever is refused is told when to
come back. A replica whose breaker is open is asked only when none is better; one that asked to be left alone is not.
Replicas may come and go: one that goes gets no more calls, and keeps those that it has.

Where it is told how many tokens a call takes, a replica's load is its tokens in flight, counted in calls of usual size.
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
from .places import OwnPlaces, Places
from .routing import choose, point_of

T = TypeVar("T")

_REST_S = 1.0
"""Of a replica that is overrun and does not say for how long."""
_LOOK_AGAIN_S = 1.0
"""Where there are limits: another process may have used less of them than was thought."""


_SIZES = 0.1
"""Of the usual size of a call, that each call's own makes."""


class Replica(Generic[T]):
    """One of a pool: a name that is the same in every process, and whatever is asked."""

    def __init__(
        self, name: str, item: T, places: Places | None = None, weight: float = 1.0, most_tokens: int | None = None
    ) -> None:
        self.name = name
        self.item = item
        self.places = places
        """Of calls in flight; None has no bound."""
        self.most_tokens = most_tokens
        self.weight = weight
        self.point = point_of(name)
        self.in_flight = 0
        self.tokens = 0
        """In flight, where they are told."""
        self.load = 0.0
        self.given = 0
        """Calls, ever."""
        self.health = Health()
        self.gone = False
        self.idle: asyncio.Event | None = None
        """Set when its last call has ended, once it is to go."""

    @property
    def full(self) -> bool:
        """Whether it may take a call more when another has ended."""
        if self.places is not None and not self.places.free:
            return True
        return self.most_tokens is not None and self.tokens >= self.most_tokens

    def fits(self, tokens: int) -> bool:
        """A call that is larger than all that it may have gets it for itself."""
        return self.most_tokens is None or not self.in_flight or self.tokens + tokens <= self.most_tokens

    def begin(self, place: Place[T]) -> None:
        """With one of its places, where they are bounded."""
        self.in_flight += 1
        self.given += 1
        self.tokens += place.tokens
        self.load += place.load

    def end(self, place: Place[T]) -> None:
        self.in_flight -= 1
        self.tokens -= place.tokens
        self.load = self.load - place.load if self.in_flight else 0.0
        if self.places is not None:
            self.places.give()
        if self.idle is not None and not self.in_flight:
            self.idle.set()


class Place(Generic[T]):
    """A call's place on a replica: given back exactly once."""

    __slots__ = ("load", "replica", "spent", "tokens")

    def __init__(self, replica: Replica[T], spent: Spent, tokens: int, load: float) -> None:
        self.replica = replica
        self.spent = spent
        self.tokens = tokens
        self.load = load


class Pool(Generic[T]):
    """Args:
    items: name -> what is asked.
    most: calls in flight at one replica; None has no bound.
    places: those at each, by name, where several processes share them; instead of `most`.
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
        places: Mapping[str, Places] | None = None,
        max_queue: int = 4096,
        limits: Limits | None = None,
        patient: bool = True,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        self._weights = weights or {}
        self._most = most
        self._places = places or {}
        self._bounded = most is not None or bool(places)
        self._full: list[Places] = []
        """Of those that were worth asking at the last look, by whoever waits first."""
        self.replicas = [self._made(name, item) for name, item in items.items()]
        self._usual = 0.0
        """Tokens of a call; 0 while none has told."""
        self._refusal: ModelError | None = None
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

    def _made(self, name: str, item: T, most_tokens: int | None = None) -> Replica[T]:
        places = self._places.get(name)
        if places is None and self._most is not None:
            places = OwnPlaces(self._most)
        return Replica(name, item, places, self._weights.get(name, 1.0), most_tokens)

    def add(self, name: str, item: T, *, most_tokens: int | None = None) -> None:
        """One more; with the name of one that went, its rollouts come back to it.

        Args:
            most_tokens: that it may have in flight; None has no bound.
        """
        self.replicas = [*self.replicas, self._made(name, item, most_tokens)]
        self._bounded = self._bounded or most_tokens is not None
        self._wake()

    def remove(self, name: str) -> Replica[T] | None:
        """It gets no more calls; None where there is no such replica."""
        gone = next((one for one in self.replicas if one.name == name), None)
        if gone is not None:
            self.replicas = [one for one in self.replicas if one is not gone]
            self._unwell.discard(gone)
            gone.gone = True
        return gone

    async def drain(self, name: str, *, until: float) -> bool:
        """Removes it and waits for its calls to end; False when some had not by `until` (the loop's time)."""
        gone = self.remove(name)
        if gone is None or not gone.in_flight:
            return True
        gone.idle = asyncio.Event()
        try:
            async with asyncio.timeout_at(until):
                await gone.idle.wait()
        except TimeoutError:
            return False
        return True

    def refuse(self, error: ModelError | None) -> None:
        """Nobody waits any more for a replica: none will come. None: one may come again."""
        self._refusal = error
        self._wake()

    def another(self, avoid: Collection[str]) -> bool:
        """Whether a healthy replica is left beside these."""
        now = asyncio.get_running_loop().time()
        return any(one.name not in avoid and one.health.passes(now) for one in self.replicas)

    async def take(
        self, affinity: str | None, *, until: float, avoid: Collection[str] = (), tokens: int = 0
    ) -> Place[T]:
        """A place. Raises ModelError with the time to come back when there is none by `until` (the loop's time).

        Args:
            tokens: of prompt and reply together, as far as they are known; 0 where they are not.
        """
        now = asyncio.get_running_loop().time()
        if not self._waiting and (place := self._begun(affinity, avoid, now, tokens)) is not None:
            return place
        if len(self._waiting) >= self._max_queue:
            raise ModelError(429, "rate_limit", "too many calls are waiting", code="queue_full", retry_after=1.0)
        mine = asyncio.Event()
        self._waiting.append(mine)
        try:
            return await self._wait(mine, affinity, avoid, until, tokens)
        finally:
            self._waiting.remove(mine)
            self._wake()

    async def _wait(
        self, mine: asyncio.Event, affinity: str | None, avoid: Collection[str], until: float, tokens: int
    ) -> Place[T]:
        loop = asyncio.get_running_loop()
        while True:
            now = loop.time()
            change = math.inf
            if self._waiting[0] is mine:
                place = self._begun(affinity, avoid, now, tokens)
                if place is not None:
                    return place
                if self._refusal is not None and not self.replicas:
                    raise self._refusal
                change = self._next_change(now)
                if change > until and self.replicas and not any(one.in_flight or one.full for one in self.replicas):
                    raise self._late(change - now)
            if now >= until:
                raise self._late(1.0)
            mine.clear()
            at = loop.call_at(min(change, until, now + self._look_again_s), mine.set)
            tell_nobody = [full.when_free(mine.set) for full in self._full] if self._waiting[0] is mine else ()
            try:
                await mine.wait()
            finally:
                at.cancel()
                for no_more in tell_nobody:
                    no_more()

    def give_back(self, place: Place[T], error: ModelError | None = None, *, tokens: int | None = None) -> None:
        """The call has ended: well, or with an error that may speak against the replica."""
        replica, now = place.replica, asyncio.get_running_loop().time()
        replica.end(place)
        self._limits.ended(place.spent, tokens)
        if error is None:
            replica.health.succeeded()
        elif error.kind in ("rate_limit", "overloaded") and self._patient:
            replica.health.rest(now, _REST_S if error.retry_after is None else error.retry_after)
        elif error.kind in ("backend", "timeout", "unreachable"):
            replica.health.failed(now)
        else:
            replica.health.abandoned(now)
        if error is not None and not replica.gone:
            self._unwell.add(replica)
        self._wake()

    def abandon(self, place: Place[T]) -> None:
        """The call was cancelled; the replica is none the worse for it."""
        place.replica.end(place)
        place.replica.health.abandoned(asyncio.get_running_loop().time())
        self._wake()

    def _free(self, avoid: Collection[str], now: float, tokens: int) -> list[Replica[T]]:
        """Those that may have this call."""
        good = self._well(now)
        if avoid and (others := [one for one in good if one.name not in avoid]):
            good = others
        if not good:  # none is well: rather one that may be down than nothing at all
            good = [one for one in self.replicas if now >= one.health.rests_until]
        if not self._bounded:
            return good
        self._full, free = [], []
        for one in good:
            if one.places is not None and not one.places.free:
                self._full.append(one.places)
            elif one.fits(tokens):
                free.append(one)
        return free

    def _well(self, now: float) -> list[Replica[T]]:
        if not self._unwell:
            return self.replicas  # as nearly always, and then nothing of the health is looked at
        self._unwell = {one for one in self._unwell if not one.health.is_plain(now)}
        return [one for one in self.replicas if one not in self._unwell or one.health.passes(now)]

    def _begun(self, affinity: str | None, avoid: Collection[str], now: float, tokens: int) -> Place[T] | None:
        replica = self._chosen(affinity, self._free(avoid, now, tokens))
        if replica is None:
            return None
        spent = self._limits.begin(now)
        if spent is None:
            if replica.places is not None:
                replica.places.give()
            return None
        replica.health.begin()
        place = Place(replica, spent, tokens, self._size(tokens) / replica.weight)
        replica.begin(place)
        return place

    def _chosen(self, affinity: str | None, free: list[Replica[T]]) -> Replica[T] | None:
        """With one of its places taken, where they are bounded."""
        while free:
            replica = choose(free, affinity)
            if replica.places is None or replica.places.take():
                return replica
            self._full.append(replica.places)  # another process was quicker
            free = [one for one in free if one is not replica]
        return None

    def _size(self, tokens: int) -> float:
        """In calls of usual size."""
        if not tokens:
            return 1.0
        self._usual = self._usual + _SIZES * (tokens - self._usual) if self._usual else float(tokens)
        return tokens / self._usual

    def _next_change(self, now: float) -> float:
        """When a place may come free by the clock alone."""
        limited = self._limits.wait(now)
        rested = min((one.health.rests_until for one in self.replicas if not one.full), default=math.inf)
        if limited or rested > now:
            return max(now + limited, rested)
        return now + self._look_again_s  # nothing, or what another process gave back this moment

    def _late(self, seconds: float) -> ModelError:
        if not self.replicas:
            return ModelError(503, "overloaded", "no replica is ready", code="no_place", retry_after=5.0)
        words = "no place came free in time"
        return ModelError(429, "rate_limit", words, code="no_place", retry_after=max(1.0, min(seconds, 60.0)))

    def _wake(self) -> None:
        if self._waiting:
            self._waiting[0].set()
