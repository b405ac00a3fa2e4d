"""Several replicas as one Engine: a rollout keeps to its replica, load evens out, a lost call is asked again.

Every wait and every number of tries is bounded; each try is told to the caller for the call's record.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any

from ..exchange.call import Attempt
from ..exchange.errors import ModelError
from ..exchange.ids import uuid7
from .engine import EnginePiece, EngineReply, EngineRequest
from .replica import ABORTED, Replica
from .weights import InFlight, Weights

_SLACK = 8
"""Calls by which a rollout's own replica may be busier than the least busy one: its cached prefix is worth that."""


class RayEngine:
    """Args:
    tries: at most, for one call.
    ready_wait_s: how long a call waits for a replica to be ready.
    model: the folder of the weights that the replicas start with.
    in_flight: what becomes of running calls when new weights are loaded.
    """

    def __init__(
        self, *, tries: int = 3, ready_wait_s: float = 120.0, model: str = "", in_flight: InFlight = "wait"
    ) -> None:
        self.replicas: list[Replica] = []
        self.weights = Weights(self.replicas, model, in_flight=in_flight, seconds=ready_wait_s)
        self._tries = tries
        self._ready_wait_s = ready_wait_s
        self._ready = asyncio.Event()

    takes_ids = True

    @property
    def context(self) -> int | None:
        known = [replica.context for replica in self.replicas if replica.context is not None]
        return min(known, default=None)

    def replica_is_ready(self) -> None:
        self._ready.set()

    async def generate(
        self,
        request: EngineRequest,
        on_piece: Callable[[EnginePiece], None] | None = None,
        on_attempt: Callable[[Attempt], None] | None = None,
    ) -> EngineReply:
        self._check_room(request)
        for number in range(1, self._tries + 1):
            if self.weights.state != "serving":
                await self._admitted()
            replica = await self._choose(request.affinity)
            started = time.time()
            failure: ModelError | None = None
            try:
                reply = await replica.generate(uuid7(), request)
            except ModelError as error:
                failure = error
                if number == self._tries or (error.kind != "unreachable" and error.code != ABORTED):
                    raise
            else:
                if on_piece is not None:
                    for output in reply.outputs:
                        on_piece(EnginePiece(output.index, output.text, output.tokens))
                return reply
            finally:
                if on_attempt is not None:
                    on_attempt(Attempt(replica.name, started, time.time(), failure.kind if failure else None))
        raise AssertionError("unreachable")

    def _check_room(self, request: EngineRequest) -> None:
        length, context = len(request.prompt_ids), self.context
        if context is not None and length >= context:
            raise ModelError(
                400,
                "invalid",
                f"This model's maximum context length is {context} tokens, and the prompt has {length}.",
                code="context_length_exceeded",
                param="messages",
            )

    async def _admitted(self) -> None:
        try:
            await asyncio.wait_for(self.weights.admitted(), self._ready_wait_s)
        except TimeoutError:
            raise ModelError(503, "overloaded", f"the engine is {self.weights.state}", retry_after=5.0) from None

    async def _choose(self, affinity: str | None) -> Replica:
        deadline = asyncio.get_running_loop().time() + self._ready_wait_s
        while True:
            ready = [replica for replica in self.replicas if replica.state == "ready"]
            if ready:
                return choose(ready, affinity)
            if all(replica.state == "lost" for replica in self.replicas):
                raise ModelError(503, "unreachable", "no engine replica is left", retry_after=30.0)
            self._ready.clear()
            try:
                await asyncio.wait_for(self._ready.wait(), deadline - asyncio.get_running_loop().time())
            except TimeoutError:
                raise ModelError(503, "overloaded", "no engine replica is ready", retry_after=5.0) from None

    async def load(self, source: str | Any, version: int) -> None:
        await self.weights.load(source, version)

    async def pause(self, abort: bool) -> None:
        await self.weights.sleep(0, "abort" if abort else "wait")

    async def resume(self) -> None:
        await self.weights.wake()

    async def check(self) -> int:
        """A token of every replica that is not lost; the oldest version among them."""
        if self.weights.state != "serving":
            raise ModelError(503, "overloaded", f"the engine is {self.weights.state}", retry_after=1.0)
        waiting = [replica for replica in self.replicas if replica.state != "ready"]
        if waiting:
            raise ModelError(503, "overloaded", f"{waiting[0].name} is {waiting[0].state}", retry_after=5.0)
        return min(await asyncio.gather(*(replica.check() for replica in self.replicas)))

    async def close(self) -> None:
        """The deployment that started the replicas ends them."""


def choose(ready: Sequence[Replica], affinity: str | None) -> Replica:
    """The rollout's own replica unless it is much busier than the least busy one."""
    least = min(ready, key=lambda replica: replica.in_flight)
    if affinity is None:
        return least
    own = max(ready, key=lambda replica: _weight(replica.name, affinity))
    return own if own.in_flight <= least.in_flight + _SLACK else least


def _weight(name: str, affinity: str) -> bytes:
    # Rendezvous hashing: a replica that goes or comes moves only its own rollouts.
    return blake2b(f"{name}/{affinity}".encode(), digest_size=8).digest()
