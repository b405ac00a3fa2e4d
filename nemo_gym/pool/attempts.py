"""One answer out of bounded tries: bounded in number, and in time together, each of them in the call's record.

A call has one deadline. Where it came with its own, whoever set that cancels it, and what was asked for that long has
failed; a timer for each try would cost more than choosing a replica.

A replica that failed is passed over as long as another is well, without a pause; else the next try waits for as long as
it was asked to, or longer each time. What a client has seen of a reply cannot be taken back, so it is not tried again.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeVar

from ..exchange.call import Attempt
from ..exchange.errors import ErrorKind, ModelError
from .pool import Pool

T = TypeVar("T")
R = TypeVar("R")

_LONGEST_S = 30.0
_LONGEST_ASKED_S = 60.0


class Asked(Protocol):
    """What is to be answered; a Call is one."""

    @property
    def rollout_id(self) -> str | None: ...

    @property
    def attempts(self) -> list[Attempt]: ...

    @property
    def increments(self) -> Sequence[Any]:
        """What a client may have seen."""
        ...

    @property
    def until(self) -> float | None:
        """When it is cancelled, by the loop's clock; None: by nobody."""
        ...

    @property
    def late(self) -> bool:
        """Whether that is why it was cancelled."""
        ...


class Attempts:
    """Args:
    tries: at most, for one call.
    seconds: for all of them, their waits included, where the call has no deadline.
    repeatable: whether an error may be answered by another try.
    """

    def __init__(self, *, tries: int, seconds: float, repeatable: Callable[[ModelError], bool]) -> None:
        self._tries = tries
        self._seconds = seconds
        self._repeatable = repeatable

    async def answer(self, pool: Pool[T], call: Asked, ask: Callable[[T], Awaitable[R]], *, tokens: int = 0) -> R:
        """Raises the last try's ModelError.

        Args:
            tokens: of prompt and reply together, as far as they are known.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + self._seconds if call.until is None else call.until
        avoid: set[str] = set()
        error: ModelError | None = None
        for number in range(1, self._tries + 1):
            try:
                reply = await self._try(pool, call, ask, avoid, until, tokens)
            except _NoPlace as none:
                raise error or none.error from None
            except ModelError as failed:
                error = failed
            else:
                return reply
            if number == self._tries or not self._repeatable(error) or call.increments:
                break
            if not pool.another(avoid):
                avoid.clear()
                seconds = pause(number, error)
                if loop.time() + seconds >= until:
                    break
                await asyncio.sleep(seconds)
        assert error is not None
        raise error

    async def _try(
        self,
        pool: Pool[T],
        call: Asked,
        ask: Callable[[T], Awaitable[R]],
        avoid: set[str],
        until: float,
        tokens: int,
    ) -> R:
        try:
            place = await pool.take(call.rollout_id, until=until, avoid=avoid, tokens=tokens)
        except ModelError as error:
            raise _NoPlace(error) from None
        name, started = place.replica.name, time.time()

        def ended(kind: ErrorKind | None) -> None:
            call.attempts.append(Attempt(name, started, time.time(), kind))

        try:
            if call.until is None:
                async with asyncio.timeout_at(until):
                    reply = await ask(place.replica.item)
            else:
                reply = await ask(place.replica.item)
        except (ModelError, TimeoutError) as error:
            failed = error if isinstance(error, ModelError) else _too_long()
            ended(failed.kind)
            avoid.add(name)
            pool.give_back(place, failed)
            raise failed from None
        except BaseException:
            ended("timeout" if call.late else "disconnected")
            if call.late:
                pool.give_back(place, _too_long())
            else:
                pool.abandon(place)
            raise
        ended(None)
        pool.give_back(place, tokens=_tokens(reply))
        return reply


class _NoPlace(Exception):
    def __init__(self, error: ModelError) -> None:
        super().__init__()
        self.error = error


def pause(number: int, error: ModelError) -> float:
    """Seconds before the try after this one: what the replica asked for, else exponential with full jitter."""
    if error.retry_after is not None:
        return min(error.retry_after + random.uniform(0, 0.1), _LONGEST_ASKED_S)
    return random.uniform(0.05, min(_LONGEST_S, 0.5 * 2 ** (number - 1)))


def _too_long() -> ModelError:
    return ModelError(504, "timeout", "the call took longer than it may", code="timeout")


def _tokens(reply: Any) -> int | None:
    usage = reply.usage
    if usage is None or usage.prompt is None or usage.completion is None:
        return None
    return int(usage.prompt + usage.completion)
