"""What goes on at the model servers while a job runs: calls in flight, tokens a second, asked of their `/metrics`.

It is for people to look at: a server that does not answer is left out, and no rollout waits for any of this.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import aiohttp
from msgspec import Struct

from ..web.peers import ServerClient

_EVERY_S = 2.0
_ASK_S = 5.0
_IN_FLIGHT = "ng_calls_in_flight "
_TOKENS = 'ng_tokens_total{kind="completion"} '


class Seen(Struct, frozen=True):
    calls_in_flight: int
    tokens: float
    """Completion tokens since the servers started."""


class Traffic:
    """Looks every two seconds, while `watch` runs."""

    def __init__(self, client: ServerClient, model_servers: Sequence[str]) -> None:
        self._client = client
        self._servers = tuple(model_servers)
        self._last: tuple[float, float] | None = None
        self.calls_in_flight: int | None = None
        self.tokens_a_second: float | None = None

    async def watch(self) -> None:
        while self._servers:
            found = await asyncio.gather(*(self._seen_at(name) for name in self._servers))
            self._take([one for one in found if one is not None])
            await asyncio.sleep(_EVERY_S)

    def _take(self, seen: Sequence[Seen]) -> None:
        if len(seen) < len(self._servers):
            self.calls_in_flight = self.tokens_a_second = self._last = None
            return
        now, tokens = time.monotonic(), sum(one.tokens for one in seen)
        self.calls_in_flight = sum(one.calls_in_flight for one in seen)
        if self._last is not None:
            then, before = self._last
            self.tokens_a_second = max(0.0, tokens - before) / (now - then)
        self._last = now, tokens

    async def _seen_at(self, server: str) -> Seen | None:
        try:
            async with asyncio.timeout(_ASK_S):
                answer = await self._client.get(server, "/metrics")
                text = await answer.text(errors="replace")
            return read(text) if answer.ok else None
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
            return None


def read(text: str) -> Seen | None:
    """Of Prometheus' text; None where it is not a model server's of ours."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        for name in (_IN_FLIGHT, _TOKENS):
            if line.startswith(name):
                found[name] = found.get(name, 0.0) + float(line[len(name) :].split()[0])
    return Seen(int(found[_IN_FLIGHT]), found.get(_TOKENS, 0.0)) if _IN_FLIGHT in found else None
