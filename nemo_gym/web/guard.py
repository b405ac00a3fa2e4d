"""No open port without a key: beyond one machine a server takes the calls of its own run, and no other.

A model server has keys of its own for that; every other server is put behind this. Whether it is alive may be asked by
anyone.
"""

from __future__ import annotations

from collections.abc import Iterable
from hmac import compare_digest
from typing import Any

from .correlation import Headers, api_key

ALIVE = frozenset({"/health", "/healthz", "/livez", "/readyz", "/ready"})
_BODY = b'{"error": "this server takes calls of its own run alone, and they have a key"}'


def admits(headers: Headers, keys: Iterable[str]) -> bool:
    """Whether a caller gives one of the keys, as a bearer or in `x-api-key`."""
    given = (api_key(headers) or "").encode()
    return any(compare_digest(given, key.encode()) for key in keys)


class Guard:
    """An ASGI app behind keys.

    Args:
        keys: any of them will do.
    """

    def __init__(self, app: Any, keys: tuple[str, ...]) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"] in ALIVE or admits(scope["headers"], self._keys):
            await self._app(scope, receive, send)
            return
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(_BODY)).encode()),
            (b"connection", b"close"),  # what it would have sent is not read
        ]
        await send({"type": "http.response.start", "status": 401, "headers": headers})
        await send({"type": "http.response.body", "body": _BODY})
