"""Several replicas as one Engine: a pool of those that are ready, and bounded tries over it.

A rollout keeps to its replica, tokens in flight even out, and what a replica that is gone had not answered is asked
anew elsewhere. A reply is one try's, whole: where something of it has been passed on, it is not tried again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ..exchange.call import Attempt
from ..exchange.errors import ModelError
from ..exchange.ids import uuid7
from ..pool.attempts import Attempts
from ..pool.pool import Pool
from .engine import EnginePiece, EngineReply, EngineRequest
from .replica import ABORTED, Replica
from .room import room
from .weights import InFlight, Weights

STALE = "stale_prompt"
"""The code of a call whose prompt was computed with other weights."""
_GUESS = 256.0
"""Tokens of a reply, before any call has ended."""
_NEWEST = 0.05
"""Of the guess, that each reply's own length makes."""


class RayEngine:
    """Args:
    tries: at most, for one call.
    seconds: for all of them, the waits for a replica included.
    most_tokens: in flight at one replica; None: as many as its cache holds.
    max_queue: calls that may wait for a place.
    model: the folder of the weights that the replicas start with.
    in_flight: what becomes of running calls when new weights are loaded.
    """

    takes_ids = True

    def __init__(
        self,
        *,
        tries: int = 3,
        seconds: float = 600.0,
        most_tokens: int | None = None,
        max_queue: int = 4096,
        model: str = "",
        in_flight: InFlight = "wait",
    ) -> None:
        self.replicas: list[Replica] = []
        """All of them, whatever their state; the pool has those that are ready."""
        self.pool: Pool[Replica] = Pool({}, max_queue=max_queue)
        self._most_tokens = most_tokens
        self.weights = Weights(self.replicas, model, in_flight=in_flight, seconds=seconds)
        self._attempts = Attempts(tries=tries, seconds=seconds, repeatable=_is_repeatable)
        self._reply_tokens = _GUESS

    @property
    def context(self) -> int | None:
        known = [replica.context for replica in self.replicas if replica.context is not None]
        return min(known, default=None)

    @property
    def pools(self) -> tuple[Pool[Replica], ...]:
        return (self.pool,)

    def pool_of(self, replica: Replica) -> Pool[Replica]:
        """The one that it is in when it is ready."""
        return self.pool

    def changed(self, replica: Replica) -> None:
        """Called when a replica's state has changed."""
        pool = self.pool_of(replica)
        pool.remove(replica.name)
        if replica.state == "ready":
            pool.refuse(None)
            pool.add(replica.name, replica, most_tokens=self._most_tokens or replica.capacity)
        elif all(one.state == "lost" for one in self.replicas if self.pool_of(one) is pool):
            words = f"no engine replica is left: {replica.name} {replica.why}"
            pool.refuse(ModelError(503, "unreachable", words, retry_after=30.0))

    async def generate(
        self,
        request: EngineRequest,
        on_piece: Callable[[EnginePiece], None] | None = None,
        on_attempt: Callable[[Attempt], None] | None = None,
    ) -> EngineReply:
        return await self._answer(self.pool, request, on_piece, on_attempt)

    async def _answer(
        self,
        pool: Pool[Replica],
        request: EngineRequest,
        on_piece: Callable[[EnginePiece], None] | None,
        on_attempt: Callable[[Attempt], None] | None,
        computed_by: int | None = None,
    ) -> EngineReply:
        """Args:
        computed_by: the version of the weights that its prompt was computed with elsewhere, if it was.
        """
        asked = _Asked(request, on_piece)
        left = room(len(request.prompt_ids), self.context)
        try:
            reply = await self._attempts.answer(
                pool,
                asked,
                lambda replica: self._ask(replica, asked, computed_by),
                tokens=self._expected(request, left),
            )
        finally:
            if on_attempt is not None:
                for attempt in asked.attempts:
                    on_attempt(attempt)
        if not request.endless:
            lengths = sum(len(output.tokens.ids or ()) for output in reply.outputs)
            self._reply_tokens += _NEWEST * (lengths / max(1, len(reply.outputs)) - self._reply_tokens)
        return reply

    async def _ask(self, replica: Replica, asked: _Asked, computed_by: int | None) -> EngineReply:
        if self.weights.state != "serving":
            await self.weights.admitted()
        if computed_by not in (None, self.weights.version):
            raise ModelError(409, "invalid", "the weights have changed since the prompt was computed", code=STALE)
        return await replica.generate(uuid7(), asked.request, asked.piece if asked.wants_pieces else None)

    def _expected(self, request: EngineRequest, left: int | None) -> int:
        """Tokens that the call will hold in the end, as far as can be told."""
        most = request.sampling.max_tokens or left or _GUESS
        return len(request.prompt_ids) + round(request.sampling.n * min(float(most), self._reply_tokens))

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
        if waiting or not self.replicas:
            words = f"{waiting[0].name} {waiting[0].why}" if waiting else "there is no replica"
            raise ModelError(503, "overloaded", words, retry_after=5.0)
        return min(await asyncio.gather(*(replica.check() for replica in self.replicas)))

    async def close(self) -> None:
        """The deployment that started the replicas ends them."""


class _Asked:
    """One request on its way; as `Attempts` sees it."""

    def __init__(self, request: EngineRequest, on_piece: Callable[[EnginePiece], None] | None) -> None:
        self.request = request
        self.rollout_id = request.affinity
        self.attempts: list[Attempt] = []
        self.increments: list[EnginePiece] = []
        """The first piece that was passed on."""
        self.until: float | None = None
        self.late = False
        self._on_piece = on_piece
        self.wants_pieces = on_piece is not None

    def piece(self, piece: EnginePiece) -> None:
        if not self.increments:
            self.increments.append(piece)
        if self._on_piece is not None:
            self._on_piece(piece)


def _is_repeatable(error: ModelError) -> bool:
    return error.kind in ("unreachable", "timeout") or error.code == ABORTED
