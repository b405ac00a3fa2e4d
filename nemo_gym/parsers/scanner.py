"""Reads text as it comes, and holds back only what may still become markup.

A `Source` is the text that was fed and is not yet taken. What reads it is written as generators: each waits
(`yield`) where the text ends too early to tell, and goes on where it stood when more has come. So a whole text and a
text in pieces are read by the same lines, and no character is looked at again for every piece (P8). A whole text is
`final` from the start: nothing is waited for, so patterns need not tell what is cut from what is not there.

Positions are indices into `Source.text`. They hold across a wait only while `Source.held` is set. No generator keeps
a reference to the text across a wait: a string that only the source refers to grows in place, any other is copied.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable
from functools import lru_cache
from typing import Any, TypeVar

import regex
from msgspec import Struct

from .json_scanner import JsonScanner, json_end

_Result = TypeVar("_Result")
Reading = Generator[None, None, _Result]
"""Waits for text, then gives its result."""

SPACE = " \t\n\r"
_TAIL = 64
GAP = r"[ \t\n\r]{0,256}+"
"""White space between two pieces of markup; bounded, since a gap is matched anew for every piece of text, and never
given back, since two gaps that share it would be tried at every place."""


class Markers:
    """Finds the first of some markers in a text: a whole one, or at the text's end the beginning of one."""

    def __init__(self, markers: Iterable[str]) -> None:
        self.whole = frozenset(markers)
        self.search = re.compile(_either(self.whole) or r"(?!)").search


def _either(markers: Iterable[str]) -> str:
    """A pattern of the markers; each may be cut by the text's end, but not to nothing."""
    heads: dict[str, list[str]] = {}
    for marker in sorted(markers):
        heads.setdefault(marker[0], []).append(marker[1:])
    return "|".join(re.escape(head) + _rest(tails) for head, tails in heads.items())


def _rest(tails: list[str]) -> str:
    if "" in tails:  # a whole marker; a longer one with this beginning is never found
        return ""
    return f"(?:{_either(tails)}|\\Z)"


@lru_cache(maxsize=64)
def markers(*each: str) -> Markers:
    return Markers(each)


class Pattern(Struct, frozen=True):
    """What may stand at a position: `cut` tells too whether it may still come, `whole` is quicker."""

    whole: Any
    cut: Any


class Source:
    """Text that grows at its end and is taken from its front; neither costs a copy of the whole."""

    __slots__ = ("_failed", "_gone", "_unclosed", "at", "ended", "final", "held", "keeps_tail", "start", "tail", "text")

    def __init__(self) -> None:
        self.text = ""
        self.start = 0
        """What lies before it was taken."""
        self.at = 0
        """How far a reader of calls has come."""
        self.final = False
        """No more text will come."""
        self.ended = False
        """More was wanted, and none came."""
        self.held = False
        """Positions are in use."""
        self.tail = "\n"
        """The last characters that were taken; kept where a format asks what its calls stand behind."""
        self.keeps_tail = False
        self._gone = 0
        """How much was dropped from the front of the text."""
        self._failed = False
        """C's decoder found no whole value: it says so only after counting the text's lines, so it is asked no more."""
        self._unclosed: set[int] = set()
        """Where brackets of JSON open that are known never to close, counted from the output's beginning."""

    def add(self, piece: str) -> None:
        text = self.text
        if self.start and not self.held:
            text = text[self.start :]
            self._gone += self.start
            self.start = 0
        self.text = ""
        text += piece
        self.text = text

    def take(self, end: int) -> str:
        """The text up to position `end`."""
        taken = self.text[self.start : end]
        self.start = end
        if self.keeps_tail:
            self.tail = (self.tail + taken[-_TAIL:])[-_TAIL:]
        return taken

    def before(self, position: int) -> str:
        """The last characters before `position`, taken or not."""
        return (self.tail + self.text[max(self.start, position - _TAIL) : position])[-_TAIL:]

    def search(self, wanted: Markers, at: int) -> Reading[tuple[int, str] | None]:
        """The first of the markers from position `at`, and where it is; None when the text ends without one."""
        while True:
            match = wanted.search(self.text, at)
            if match is not None and match.group() in wanted.whole:
                return match.start(), match.group()
            if self.final:
                self.ended = True
                return None
            at = len(self.text) if match is None else match.start()
            match = None
            yield

    def until(self, wanted: Markers, say: Callable[[int], None]) -> Reading[str | None]:
        """The first of the markers, and `start` before it; None at the text's end.

        What stands before it goes to `say`, as it comes: up to the position that it is given.
        """
        while True:
            match = wanted.search(self.text, self.start)
            if match is not None and match.group() in wanted.whole:
                at, marker = match.start(), match.group()
                match = None
                say(at)
                return marker
            end = len(self.text) if match is None or self.final else match.start()
            match = None
            say(end)
            if self.final:
                return None
            yield

    def match(self, pattern: Pattern, at: int) -> Reading[tuple[int, dict[str, str | None]] | None]:
        """The end and the groups of a pattern that stands at `at`; None when it does not."""
        while not self.final:
            match = pattern.cut.match(self.text, at, partial=True)
            if match is None:
                return None
            if not match.partial:
                return match.end(), match.groupdict()
            match = None
            yield
        match = pattern.whole.match(self.text, at)
        if match is not None:
            return match.end(), match.groupdict()
        if pattern.cut.match(self.text, at, partial=True) is not None:
            self.ended = True
        return None

    def json(self, at: int) -> Reading[int | None]:
        """The end of the JSON object or array that begins at `at`; None when none does, or it never ends."""
        if self._gone + at in self._unclosed:
            return None
        if not self._failed:
            end = json_end(self.text, at)
            if end is not None:
                return end
            self._failed = True
        scanner = JsonScanner()
        while True:
            at = scanner.feed(self.text, at)
            if scanner.state == "done":
                return at
            if scanner.state == "failed" or self.final:
                break
            yield
        self.ended = self.ended or scanner.state == "open"
        self._unclosed.update(self._gone + position for position in scanner.opened)
        return None


@lru_cache(maxsize=512)
def pattern(text: str) -> Pattern:
    return Pattern(re.compile(text), regex.compile(text))
