"""A stream whose reader is a generator over a `Source`."""

from __future__ import annotations

from array import array

from ..exchange.parts import Part
from .parser import BaseParser, Parsed
from .scanner import Reading, Source


class SourceStream:
    """Feeds a reader that puts what it finds into `_parts`, and waits for more text where it yields."""

    def __init__(self) -> None:
        self._source = Source()
        self._parts: list[Part] = []

    def _begin(self, reading: Reading[None]) -> None:
        self._reading = reading
        next(reading)

    def feed(self, text: str, ids: array | None = None) -> list[Part]:
        if not text:
            return []
        self._source.add(text)
        next(self._reading)
        return self._given()

    def whole(self, text: str) -> list[Part]:
        """All that is fed, in one step, and the end."""
        self._source.final = True
        self._source.add(text)
        next(self._reading, None)
        return self._given()

    def finish(self) -> list[Part]:
        self._source.final = True
        next(self._reading, None)
        return self._given()

    def _given(self) -> list[Part]:
        parts, self._parts = self._parts, []
        return parts


class SourceParser(BaseParser):
    """A parser whose stream is one."""

    def parse(self, text: str, ids: array | None = None) -> Parsed:
        return Parsed.fold(self.stream().whole(text))

    def stream(self) -> SourceStream:
        raise NotImplementedError
