"""Server-sent events: frames out, and bytes in however they were cut."""

from __future__ import annotations

import re
from typing import Any

from msgspec import Struct

from . import codec

DONE = b"data: [DONE]\n\n"
_LINE = re.compile(rb"\r\n|\n|\r")
_LIMIT = 64 * 1024 * 1024


def frame(data: bytes, event: str | None = None) -> bytes:
    """One whole frame; `data` is JSON and so has no line break."""
    if event is None:
        return b"data: " + data + b"\n\n"
    return b"event: " + event.encode() + b"\ndata: " + data + b"\n\n"


HOLE = "\x00hole\x00"
_HOLE = codec.encode(HOLE)


class Template:
    """A frame of which only the values in its holes change: a delta costs one small string and not a whole object."""

    def __init__(self, body: dict[str, Any], event: str | None = None) -> None:
        self._first, *self._rest = frame(codec.encode(body), event).split(_HOLE)

    def fill(self, *values: Any) -> bytes:
        out = self._first
        for value, piece in zip(values, self._rest, strict=True):
            out += codec.encode(value) + piece
        return out

    def each(self, texts: list[str]) -> bytes:
        """Frames of a template whose one hole is a text: one a text."""
        first, last = (piece.decode() for piece in (self._first, *self._rest))
        return "".join([f"{first}{text}{last}" for text in codec.encode_lines(texts)]).encode()

    def run(self, start: int, texts: list[str]) -> bytes:
        """Frames of a template whose two holes are a number, counted from `start`, and a text: one a text."""
        first, middle, last = (piece.decode() for piece in (self._first, *self._rest))
        said = codec.encode_lines(texts)
        return "".join([f"{first}{number}{middle}{text}{last}" for number, text in enumerate(said, start)]).encode()


class Event(Struct, frozen=True):
    data: str
    event: str = "message"


class Decoder:
    """Bytes of a stream -> events; comments and unknown fields are passed over."""

    def __init__(self) -> None:
        self._buffer = b""
        self._event = ""
        self._data: list[bytes] = []
        self._first = True

    def feed(self, data: bytes) -> list[Event]:
        """Raises ValueError when one line exceeds what any event may hold."""
        self._buffer += data
        if self._first and self._buffer:
            if self._buffer.startswith(b"\xef\xbb\xbf"):
                self._buffer = self._buffer[3:]
            elif b"\xef\xbb\xbf".startswith(self._buffer):
                return []
            self._first = False
        half = self._buffer.endswith(b"\r")
        if b"\n" not in data and b"\r" not in data and b"\r" not in self._buffer:
            if len(self._buffer) > _LIMIT:
                raise ValueError("an event of the stream is too large")
            return []
        lines = _LINE.split(self._buffer)
        self._buffer = lines.pop()
        # A lone CR at the end may be the first half of CRLF: keep it until the next byte shows.
        if not self._buffer and lines and half:
            self._buffer = lines.pop() + b"\r"
        return [event for line in lines if (event := self._line(line)) is not None]

    def finish(self) -> list[Event]:
        """The stream has ended: a last event without its blank line counts (some servers end so)."""
        lines = _LINE.split(self._buffer)
        self._buffer = b""
        events = [event for line in lines if line and (event := self._line(line)) is not None]
        last = self._line(b"")
        return events if last is None else [*events, last]

    def _line(self, line: bytes) -> Event | None:
        if not line:
            if not self._data:
                self._event = ""
                return None
            text = b"\n".join(self._data).decode("utf-8", "replace")
            event = Event(text, self._event or "message")
            self._data, self._event = [], ""
            return event
        name, _, value = line.partition(b":")
        value = value[1:] if value.startswith(b" ") else value
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._event = value.decode("utf-8", "replace")
        return None
