"""Where reasoning starts and ends (P7); what is not reasoning goes to the parser of tool calls.

An opening tag counts only before any content. A tool call that opens inside the block ends it. A closing
tag outside a block is dropped before any content and directly before the first call, else it is text.
From the first call on nothing is looked at any more, so markup quoted in arguments survives.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from msgspec import Struct

from ..exchange.parts import Part, Reasoning
from .parser import BaseParser, Parser, ParserStream
from .scanner import Buffer, MarkerScanner

_SPACE = " \t\n\r"
_NEAR = 64
"""White space that may stand between a closing tag and the call that it is directly before."""


class Markers(Struct, frozen=True):
    open: str
    close: str
    opened_by_prompt: bool
    """Whether the format's templates open the block in the prompt."""


QWEN3 = Markers("<think>", "</think>", False)


class ReasoningParser(BaseParser):
    """Args:
    inner: reads what is not reasoning.
    in_reasoning: None = as the format's templates do.
    """

    def __init__(self, markers: Markers, inner: Parser, in_reasoning: bool | None) -> None:
        self.openers = inner.openers
        self._markers = markers
        self._inner = inner
        self._inside = markers.opened_by_prompt if in_reasoning is None else in_reasoning

    def stream(self) -> ReasoningStream:
        return ReasoningStream(self._markers, self._inner, self._inside)


class ReasoningStream:
    def __init__(self, markers: Markers, inner: Parser, inside: bool) -> None:
        self._markers = markers
        self._inner: ParserStream = inner.stream()
        self._openers = inner.openers
        self._scanner = MarkerScanner([markers.open, markers.close, *inner.openers])
        self._reach = _NEAR + max((len(opener) for opener in inner.openers), default=0)
        self._buffer = Buffer()
        self._inside = inside
        self._begun = False
        """Whether anything but white space came since the start or the end of the block."""
        self._blocked = False
        """Whether the block was opened by the model, or is over."""
        self._passing = False

    def feed(self, text: str, ids: array | None = None) -> list[Part]:
        if self._passing:
            return self._inner.feed(text, ids)
        self._buffer.add(text)
        return list(self._read(final=False))

    def finish(self) -> list[Part]:
        return [*self._read(final=True), *self._inner.finish()]

    def _read(self, *, final: bool) -> Iterator[Part]:
        while not self._passing:
            found = self._scanner.find(self._buffer)
            if found is None:
                yield from self._take(len(self._buffer.text) if final else self._scanner.safe(self._buffer))
                return
            position, marker = found
            yield from self._take(position)
            after = position + len(marker)
            if marker in self._openers:
                self._inside, self._passing = False, True
            elif marker == self._markers.open:
                yield from self._open(after)
            elif self._inside:
                self._buffer.take(after)
                self._inside, self._blocked, self._begun = False, True, False
            else:
                drop = self._stray(after, final)
                if drop is None:
                    return
                if drop:
                    self._buffer.take(after)
                else:
                    yield from self._take(after)
        yield from self._take(len(self._buffer.text))

    def _open(self, after: int) -> Iterator[Part]:
        if self._begun or self._blocked:
            yield from self._take(after)
        else:
            self._inside = self._blocked = True
            self._buffer.take(after)

    def _stray(self, after: int, final: bool) -> bool | None:
        """Whether a closing tag outside a block is dropped; None when what follows must tell and has not come."""
        if not self._begun:
            return True
        tail = self._buffer.text[after : after + self._reach]
        rest = tail.lstrip(_SPACE)
        if len(tail) - len(rest) > _NEAR:
            return False
        if any(rest.startswith(opener) for opener in self._openers):
            return True
        open_end = any(opener.startswith(rest) for opener in self._openers)
        return None if open_end and not final else False

    def _take(self, end: int) -> Iterator[Part]:
        text = self._buffer.take(end)
        if not text:
            return
        self._begun = self._begun or bool(text.strip(_SPACE))
        if self._inside:
            yield Reasoning(text)
        else:
            yield from self._inner.feed(text)
