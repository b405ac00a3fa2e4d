"""What becomes of a call whose client is gone (A9, A16).

Outside a rollout the work ends at once. In one a repeat may come for it within `repeat_grace_s`, and then its reply is
made and recorded as for a client that stayed. Either way the call has its one record, with what the backend had said.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from ..exchange.errors import ModelError
from ..exchange.increments import fold
from ..exchange.reply import Choice, ModelReply
from .reuse import Sample

if TYPE_CHECKING:
    from .answer import Answer

log = logging.getLogger("nemo_gym.model_server")


class HangUp:
    """Of one answer, from when its client is gone."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._sample: Sample | None = None
        """What a repeat may take over."""

    def expire(self) -> None:
        """The rollout has ended: no repeat will come."""
        if self._sample is not None:
            self._sample.expire()

    async def run(self) -> None:
        answer = self._answer
        assert answer.call is not None
        if answer.earlier is not None:
            answer.app.reuse.leave(answer.earlier)
            await self._recorded(None)
        elif answer.rollout_id is None or answer.abandoned or not answer.app.server.config.repeat_grace_s:
            await self._recorded(await self._partial())
        else:
            self._sample = Sample(answer.call, answer.dialect.name, answer.rollout_id)
            await self._linger(self._sample)

    async def _linger(self, sample: Sample) -> None:
        answer = self._answer
        assert answer.generating is not None and answer.request is not None
        answer.app.reuse.leave(sample)
        try:
            if not await sample.claimed(answer.generating, answer.app.server.config.repeat_grace_s):
                await self._recorded(await self._partial())
                raise _gone()
            reply = answer.bound(answer.generating.result(), answer.request)
            await answer.commit("answered", reply=reply)
        except Exception as error:
            failure = answer.as_failure(error)
            if failure.kind != "disconnected":
                await answer.failed(failure)
            sample.failed(failure)
        except asyncio.CancelledError:
            await self._recorded(await self._partial())
            raise
        else:
            answer.remember(reply)
            answer.count("answered", reply)
            answer.receipt(False)
            sample.made(reply)
        finally:
            if not sample.outcome.done():
                sample.failed(ModelError(503, "overloaded", "the server is shutting down", retry_after=5.0))
            if not sample.made_well:
                answer.app.reuse.drop(sample)

    async def _partial(self) -> ModelReply | None:
        """What the backend had produced, which may be all of it."""
        answer = self._answer
        generating = answer.generating
        assert answer.call is not None and answer.request is not None and generating is not None
        if generating.done() and not generating.cancelled() and generating.exception() is None:
            return answer.bound(generating.result(), answer.request)
        await answer.stop_generating()
        said = sorted(fold(answer.call.increments).items())
        return answer.own_reply(tuple(Choice(index, parts, "cancelled") for index, parts in said)) if said else None

    async def _recorded(self, partial: ModelReply | None) -> None:
        """Nothing more is written."""
        answer, error = self._answer, _gone()
        try:
            await answer.commit("disconnected", reply=partial, error=error)
        except ModelError:
            log.warning("a hang-up could not be recorded", extra=answer.ids())
        answer.remember(None)
        answer.count("disconnected", error=error)


def _gone() -> ModelError:
    return ModelError(499, "disconnected", "the client closed the connection")
