"""The wire after a request was read: late commit, relay, keep-alives, hang-up, the last byte (A7-A9).

A stream is committed when the reply is there, or the first of it if it is relayed, so that early failures keep their
true status, and at the latest after `stream_commit_s`; from then on something with data goes out every `keepalive_s`.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import msgspec

from ..dialects.dialect import Head, fed
from ..exchange.errors import ModelError
from ..exchange.increments import Increment
from ..exchange.reply import ModelReply
from ..web.answers import write_whole
from ..web.hangup import ON_HANG_UP
from .deadlines import Deadlines
from .stored import NOT_FOUND

_FRAME_BYTES = 64 * 1024
"""Frames are gathered up to this size before they are handed to the socket."""
_SMALL = 16 * 1024
_AT_ONCE = 256 * 1024
"""Bytes that any socket takes whole, and those that one on loopback does within a round of the loop."""
_ACCEPT_POLL_S = 0.02
_ACCEPT_S = 300.0
"""A client that reads nothing for so long is gone."""

_SSE_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


Opening = Callable[[], tuple[Head, Any]]


class ClientGone(Exception):
    """The client closed its connection."""


class Delivery:
    """One response on one connection.

    Args:
        commits: when streams are opened whose reply has not come yet.
    """

    def __init__(self, scope: Any, send: Any, commits: Deadlines, *, keepalive_s: float) -> None:
        self._send = send
        # Of uvicorn's own: what the socket has not taken yet. Another server says nothing of it.
        self._transport = getattr(getattr(send, "__self__", None), "transport", None)
        self._commits = commits
        self._due = False
        """Whether the stream is to be opened now, reply or not."""
        self._keepalive_s = keepalive_s
        self.gone = False
        """Whether the client is, as far as is known: its connection tells."""
        self._news: asyncio.Future[bool] | None = None
        self._increments: Sequence[Increment] = ()
        self._relayed = 0
        """How many of the increments went to the writer."""
        self._spoke = 0.0
        self.writer: Any = None
        """The stream's writer, once it was opened before its reply was known."""
        self.head: Head | None = None
        """What was said then; the reply takes it."""
        tell = scope.get(ON_HANG_UP)
        if tell is not None:
            tell(self._hung_up)

    async def wait(
        self, generating: asyncio.Future[ModelReply], opening: Opening | None, increments: Sequence[Increment] = ()
    ) -> ModelReply:
        """The reply; `increments`, a list that grows, goes out as it does. `wake` says that there is more of either.

        `opening` says how a stream begins; None where the answer is none, so that nothing can be said before the reply.
        Raises ClientGone as soon as the client is gone, and what `generating` raises. Cancels nothing.
        """
        self._increments = increments
        if opening is not None:
            self._commits.begin(self._commit)
        try:
            while not generating.done():
                if self.gone:
                    raise ClientGone
                if opening is None:
                    await self._told(None)
                else:
                    await self._stream(opening)
        finally:
            if opening is not None:
                self._commits.end(self._commit)
        return generating.result()

    async def _stream(self, opening: Opening) -> None:
        """Says what there is to be said now, or waits for it."""
        if self._relayed < len(self._increments):
            if self.writer is None:
                await self._begin(opening)
            await self._feed()
        elif self.writer is None and self._due:
            await self._begin(opening)
        elif self.writer is None:
            await self._told(None)
        elif not await self._told(self._spoke + self._keepalive_s - time.monotonic()):
            await self._chunk(self.writer.keep_alive())

    def _commit(self) -> None:
        self._due = True
        self.wake()

    def wake(self, _: Any = None) -> None:
        """There is something new: an increment, the reply, or the client's end."""
        self._tell(True)

    def _tell(self, news: bool) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(news)

    async def _told(self, patience: float | None) -> bool:
        """Waits for news; False when there was none for so many seconds."""
        loop = asyncio.get_running_loop()
        self._news = loop.create_future()
        timer = None if patience is None else loop.call_later(max(0.0, patience), self._tell, False)
        try:
            return await self._news
        finally:
            self._news = None
            if timer is not None:
                timer.cancel()

    async def _begin(self, opening: Opening) -> None:
        """Opens the stream now."""
        self.head, self.writer = opening()
        await self._open()
        await self._chunk(self.writer.open())

    async def _feed(self) -> None:
        """All that there is of the increments, gathered."""
        frames: list[bytes] = []
        size = 0
        for increment in self._increments[self._relayed :]:
            frame = self.writer.feed(increment)
            self._relayed += 1
            frames.append(frame)
            size += len(frame)
            if size > _FRAME_BYTES:
                break
        if size:
            await self._chunk(b"".join(frames))

    def _hung_up(self) -> None:
        self.gone = True
        self.wake()

    def end(self) -> None:
        """The connection may hold this until its next request; nothing large is left in it."""
        self.writer, self._increments = None, ()

    async def whole(self, body: Any, status: int = 200, headers: list[tuple[bytes, bytes]] | None = None) -> bool:
        """One JSON body. True when the socket took it."""
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        return await self.plain(status, b"application/json", data, headers)

    async def plain(
        self, status: int, kind: bytes, data: bytes, headers: list[tuple[bytes, bytes]] | None = None
    ) -> bool:
        """A body of any kind. True when the socket took it."""
        if self.gone:
            return False
        start = [(b"content-type", kind), *(headers or [])]
        if len(data) <= _SMALL and write_whole(self._send, status, start, data):
            return True
        start.append((b"content-length", str(len(data)).encode()))
        await self._send({"type": "http.response.start", "status": status, "headers": start})
        return await self._last(data)

    async def flow(self, kind: bytes, pieces: AsyncIterator[bytes]) -> None:
        """A body of any kind, as it comes."""
        await self._send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
        async for piece in pieces:
            await self._chunk(piece)
        await self._last(b"")

    async def replay(self, writer: Any, reply: ModelReply) -> bool:
        """The reply as a stream, from where the stream stands. True when the socket took all of it."""
        if self.gone:
            return False
        frames: list[bytes] = []
        size = 0
        opened = self.writer is not None
        if opened:
            writer = self.writer
        else:
            frames.append(writer.open())
        # A relayed stream has said its text; what is left of it only `close` knows.
        for frame in () if self._relayed else fed(writer, reply):
            frames.append(frame)
            size += len(frame)
            if size > _FRAME_BYTES:
                if not opened:
                    await self._open()
                    opened = True
                await self._chunk(b"".join(frames))
                if self.gone or (self._transport is not None and self._transport.is_closing()):
                    return False  # at once: the repeat may be on its way (A16)
                frames, size = [], 0
        frames.append(writer.close(reply))
        data = b"".join(frames)
        if not opened:
            if 0 < len(data) <= _SMALL and write_whole(self._send, 200, _SSE_HEADERS, data, chunked=True):
                return True
            await self._open()
        return await self._last(data)

    async def fail(self, dialect: Any, error: ModelError, streamed: bool) -> None:
        """The dialect's error: a plain HTTP one before the commit, in the stream after it."""
        if self.gone:
            return
        if self.writer is not None:
            await self._chunk(self.writer.fail(error), last=True)
            return
        headers = []
        if error.status in (429, 503, 529):
            headers.append((b"retry-after", str(max(1, math.ceil(error.retry_after or 1))).encode()))
        await self.whole(dialect.write_error(error), wire_status(dialect.name, error), headers)

    async def _open(self) -> None:
        await self._send({"type": "http.response.start", "status": 200, "headers": _SSE_HEADERS})

    async def _chunk(self, data: bytes, last: bool = False) -> None:
        if data or last:
            self._spoke = time.monotonic()
            await self._send({"type": "http.response.body", "body": data, "more_body": not last})

    async def _last(self, data: bytes) -> bool:
        """The end of the answer. True when the socket took all of it; the answer stays open until it did (A16)."""
        waiting = 0 if self._transport is None else self._transport.get_write_buffer_size()
        if self._transport is None or (not waiting and len(data) <= _SMALL):
            await self._chunk(data, last=True)
            return not self.gone
        await self._chunk(data)
        await asyncio.sleep(0)  # uvloop writes at the end of the loop's round
        if self._transport.is_closing() and waiting + len(data) <= _AT_ONCE:
            await self._chunk(b"", last=True)
            return True  # the client had it all and closed
        patience = time.monotonic() + _ACCEPT_S
        while self._transport.get_write_buffer_size() and not self.gone:
            if time.monotonic() > patience:
                return False
            await self._told(_ACCEPT_POLL_S)
        if self.gone or self._transport.is_closing():  # it is open until this answer ends
            return False
        await self._chunk(b"", last=True)
        return True


def wire_status(dialect: str, error: ModelError) -> int:
    """A5: chat keeps the true status; elsewhere a permanent 4xx is a 400, since agents repeat the others.

    But for an id that names no response (R11), which no agent sends unawares.
    """
    permanent = 400 <= error.status < 500 and error.status not in (408, 429) and error.code != NOT_FOUND
    return 400 if permanent and dialect != "chat" else error.status
