"""The way to the server whose engines answer here too (`deployment:`): what fails on it is told in a client's terms."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp

from nemo_gym.engines.remote import IN_PIECES, PATH
from nemo_gym.exchange.errors import ModelError
from nemo_gym.web.peers import ServerClient


class Sharing:
    """Args:
    servers: of the run.
    name: of the one that has the engines.
    admin_key: of the run.
    seconds: that one answer may take.
    """

    def __init__(self, servers: ServerClient, name: str, admin_key: str, seconds: float) -> None:
        self._servers = servers
        self._name = name
        self._headers = {"authorization": f"Bearer {admin_key}"} if admin_key else {}
        self._timeout = aiohttp.ClientTimeout(total=seconds)

    async def send(self, method: str, data: bytes | None) -> bytes:
        """The whole answer. Raises ModelError."""
        async with self._answered(method, data, self._headers) as response:
            return await response.read()

    async def flow(self, data: bytes) -> AsyncIterator[bytes]:
        """An answer in pieces, as they come. Raises ModelError."""
        async with self._answered("POST", data, self._headers | {"accept": IN_PIECES}) as response:
            async for piece in response.content.iter_any():
                yield piece

    @contextlib.asynccontextmanager
    async def _answered(
        self, method: str, data: bytes | None, headers: dict[str, str]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        try:
            response = await self._servers.request(
                self._name, PATH, method, data=data, headers=headers, timeout=self._timeout
            )
            async with response:
                if response.status != 200:
                    kind: Any = "overloaded" if response.status == 503 else "backend"
                    raise ModelError(response.status, kind, _told(await response.read()))
                yield response
        except TimeoutError:
            raise ModelError(504, "timeout", "the server that has the engines did not answer in time") from None
        except aiohttp.ClientError as error:
            words = f"the server that has the engines cannot be reached ({type(error).__name__})"
            raise ModelError(503, "unreachable", words, retry_after=2.0) from None


def _told(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return "the server that has the engines gave no answer of theirs"
