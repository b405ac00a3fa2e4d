"""The one reader of an output: text, reasoning and calls, in the order in which they come.

It looks for markers; what stands before them is text or reasoning, and is given at once. At a marker that may begin a
call the format reads on; what turns out to be no call comes out as the text it is (P5). Parsing a whole text is
feeding it in one piece, so both views are one (P1).
"""

from __future__ import annotations

from ..exchange.parts import Reasoning, Text, ToolCall
from .format import Format
from .reasoning import Block
from .scanner import SPACE, Markers, Reading, markers
from .source_stream import SourceStream


class OutputStream(SourceStream):
    """Args:
    format: how calls are written; None leaves their markup in the text.
    block: how reasoning is written; None leaves it in the text.
    inside: whether the output begins inside a block.
    """

    def __init__(self, format: Format | None, block: Block | None, inside: bool) -> None:
        super().__init__()
        self._source.keeps_tail = format is not None and format.positional
        self._format = format
        self._openers = {} if format is None else format.openers
        self._closer = None if format is None else format.closer
        self._block = block
        self._inside = inside
        self._blocked = False
        """Whether the model has opened the block itself, or it is over: no later tag opens it."""
        self._begun = False
        """Whether anything but white space was said since the start, the end of the block, or the last call."""
        self._called = False
        self._broken = False
        """What is said is malformed markup."""
        self._before_call = None if format is None else format.before_call
        self._begin(self._read(self._markers()))

    def _markers(self) -> Markers:
        block = (self._block.open, self._block.close) if self._block is not None else ()
        return markers(*self._openers, *block, *([self._closer] if self._closer else []))

    def _read(self, wanted: Markers) -> Reading[None]:
        source = self._source
        while marker := (yield from source.until(wanted, self._say)):
            if marker in self._openers:
                yield from self._call(marker)
            elif marker == self._closer:
                self._say(source.start + len(marker))
                self._broken = False
            elif self._block is not None and marker == self._block.open:
                self._open(marker)
            else:
                yield from self._close(marker)

    def _call(self, marker: str) -> Reading[None]:
        source, opener = self._source, self._openers[marker]
        source.at = source.start + len(marker)
        if self._format is None or (self._inside and opener in self._format.bare):
            self._say(source.at)
            return
        source.held = True
        read = yield from self._format.read(source, opener, self)
        source.held = False
        if read:
            return
        if source.ended:
            self.text(source.at)  # a call was begun, and never ended
        else:
            self._broken = True
            self._say(source.at)

    def call(self, call: ToolCall) -> None:
        self._parts.append(call)
        self._inside, self._broken, self._begun = False, False, False
        self._called = self._blocked = True

    def text(self, end: int) -> None:
        self._inside, self._broken = False, True
        self._say(end)

    def _open(self, marker: str) -> None:
        end = self._source.start + len(marker)
        if self._begun or self._blocked:
            self._say(end)
        else:
            self._inside = self._blocked = True
            self._source.take(end)

    def _close(self, marker: str) -> Reading[None]:
        source = self._source
        end = source.start + len(marker)
        if self._inside or not self._begun:
            source.take(end)
            source.tail = "\n"
            self._inside, self._blocked, self._begun = False, True, False
            return
        if not self._called and self._before_call is not None:
            source.held = True
            stray = yield from source.match(self._before_call, end)
            source.held = False
            if stray is not None:
                source.take(end)
                return
        self._say(end)

    def _say(self, end: int) -> None:
        """The text up to `end` is said; after the first call only where the format keeps it."""
        text = self._source.take(end)
        if not text or (self._called and self._closer is not None and not self._broken):
            return
        if not self._begun and text.strip(SPACE):
            self._begun = True
        self._parts.append(Reasoning(text) if self._inside else Text(text))
