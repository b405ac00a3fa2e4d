"""Answers that nobody received: taken over while they are made, or given again (A16).

A client whose connection broke asks again with the same bytes. In a rollout that must not become a second sample, so
a generation that lost its connection is kept: for `repeat_grace_s` while it runs, and from its record once it is made.
Only what was left behind is here: a call that has its client costs nothing, and two equal calls side by side are two
samples. Memory is bounded; what is forgotten is sampled anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any

from ..dialects import codec
from ..exchange.call import Call
from ..exchange.errors import ModelError
from ..exchange.reply import ModelReply

_ROUNDS = 8
_DELIVERY = ("stream", "stream_options")


class Sample:
    """One generation, whoever waits for it. `outcome` is set when its record is durable."""

    def __init__(self, call: Call, dialect: str, rollout_id: str) -> None:
        self.call = call
        self.rollout_id = rollout_id
        self.outcome: asyncio.Future[ModelReply] = asyncio.get_running_loop().create_future()
        self.held = True
        """Whether a connection waits for it."""
        self.left = 0.0
        """When it last lost one; of the monotonic clock."""
        self.changed = asyncio.Event()
        self._dialect = dialect
        self._key: bytes | None = None

    @property
    def key(self) -> bytes:
        if self._key is None:
            assert self.call.request.origin is not None
            self._key = digest(self._dialect, self.call.request.origin.body)
        return self._key

    def hold(self, held: bool) -> None:
        self.held = held
        self.left = time.monotonic()
        self.changed.set()

    def expire(self) -> None:
        """No repeat will come any more."""
        if not self.held:
            self.left = -math.inf
            self.changed.set()

    async def claimed(self, generating: asyncio.Future[ModelReply], grace_s: float) -> bool:
        """True when it is made and somebody waits for it, or it failed; False when nobody came within the grace."""
        generating.add_done_callback(lambda _: self.changed.set())
        while True:
            done = generating.done()
            if done and (self.held or generating.cancelled() or generating.exception() is not None):
                return True
            patience = None if self.held else self.left + grace_s - time.monotonic()
            if patience is not None and patience <= 0:
                return False
            self.changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    await self.changed.wait()

    @property
    def made_well(self) -> bool:
        outcome = self.outcome
        return outcome.done() and not outcome.cancelled() and outcome.exception() is None

    def made(self, reply: ModelReply) -> None:
        self.outcome.set_result(reply)

    def failed(self, error: ModelError) -> None:
        self.outcome.set_exception(error)
        self.outcome.exception()  # seen: nobody has to wait for it


class Asked:
    """A call that is being answered, as its client asked for it."""

    def __init__(self, dialect: str, body: Mapping[str, Any], gone: Callable[[], bool]) -> None:
        self.over = asyncio.Event()
        """Its answer has ended, and was left behind if nobody received it."""
        self.gone = gone
        """Whether its client is gone."""
        self._dialect = dialect
        self._body = body

    @property
    def key(self) -> bytes:
        return digest(self._dialect, self._body)


class Reuse:
    """The samples of every rollout that lost their connection."""

    def __init__(self, limit: int = 1024) -> None:
        self._limit = limit
        self._rollouts: OrderedDict[str, list[Sample]] = OrderedDict()
        self._active: dict[str, list[Asked]] = {}
        self._count = 0

    def leave(self, sample: Sample) -> None:
        """Nobody waits for it any more; a repeat may."""
        sample.hold(False)
        self._rollouts.setdefault(sample.rollout_id, []).append(sample)
        self._rollouts.move_to_end(sample.rollout_id)
        self._count += 1
        while self._count > self._limit:
            self.close(next(iter(self._rollouts)))

    async def take(self, rollout_id: str | None, dialect: str, body: Mapping[str, Any]) -> Sample | None:
        """The sample that these bytes asked for before, if it was left behind; it is the caller's from now on."""
        if rollout_id is None or (rollout_id not in self._rollouts and rollout_id not in self._active):
            return None
        key = digest(dialect, body)
        sample = self._find(rollout_id, key)
        equal = [] if sample is not None else [one for one in self._active.get(rollout_id, ()) if one.key == key]
        if equal:
            # The end of its connection may have come in the same round of the loop as these bytes.
            for _ in range(_ROUNDS):
                await asyncio.sleep(0)
            for one in equal:
                if one.gone():  # its record is being made
                    await one.over.wait()
            sample = self._find(rollout_id, key)
        if sample is not None:
            self.drop(sample)
            sample.hold(True)
        return sample

    def _find(self, rollout_id: str, key: bytes) -> Sample | None:
        return next((sample for sample in self._rollouts.get(rollout_id, ()) if sample.key == key), None)

    def enter(self, rollout_id: str, asked: Asked) -> None:
        """A call has its client and is being answered."""
        self._active.setdefault(rollout_id, []).append(asked)

    def exit(self, rollout_id: str, asked: Asked) -> None:
        asked.over.set()
        active = self._active[rollout_id]
        if len(active) == 1:
            del self._active[rollout_id]
        else:
            active[:] = [one for one in active if one is not asked]

    def drop(self, sample: Sample) -> None:
        """It can be taken no more."""
        left = self._rollouts.get(sample.rollout_id, [])
        if sample in left:
            left.remove(sample)
            self._count -= 1
            if not left:
                del self._rollouts[sample.rollout_id]

    def close(self, rollout_id: str) -> None:
        """The rollout is sealed."""
        self._count -= len(self._rollouts.pop(rollout_id, ()))


def digest(dialect: str, body: Mapping[str, Any]) -> bytes:
    """Of a body as it was asked, how it is delivered aside."""
    asked = {name: value for name, value in body.items() if name not in _DELIVERY}
    return blake2b(codec.encode(asked), digest_size=16, key=dialect.encode()).digest()
