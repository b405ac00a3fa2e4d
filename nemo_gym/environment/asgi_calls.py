"""Calls of an app from within its own process, and its answers held whole, so that something can be added to them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from msgspec import Struct
from msgspec.structs import replace
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..web.session import GIVEN_SESSION

_Headers = tuple[tuple[bytes, bytes], ...]


class Answer(Struct, frozen=True):
    status: int
    body: bytes
    headers: _Headers = ()

    def json(self) -> Any:
        """What the body says; None where it is no JSON."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None

    def with_json(self, value: Any) -> Answer:
        body = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
        return replace(self, body=body, headers=_sized(self.headers, body))

    async def send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status, "headers": list(self.headers)})
        await send({"type": "http.response.body", "body": self.body})


async def call(app: ASGIApp, path: str, arguments: Any, session: str) -> Answer:
    """POST of JSON to one of the app's routes, within a session."""
    body = json.dumps(arguments).encode()
    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": _sized(((b"content-type", b"application/json"), (b"host", b"localhost")), body),
        "client": ("127.0.0.1", 0),
        "server": ("localhost", 80),
        "state": {},
        GIVEN_SESSION: session,
    }
    return await _held(app, scope, body)


async def posted(
    app: ASGIApp, scope: Scope, receive: Receive, change: Callable[[Any], Any] | None = None
) -> tuple[Any, Answer]:
    """The JSON of a request that comes in, and the app's answer to it.

    Args:
        change: makes another body of it, before the app sees it.
    """
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if message["type"] != "http.request" or not message.get("more_body"):
            break
    asked = Answer(200, body).json()
    if change is not None and asked is not None:
        body = Answer(200, body).with_json(change(asked)).body
        scope = {**scope, "headers": list(_sized(tuple(scope["headers"]), body))}
    return asked, await _held(app, scope, body)


async def _held(app: ASGIApp, scope: Scope, body: bytes) -> Answer:
    status, headers, pieces = 500, (), list[bytes]()

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        nonlocal status, headers
        if message["type"] == "http.response.start":
            status, headers = message["status"], tuple(map(tuple, message.get("headers", ())))  # type: ignore[assignment]
        elif message["type"] == "http.response.body":
            pieces.append(message.get("body", b""))

    await app(scope, receive, send)
    return Answer(status, b"".join(pieces), headers)


def _sized(headers: _Headers, body: bytes) -> _Headers:
    return (*(pair for pair in headers if pair[0].lower() != b"content-length"), (b"content-length", b"%d" % len(body)))
