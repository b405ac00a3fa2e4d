"""An Engine made of two pools: prefill replicas compute prompts, decode replicas go on from there (D1, D2).

A prompt is rendered once; both get the same ids. Prefill is asked for one token, which is thrown away, and what its
connector says of the computed prompt goes to decode, which samples every token of the reply: replies are distributed as
one engine's. A reply of one token needs no decode. What is handed over never leaves this room, and a prompt that was
computed with other weights than decode has by then is computed again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Literal

from msgspec.structs import replace

from ..exchange.call import Attempt
from ..exchange.errors import ModelError
from ..exchange.ids import uuid7
from ..pool.pool import Pool
from .engine import EnginePiece, EngineReply, EngineRequest
from .ray_engine import STALE, RayEngine
from .replica import Replica
from .room import room

Order = Literal["prefill_first", "decode_first"]
"""`prefill_first`: decode is asked with what prefill's reply says; `decode_first`: both are asked at once, and find
each other by an id of the transfer."""
PREFILL = "prefill"
"""What names of prefill replicas begin with."""

_TO_PREFILL = {"do_remote_decode": True, "do_remote_prefill": False}
_TO_DECODE = {"do_remote_decode": False, "do_remote_prefill": True}
_TRIES = 3


class SplitEngine(RayEngine):
    """`pool` has the decode replicas.

    Args:
        order: which pool is asked first.
        handoff: told to every decode besides, as connectors want it whose prefill's reply does not say where it is.
        max_queue, options: as RayEngine has them.
    """

    def __init__(
        self,
        *,
        order: Order = "prefill_first",
        handoff: Mapping[str, Any] | None = None,
        max_queue: int = 4096,
        **options: Any,
    ) -> None:
        super().__init__(max_queue=max_queue, **options)
        self.prefill: Pool[Replica] = Pool({}, max_queue=max_queue)
        self._order = order
        self._told = dict(handoff or {})

    @property
    def pools(self) -> tuple[Pool[Replica], ...]:
        return (self.prefill, self.pool)

    def pool_of(self, replica: Replica) -> Pool[Replica]:
        return self.prefill if replica.name.startswith(PREFILL) else self.pool

    async def generate(
        self,
        request: EngineRequest,
        on_piece: Callable[[EnginePiece], None] | None = None,
        on_attempt: Callable[[Attempt], None] | None = None,
    ) -> EngineReply:
        left = room(len(request.prompt_ids), self.context)
        if 1 in (left, request.sampling.max_tokens):
            reply = await self._answer(self.prefill, replace(request, handoff=None), on_piece, on_attempt)
            return replace(reply, handoff=None)
        if request.sampling.n == 1:
            return await self._handed_over(request, on_piece, on_attempt)
        # What was computed of a prompt is handed over once, so each choice has its own.
        replies = await _together(
            *(self._handed_over(one, None, on_attempt) for one in _single(request, request.sampling.n))
        )
        whole = replace(
            replies[0],
            outputs=tuple(replace(reply.outputs[0], index=place) for place, reply in enumerate(replies)),
        )
        for output in whole.outputs if on_piece is not None else ():
            on_piece(EnginePiece(output.index, output.text, output.tokens))  # type: ignore[misc]
        return whole

    async def _handed_over(
        self,
        request: EngineRequest,
        on_piece: Callable[[EnginePiece], None] | None,
        on_attempt: Callable[[Attempt], None] | None,
    ) -> EngineReply:
        ask = self._prefill_first if self._order == "prefill_first" else self._at_once
        for left in reversed(range(_TRIES)):
            try:
                prompt, reply = await ask(request, on_piece, on_attempt)
                return replace(reply, cached=prompt.cached, prompt_logprobs=prompt.prompt_logprobs, handoff=None)
            except ModelError as error:
                if error.code != STALE:
                    raise
                if not left:
                    words = "the weights changed each time between the prompt and the reply"
                    raise ModelError(503, "overloaded", words, retry_after=1.0) from None
        raise AssertionError("there is a try")

    async def _prefill_first(
        self,
        request: EngineRequest,
        on_piece: Callable[[EnginePiece], None] | None,
        on_attempt: Callable[[Attempt], None] | None,
    ) -> tuple[EngineReply, EngineReply]:
        prompt = await self._answer(self.prefill, _prompt_of(request, _TO_PREFILL), None, on_attempt)
        handoff = {**_TO_DECODE, **self._told, **(prompt.handoff or {})}
        runs = prompt.outputs[0].tokens.versions
        decode = replace(request, prompt_logprobs=False, handoff=handoff)
        computed_by = runs[-1][1] if runs else None
        return prompt, await self._answer(self.pool, decode, on_piece, on_attempt, computed_by)

    async def _at_once(
        self,
        request: EngineRequest,
        on_piece: Callable[[EnginePiece], None] | None,
        on_attempt: Callable[[Attempt], None] | None,
    ) -> tuple[EngineReply, EngineReply]:
        transfer = {"transfer_id": uuid7()}
        decode = replace(request, prompt_logprobs=False, handoff={**_TO_DECODE, **self._told, **transfer})
        reply, prompt = await _together(
            self._answer(self.pool, decode, on_piece, on_attempt, self.weights.version),
            self._answer(self.prefill, _prompt_of(request, {**_TO_PREFILL, **transfer}), None, on_attempt),
        )
        return prompt, reply


async def _together(*asked: Any) -> list[EngineReply]:
    """All of them, or the first failure; what is not needed any more is cancelled."""
    tasks = [asyncio.ensure_future(one) for one in asked]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def _prompt_of(request: EngineRequest, handoff: Mapping[str, Any]) -> EngineRequest:
    """Asks for the prompt alone: its one token ends nothing."""
    sampling = replace(request.sampling, max_tokens=1, n=1, stop=(), logprobs=None)
    return replace(request, sampling=sampling, guide=None, ends=(), endless=True, handoff=handoff)


def _single(request: EngineRequest, n: int) -> list[EngineRequest]:
    """One for each choice, with the seeds that vLLM gives to them."""
    seed = request.sampling.seed
    return [
        replace(request, sampling=replace(request.sampling, n=1, seed=None if seed is None else seed + place))
        for place in range(n)
    ]
