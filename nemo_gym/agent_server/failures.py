"""Whose fault a failed rollout is, said on the wire: `{"error": {"kind", "message"}}` with a status of its own.

A job types failures by it (`nemo_gym.rollouts.outcome`); an agent that says nothing is at fault itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import aiohttp
from fastapi import Request
from fastapi.responses import JSONResponse

from ..web.peers import get_response_json

Kind = Literal["agent", "model", "verifier", "timeout", "infrastructure"]
_WORDS = 2000
_STATUS = {"agent": 500, "model": 502, "verifier": 502, "timeout": 504, "infrastructure": 503}


class RolloutFailed(Exception):
    """A rollout that came to no result."""

    def __init__(self, kind: Kind, message: str) -> None:
        super().__init__(message)
        self.kind: Kind = kind
        self.message = message if len(message) <= _WORDS else message[:_WORDS] + "…"


async def answer_failure(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RolloutFailed)
    body = {"error": {"type": "rollout_failed", "kind": error.kind, "message": error.message}}
    return JSONResponse(body, status_code=_STATUS[error.kind])


@contextmanager
def unreachable_is(kind: Kind, server_name: str) -> Iterator[None]:
    """A peer that cannot be reached, breaks off or does not answer in time fails the rollout with this kind."""
    try:
        yield
    except (TimeoutError, aiohttp.ClientError, ConnectionError) as error:
        raise RolloutFailed(kind, f"{server_name}: {type(error).__name__}: {error}") from error


async def answer_of(response: aiohttp.ClientResponse, kind: Kind, server_name: str) -> Any:
    """The JSON of a 2xx answer; anything else fails the rollout with this kind."""
    with unreachable_is(kind, server_name):
        if not response.ok:
            text = (await response.read()).decode(errors="replace")
            raise RolloutFailed(kind, f"{server_name} answered {response.status}: {text}")
        try:
            return await get_response_json(response)
        except ValueError as error:
            raise RolloutFailed(kind, f"{server_name} answered with something that is not JSON") from error
