"""What a parser is, and the law it keeps (P1).

For every way of cutting a text, `Parsed.fold(pieces) == parser.parse(text)`. Parsers keep it by
construction: parsing a whole text is feeding it to a stream in one piece.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Protocol

from msgspec import Struct

from ..exchange.parts import Part, Reasoning, ToolCall, merged, plain_text


class Parsed(Struct, frozen=True):
    parts: tuple[Part, ...]
    """In the order in which the model produced them; what follows are views."""

    @property
    def reasoning(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, Reasoning))

    @property
    def text(self) -> str:
        return plain_text(self.parts)

    @property
    def calls(self) -> list[tuple[str, str]]:
        """Name and arguments string of each call."""
        return [(part.name, part.arguments) for part in self.parts if isinstance(part, ToolCall)]

    @staticmethod
    def fold(pieces: Iterable[Part]) -> Parsed:
        return Parsed(tuple(merged(pieces)))


class ParserStream(Protocol):
    """Gives pieces that join by `joined`; a ToolCall comes once, whole."""

    def feed(self, text: str, ids: array | None = None) -> list[Part]: ...

    def finish(self) -> list[Part]: ...


class Parser(Protocol):
    """`openers` are the markers that begin a tool call; a reasoning block ends where one stands."""

    openers: tuple[str, ...]

    def parse(self, text: str, ids: array | None = None) -> Parsed: ...

    def stream(self) -> ParserStream: ...


class BaseParser:
    """A parser by its stream alone."""

    openers: tuple[str, ...] = ()

    def parse(self, text: str, ids: array | None = None) -> Parsed:
        stream = self.stream()
        return Parsed.fold([*stream.feed(text, ids), *stream.finish()])

    def stream(self) -> ParserStream:
        raise NotImplementedError
