"""A provider that speaks several dialects: each client's request goes to it in the client's own, where it can."""

from __future__ import annotations

from collections.abc import Mapping

from ..exchange.call import Call
from ..exchange.reply import ModelReply
from ..exchange.request import ModelRequest
from .backend import Backend, Capabilities


class PerDialect:
    """Args:
    backends: dialect -> the backend that speaks it.
    otherwise: the dialect for requests of any other.
    """

    def __init__(self, backends: Mapping[str, Backend], otherwise: str) -> None:
        self._backends = backends
        self._otherwise = backends[otherwise]

    def _of(self, request: ModelRequest) -> Backend:
        return (
            self._otherwise if request.origin is None else self._backends.get(request.origin.dialect, self._otherwise)
        )

    async def generate(self, request: ModelRequest, call: Call) -> ModelReply:
        return await self._of(request).generate(request, call)

    async def probe(self) -> Capabilities:
        return await self._otherwise.probe()

    async def count(self, request: ModelRequest) -> int:
        return await self._of(request).count(request)

    async def close(self) -> None:
        for backend in self._backends.values():
            await backend.close()
