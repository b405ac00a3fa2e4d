"""An answer that is there whole goes out in one write: its head and its body together.

uvicorn writes the head when it is told of it and the body when that comes: two calls of the system, and a client that
is woken twice for one answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

Headers = Iterable[tuple[bytes, bytes]]


def write_whole(send: Any, status: int, headers: Headers, body: bytes, *, chunked: bool = False) -> bool:
    """Writes the answer of an ASGI call whose `send` this is; False where it has to go by `send`.

    Args:
        headers: without the body's length.
        chunked: as a stream whose length is not told.
    """
    cycle = getattr(send, "__self__", None)
    if type(cycle) is not RequestResponseCycle or cycle.response_started or cycle.disconnected:
        return False
    if cycle.flow.write_paused or cycle.scope["method"] == "HEAD":
        return False
    cycle.response_started = cycle.response_complete = True
    cycle.waiting_for_100_continue = False
    pieces = [STATUS_LINE[status]]
    for header in (*cycle.default_headers, *headers):
        pieces.append(b"%b: %b\r\n" % header)
    if not cycle.keep_alive:
        pieces.append(b"connection: close\r\n")
    if chunked:
        pieces.append(b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
    else:
        pieces.append(b"content-length: %d\r\n\r\n%b" % (len(body), body))
    cycle.transport.write(b"".join(pieces))
    cycle.message_event.set()
    if not cycle.keep_alive:
        cycle.transport.close()
    cycle.on_response()
    return True


class Unchunked:
    """An ASGI application as a client of HTTP/1.0 has to be answered: it knows no chunks, and the end of the connection
    ends what it is sent. uvicorn writes chunks to any client whose answer has no length.
    """

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._app(scope, receive, _Plainly(send.__self__).send)


class _Plainly:
    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self.transport = cycle.transport
        """Where a sender may ask what the socket has not taken yet."""

    async def send(self, message: Any) -> None:
        self._cycle.chunked_encoding = False
        self._cycle.expected_content_length = len(message.get("body", b""))  # so much is right at any time
        await self._cycle.send(message)
