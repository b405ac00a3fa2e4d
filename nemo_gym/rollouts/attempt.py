"""One rollout: asked of the agent, held to its deadline, and sealed at every model server whatever came of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import aiohttp

from ..web.correlation import rollout_path
from ..web.peers import ServerClient, get_response_json
from .outcome import INCOMPLETE, Failure, Outcome, Ticket, from_status, shortened, unfit

_SEAL_TIMEOUT_S = 30.0
_CAPTURE_OFF = 400


class Attempt:
    """Makes rollouts of tickets.

    Args:
        model_servers: where each rollout is sealed.
        timeout_s: the deadline of one rollout.
    """

    def __init__(self, client: ServerClient, model_servers: Sequence[str], timeout_s: float) -> None:
        self._client = client
        self._model_servers = tuple(model_servers)
        self._timeout_s = timeout_s

    async def make(self, ticket: Ticket) -> Outcome:
        """The outcome, always; cancelled only after the rollout is sealed as cancelled."""
        started, clock = time.time(), time.monotonic()
        result: dict[str, Any] | None = None
        failure: Failure | None = None
        cancelled: asyncio.CancelledError | None = None
        try:
            async with asyncio.timeout(self._timeout_s):
                result = await self._run(ticket)
        except _Failed as error:
            failure = error.failure
        except aiohttp.ClientError as error:  # before TimeoutError, which aiohttp's own timeouts are too
            failure = _unanswered(ticket, error)
        except TimeoutError:
            failure = Failure("timeout", f"not finished within {self._timeout_s:g} s")
        except asyncio.CancelledError as error:
            failure, cancelled = Failure("cancelled", "the job was stopped"), error
        except (OSError, ValueError) as error:
            failure = _unanswered(ticket, error)
        seconds = time.monotonic() - clock
        sealing = asyncio.ensure_future(self._seal(ticket.rollout_id, INCOMPLETE[failure.kind] if failure else None))
        calls, incomplete = await asyncio.shield(sealing)
        if cancelled is not None:
            raise cancelled
        return Outcome(ticket, started, seconds, result, failure, calls, incomplete)

    async def _run(self, ticket: Ticket) -> dict[str, Any]:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)  # the deadline around this ends it
        response = await self._client.post(ticket.agent, "/run", json=ticket.row, timeout=timeout)
        body: Any = None
        try:
            body = await get_response_json(response)
        except ValueError:
            if response.ok:
                raise _Failed(Failure("agent", "its answer is not JSON", response.status)) from None
        if not response.ok:
            raise _Failed(from_status(response.status, body, (await response.text(errors="replace"))))
        if (failure := unfit(body, response.status)) is not None:
            raise _Failed(failure)
        return body

    async def _seal(self, rollout_id: str, incomplete: str | None) -> tuple[int | None, str | None]:
        """How many calls the model servers recorded, and why the record is not whole."""
        seals = await asyncio.gather(*(self._seal_at(name, rollout_id, incomplete) for name in self._model_servers))
        known = [seal for seal in seals if seal is not None]
        calls = sum(count for count, _ in known) if known else None
        return calls, next((reason for _, reason in known if reason), incomplete)

    async def _seal_at(self, server: str, rollout_id: str, incomplete: str | None) -> tuple[int, str | None] | None:
        """None where capture is off."""
        try:
            async with asyncio.timeout(_SEAL_TIMEOUT_S):
                response = await self._client.post(
                    server, rollout_path(rollout_id, "/seal"), json={"incomplete": incomplete}
                )
                if response.status == _CAPTURE_OFF:
                    await response.read()
                    return None
                body = await get_response_json(response)
            if response.ok and (seal := _seal_of(body)) is not None:
                return seal
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
            pass
        return 0, "unsealed"


def _seal_of(body: Any) -> tuple[int, str | None] | None:
    match body:
        case {"call_ids": list(ids)} if isinstance(reason := body.get("incomplete"), str | None):
            return len(ids), reason
    return None


class _Failed(Exception):
    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def _unanswered(ticket: Ticket, error: Exception) -> Failure:
    words = f"the agent server {ticket.agent!r} did not answer: {type(error).__name__}: {error}"
    return Failure("infrastructure", shortened(words))
