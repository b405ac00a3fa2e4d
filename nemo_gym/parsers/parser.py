"""What a parser is, and the law it keeps (P1).

For every way of cutting a text, `Parsed.fold(pieces) == parser.parse(text)`. Parsers keep it by
construction: parsing a whole text is feeding it to a stream in one piece.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Protocol

from msgspec import Struct

from ..exchange.parts import Part, Reasoning, Text, ToolCall, merged, plain_text

PARSER = "parser"
"""The dialect of the marks that parsers leave as a call's origin."""


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

    @property
    def unknown(self) -> list[str]:
        """The called names that are none of the declared tools'."""
        return [part.name for part in self.parts if isinstance(part, ToolCall) and is_unknown(part)]

    @staticmethod
    def fold(pieces: Iterable[Part]) -> Parsed:
        return Parsed(tuple(merged(_runs(pieces))))


def _runs(pieces: Iterable[Part]) -> Iterator[Part]:
    """The pieces, with neighbouring plain ones of a kind joined: in one step, since pair by pair would be quadratic."""
    for kind, run in groupby(pieces, _plain_kind):
        if kind is None:
            yield from run
        else:
            yield kind("".join(piece.text for piece in run if isinstance(piece, Text | Reasoning)))


def _plain_kind(piece: Part) -> type[Text] | type[Reasoning] | None:
    if isinstance(piece, Text):
        return Text if not piece.id and piece.origin is None else None
    if isinstance(piece, Reasoning):
        return Reasoning if not piece.id and piece.origin is None and piece.payload is None else None
    return None


def is_unknown(call: ToolCall) -> bool:
    """Whether a parser has marked the call: tools were declared, and none has its name (P6)."""
    return call.origin is not None and call.origin.dialect == PARSER


class ParserStream(Protocol):
    """Gives pieces that join by `joined`; a ToolCall comes once, whole."""

    def feed(self, text: str, ids: array | None = None) -> list[Part]: ...

    def finish(self) -> list[Part]: ...


class Parser(Protocol):
    def parse(self, text: str, ids: array | None = None) -> Parsed: ...

    def stream(self) -> ParserStream: ...


class BaseParser:
    """A parser by its stream alone."""

    def parse(self, text: str, ids: array | None = None) -> Parsed:
        stream = self.stream()
        return Parsed.fold([*stream.feed(text, ids), *stream.finish()])

    def stream(self) -> ParserStream:
        raise NotImplementedError
