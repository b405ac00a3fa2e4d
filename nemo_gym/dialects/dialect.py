"""What every dialect has: a reader and a writer for requests, replies, errors and streams.

Pure functions; no I/O and no clock. The law: for every reply, the accumulated `replay(stream_writer(request, head),
reply)` is `write_reply(reply, request)`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from ..exchange.errors import ModelError
from ..exchange.increments import Increment, unfold
from ..exchange.parts import Origin, Other, Part, Reasoning, Refusal, Text, ToolCall, joined, merged
from ..exchange.reply import ModelReply, Usage
from ..exchange.request import ModelRequest


class Head(Struct, frozen=True):
    """What the first frame already says; after an early commit the reply takes these, never the reverse."""

    id: str
    model: str
    created: int
    origin: Origin | None = None
    """The reply's, when it is there already: what its dialect says in every frame beside these."""
    choices: int = 1
    """How many the reply has; at least one is expected of a reply that is not there yet."""
    usage: Usage = Usage()
    """The reply's, when it is there already."""

    @classmethod
    def of(cls, reply: ModelReply) -> Head:
        return cls(reply.id, reply.model, reply.created, reply.origin, len(reply.choices), reply.usage)


class StreamWriter(Protocol):
    """One stream in one dialect. Bytes out are whole SSE frames. open, (feed | keep_alive)*, close | fail."""

    def open(self) -> bytes: ...

    def feed(self, increment: Increment) -> bytes: ...

    def keep_alive(self) -> bytes: ...

    def close(self, reply: ModelReply) -> bytes:
        """What was not fed yet and the terminal events; only after the record is durable (A8)."""
        ...

    def fail(self, error: ModelError) -> bytes: ...


class StreamReader(Protocol):
    def feed(self, data: bytes) -> list[Increment]: ...

    def finish(self) -> ModelReply:
        """Raises ModelError when the stream ended before its terminal event."""
        ...


class Dialect(Protocol):
    """A package whose `__init__` has these names: `chat`, `responses`, `messages`."""

    name: str

    def read_request(self, body: Any) -> ModelRequest: ...

    def write_request(self, request: ModelRequest) -> dict[str, Any]: ...

    def read_reply(self, body: Mapping[str, Any]) -> ModelReply: ...

    def write_reply(self, reply: ModelReply, request: ModelRequest) -> dict[str, Any]: ...

    def read_error(self, status: int, headers: Mapping[str, str], body: bytes) -> ModelError: ...

    def write_error(self, error: ModelError) -> dict[str, Any]: ...

    def stream_writer(self, request: ModelRequest, head: Head) -> StreamWriter: ...

    def stream_reader(self) -> StreamReader: ...


def replay(writer: StreamWriter, reply: ModelReply) -> Iterator[bytes]:
    """A finished reply as a stream; written once, for every dialect."""
    yield writer.open()
    yield from fed(writer, reply)
    yield writer.close(reply)


def fed(writer: StreamWriter, reply: ModelReply) -> Iterator[bytes]:
    """What `feed` makes of all increments of a finished reply; a writer may have a quicker way to the same bytes."""
    at_once = getattr(writer, "feed_reply", None)
    if at_once is not None:
        yield from at_once(reply)
        return
    for increment in unfold(reply):
        yield writer.feed(increment)


_TEXTS = (Text, Reasoning, Refusal)
_HELD = (ToolCall, Other)


class Progress:
    """How much of a choice a writer has let out, so that `close` can write exactly the rest.

    Text and reasoning flow as they come. From the first tool call on everything waits for `close`: an agent runs a
    tool as soon as it sees the call closed, and the reply in hand, not the increment, says what the call is.
    """

    def __init__(self) -> None:
        self.count = 0
        """Parts begun."""
        self.before: Part | None = None
        """The part before the last one, whole."""
        self._last: Part | None = None
        self._texts: list[str] = []
        self._held = False

    def flows(self, piece: Part) -> bool:
        if isinstance(piece, _HELD):
            self._held = True
        return not self._held

    def add(self, piece: Part) -> bool:
        """Notes a piece that was let out; True when it begins a new part."""
        last = self._last
        if type(piece) is Text and type(last) is Text and piece.id in ("", last.id):
            self._texts.append(piece.text)  # what `joined` says, without building the whole each time
            return False
        whole = None if last is None else joined(last, piece)
        if whole is not None:
            self._texts.append(piece.text)  # type: ignore[union-attr]  # only parts with a text join
            self._last = replace(whole, text="")
            return False
        self.before, self.count = self.part(), self.count + 1
        self._texts = [piece.text] if isinstance(piece, _TEXTS) else []
        self._last = replace(piece, text="") if isinstance(piece, _TEXTS) else piece
        return True

    def part(self) -> Part | None:
        """The last part, as far as it is known."""
        return replace(self._last, text="".join(self._texts)) if isinstance(self._last, _TEXTS) else self._last

    def rest(self, parts: tuple[Part, ...]) -> Iterator[Part]:
        """What remains of the finished parts. Where they contradict what went out, what went out stands."""
        last, seen = self.count - 1, self.part()
        for index, part in enumerate(merged(parts)):
            if index > last:
                yield part
            elif index == last:
                yield from _tail(part, seen)


def _tail(part: Part, seen: Part | None) -> Iterator[Part]:
    if not isinstance(part, _TEXTS) or not isinstance(seen, _TEXTS) or type(seen) is not type(part):
        return
    if not part.text.startswith(seen.text):
        return
    left = part.text[len(seen.text) :]
    if left or getattr(part, "payload", None) != getattr(seen, "payload", None):
        yield replace(part, text=left)
