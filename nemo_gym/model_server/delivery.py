"""The wire after a request was read: late commit, keep-alives, hang-up, the last byte (A7-A9).

A stream is committed when the reply is there, so that early failures keep their true status, and
at the latest after `stream_commit_s`; from then on something with data goes out every `keepalive_s`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

import msgspec

from ..dialects.dialect import Head
from ..exchange.errors import ModelError
from ..exchange.increments import unfold
from ..exchange.reply import ModelReply

_FRAME_BYTES = 64 * 1024
"""Frames are gathered up to this size before they are handed to the socket."""

_SSE_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


Opening = Callable[[], "tuple[Head, Any] | None"]


class ClientGone(Exception):
    """The client closed its connection."""


class Delivery:
    """One response on one connection."""

    def __init__(self, receive: Any, send: Any, *, commit_s: float, keepalive_s: float) -> None:
        self._receive = receive
        self._send = send
        self._commit_s = commit_s
        self._keepalive_s = keepalive_s
        self._hang_up: asyncio.Task[None] | None = None
        self.writer: Any = None
        """The stream's writer, once it was opened before its reply was known."""
        self.head: Head | None = None
        """What was said then; the reply takes it."""

    async def wait(self, generating: asyncio.Future[ModelReply], opening: Opening) -> ModelReply:
        """The reply. Raises ClientGone as soon as the client is gone, and what `generating` raises."""
        self._hang_up = asyncio.ensure_future(self._watch())
        patience: float | None = self._commit_s
        either: set[asyncio.Future[Any]] = {generating, self._hang_up}
        while True:
            done, _ = await asyncio.wait(either, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            if generating in done:
                return generating.result()
            if self._hang_up in done:
                raise ClientGone
            if self.writer is not None:
                await self._chunk(self.writer.keep_alive())
                continue
            opened = opening()
            if opened is None:  # not streamed: nothing can be said before the reply
                patience = None
                continue
            self.head, self.writer = opened
            patience = self._keepalive_s
            await self._open()
            await self._chunk(self.writer.open())

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass

    def end(self) -> None:
        """The watch for a hang-up ends with the call."""
        if self._hang_up is not None and not self._hang_up.done():
            self._hang_up.cancel()

    async def whole(self, body: Any, status: int = 200, headers: list[tuple[bytes, bytes]] | None = None) -> bool:
        """One JSON body. True when the socket took it."""
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        return await self.plain(status, b"application/json", data, headers)

    async def plain(
        self, status: int, kind: bytes, data: bytes, headers: list[tuple[bytes, bytes]] | None = None
    ) -> bool:
        """A body of any kind. True when the socket took it."""
        if self._gone:
            return False
        start = [(b"content-type", kind), (b"content-length", str(len(data)).encode()), *(headers or [])]
        await self._send({"type": "http.response.start", "status": status, "headers": start})
        await self._send({"type": "http.response.body", "body": data})
        return not self._gone

    async def replay(self, writer: Any, reply: ModelReply) -> bool:
        """The reply as a stream, from where the stream stands. True when the socket took all of it."""
        if self._gone:
            return False
        frames: list[bytes] = []
        size = 0
        if self.writer is None:
            await self._open()
            frames.append(writer.open())
        else:
            writer = self.writer
        for increment in unfold(reply):
            frame = writer.feed(increment)
            frames.append(frame)
            size += len(frame)
            if size > _FRAME_BYTES:
                await self._chunk(b"".join(frames))
                frames, size = [], 0
        frames.append(writer.close(reply))
        await self._chunk(b"".join(frames), last=True)
        return not self._gone

    async def fail(self, dialect: Any, error: ModelError, streamed: bool) -> None:
        """The dialect's error: a plain HTTP one before the commit, in the stream after it."""
        if self._gone:
            return
        if self.writer is not None:
            await self._chunk(self.writer.fail(error), last=True)
            return
        headers = []
        if error.status in (429, 503):
            headers.append((b"retry-after", str(max(1, math.ceil(error.retry_after or 1))).encode()))
        await self.whole(dialect.write_error(error), wire_status(dialect.name, error), headers)

    @property
    def _gone(self) -> bool:
        return self._hang_up is not None and self._hang_up.done() and not self._hang_up.cancelled()

    async def _open(self) -> None:
        await self._send({"type": "http.response.start", "status": 200, "headers": _SSE_HEADERS})

    async def _chunk(self, data: bytes, last: bool = False) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": not last})


def wire_status(dialect: str, error: ModelError) -> int:
    """A5: chat keeps the true status; elsewhere a permanent 4xx is a 400, since agents repeat the others."""
    permanent = 400 <= error.status < 500 and error.status not in (408, 413, 429)
    return 400 if permanent and dialect != "chat" else error.status
