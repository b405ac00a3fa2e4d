"""HTTP/1.1 as uvicorn reads it, with a bound on the head; requests of another worker's rollouts are handed over, and
whoever works for a caller that is gone is told.

A request is handed over before anything of it is answered, as soon as its head is whole: the socket, and all bytes
since the request began, go to the worker that the rollout belongs to.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from . import workers
from .answers import Unchunked
from .correlation import session_id, split_rollout
from .hangup import ON_HANG_UP

MAX_HEAD = 1 << 20
"""Bytes of a request's line and headers. A server may allow less, and then refuses in its own words."""
_DRAIN_S = 0.02
_NOBODY = -1
_UPGRADE = re.compile(rb"\r\nupgrade[ \t]*:", re.IGNORECASE)


class HttpProtocol(HttpToolsProtocol):
    def __init__(self, *args: Any, begins_with: bytes = b"", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._workers = workers.current()
        self._begins_with = begins_with
        self._in_head = True
        """Also between two requests."""
        self._in_message = False
        self._head = 0
        """Bytes that came while in a head."""
        self._raw: list[bytes] | None = None
        """What came since this request began; None when it began amid other bytes, or is ours."""
        self._owner: int | None = None
        """The other worker that this request is for; nothing of it is answered here."""
        self._hung_up: Callable[[], None] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self._begins_with:
            data, self._begins_with = self._begins_with, b""
            self.data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._hung_up is not None:
            self._hung_up()

    def _tell(self, when_hung_up: Callable[[], None]) -> None:
        """Of one request at a time: those that were sent ahead begin when the one before is answered."""
        self._hung_up = when_hung_up

    def data_received(self, data: bytes) -> None:
        if self._owner is not None:
            if self._raw is not None:
                self._raw.append(data)  # read before the hand-over could stop that
            return
        if self._in_head:
            self._head += len(data)
            data = _staying(data)
        if self._workers is not None:
            self._keep(data)
        super().data_received(data)
        if self._owner is not None:
            self._leave()
        elif self._in_head and self._head > MAX_HEAD:
            self._refuse(b"431 Request Header Fields Too Large", b"the head of the request is too large")

    def _keep(self, data: bytes) -> None:
        if not self._in_message:
            self._raw = [data]
        elif self._in_head and self._raw is not None:
            self._raw.append(data)
        else:
            self._raw = None

    def on_message_begin(self) -> None:
        self._in_message = True
        super().on_message_begin()
        self.scope[ON_HANG_UP] = self._tell  # type: ignore[literal-required]

    def on_headers_complete(self) -> None:
        if self._owner is not None:
            return
        self._in_head, self._head = False, 0
        if self._workers is not None:
            self._owner = self._belongs_to(self._workers)
            if self._owner is not None:
                return
            self._raw = None
        app = self.app
        if self.parser.get_http_version() == "1.0":
            self.app = Unchunked(app)
        super().on_headers_complete()
        self.app = app

    def on_body(self, body: bytes) -> None:
        if self._owner is None:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self._owner is None:
            self._in_head, self._in_message, self._raw = True, False, None
            super().on_message_complete()

    # ---- of another worker

    def _belongs_to(self, among: workers.Workers) -> int | None:
        """The other worker that this request is for; None when it is ours."""
        try:
            rollout_id, _ = split_rollout(self.url.partition(b"?")[0].decode("ascii", "replace"), self.headers)
        except ValueError:
            return None
        belongs = rollout_id or session_id(self.headers)
        if belongs is None:
            return None
        owner = among.owner(belongs)
        return None if owner == among.index else owner

    def _leave(self) -> None:
        """Nothing more is read here."""
        busy = self.cycle is not None and not self.cycle.response_complete
        if busy:  # pipelined: the client finds the connection closed after the answer, and asks again
            self._raw = None
            self.cycle.keep_alive = False
        elif self._raw is None:
            self._refuse(b"503 Service Unavailable", b"this request has to come over a new connection")
        else:
            self.transport.pause_reading()
            self._hand_over()

    def _hand_over(self) -> None:
        if self.transport.is_closing():
            return
        if self.transport.get_write_buffer_size():  # the end of the answer before is not out yet
            self.loop.call_later(_DRAIN_S, self._hand_over)
            return
        assert self._workers is not None and self._owner is not None and self._raw is not None
        fd = self.transport.get_extra_info("socket").fileno()
        self._workers.hand_over(self._owner, fd, b"".join(self._raw))
        self.transport.abort()

    def _refuse(self, status: bytes, words: bytes) -> None:
        self._owner, self._raw = _NOBODY, None
        body = b'{"error": {"message": "%s", "type": "invalid_request_error", "code": null, "param": null}}' % words
        head = b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n" % (status, len(body))
        self.transport.write(head + b"retry-after: 1\r\nconnection: close\r\n\r\n" + body)
        self.transport.close()


def _staying(data: bytes) -> bytes:
    """A head without the wish to change the protocol: with it the parser would take a body for the other protocol's.

    Java's own client has it on every request (`Upgrade: h2c`), and goes on in HTTP/1.1 where a server does.
    """
    end = data.find(b"\r\n\r\n")
    end = end if end >= 0 else len(data)
    found = _UPGRADE.search(data, 0, end) if data.find(b"grade", 0, end) >= 0 else None
    return data if found is None else data[: found.start()] + b"\r\nx-upgrade:" + data[found.end() :]
