"""HTTP to the endpoints of one provider: the pooled client, its headers and limits, and what its failures mean.

Only what the endpoint itself reported is passed on, without the key that it may quote; a transport failure gives its
type.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import aiohttp
from aiohttp.payload import BytesPayload

from ..exchange.errors import ModelError
from ..web.client import session
from .failures import is_overflow
from .provider import Provider

Body = Callable[[], bytes | BytesPayload]
"""Made for each try, so that nothing holds the bytes while the endpoint generates."""

_BETAS = "anthropic-beta"
_CONNECT_S = 10.0
_SHORTEST_SECRET = 8


class Link:
    """Args:
    dialect: the dialect package that is spoken.
    key: goes where the dialect or the provider puts it; None sends none.
    seconds: for one request that is not given its own; None leaves it to whoever waits for it.
    """

    def __init__(self, dialect: Any, provider: Provider, key: str | None, seconds: float | None) -> None:
        self.dialect = dialect
        self.provider = provider
        self.path: str = provider.path(dialect.name)
        """Below a base URL, of a generation."""
        self._headers = provider.fixed_headers(dialect.name, key)
        self._key = key or ""
        self._limits = aiohttp.ClientTimeout(total=seconds, sock_connect=min(_CONNECT_S, seconds or _CONNECT_S))

    async def send(
        self,
        method: str,
        url: str,
        body: bytes | Body | None = None,
        *,
        seconds: float | None = None,
        betas: str = "",
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Its status, headers and body; a transport failure as a ModelError that gives its type.

        Args:
            betas: of the client; beside those that this provider always gets. Other dialects have none.
        """
        try:
            response = await self._request(method, url, body, seconds, betas)
            return response.status, response.headers, await response.read()  # which ends it, well or not
        except (TimeoutError, aiohttp.ClientError) as error:
            raise _broken(error) from None

    @contextlib.asynccontextmanager
    async def response(
        self,
        method: str,
        url: str,
        body: bytes | Body | None = None,
        *,
        seconds: float | None = None,
        betas: str = "",
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """As `send`, with the body still to come."""
        try:
            async with self._request(method, url, body, seconds, betas) as response:
                yield response
        except (TimeoutError, aiohttp.ClientError) as error:
            raise _broken(error) from None

    def _request(self, method: str, url: str, body: bytes | Body | None, seconds: float | None, betas: str) -> Any:
        """To be awaited, or entered."""
        headers = self._headers
        if betas and self.dialect.name == "messages":
            headers = headers | {_BETAS: ",".join(filter(None, (headers.get(_BETAS), betas)))}
        if self.provider.token is not None:
            headers = headers | {"authorization": f"Bearer {self._token()}"}
        return session().request(
            method,
            url,
            params=self.provider.query or None,
            data=body() if callable(body) else body,
            headers=headers,
            timeout=self._limits if seconds is None else aiohttp.ClientTimeout(total=seconds),
        )

    def _token(self) -> str:
        assert self.provider.token is not None
        try:
            return self.provider.token()
        except (OSError, ValueError) as error:
            raise ModelError(502, "auth", f"the backend's token cannot be read ({type(error).__name__})") from None

    def failure(self, status: int, headers: Mapping[str, str], data: bytes) -> ModelError:
        # An answer below 400 that is no reply is no status for a client: some allow no body at all.
        error: ModelError = self.dialect.read_error(status if status >= 400 else 502, headers, data)
        for secret in self._secrets():
            error.message = error.message.replace(secret, "[redacted]")
        if is_overflow(status, error.code, error.message):
            error.code = "context_length_exceeded"
        return error

    def _secrets(self) -> list[str]:
        """A provider may quote the key that it refuses."""
        token = ""
        if self.provider.token is not None:
            with contextlib.suppress(ModelError):
                token = self._token()
        return [secret for secret in (self._key, token) if len(secret) >= _SHORTEST_SECRET]


def _broken(error: TimeoutError | aiohttp.ClientError) -> ModelError:
    if isinstance(error, TimeoutError):
        return ModelError(504, "timeout", "the backend did not answer in time")
    kind = type(error).__name__
    if isinstance(error, aiohttp.ClientConnectorError):
        return ModelError(503, "unreachable", f"the backend cannot be reached ({kind})", retry_after=2.0)
    return ModelError(502, "backend", f"the connection to the backend broke ({kind})")
