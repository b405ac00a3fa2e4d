"""Reads text as it comes, and holds back only what may still become markup.

`MarkerScanner` finds fixed markers in text; `JsonScanner` finds where one JSON value ends, or the very
character that makes it no JSON. Both look at each character a bounded number of times (P8).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal


class Buffer:
    """Text that grows at its end and is taken from its front; neither costs a copy of the whole."""

    def __init__(self) -> None:
        self.text = ""
        self.start = 0
        """What lies before it was taken."""

    def add(self, piece: str) -> None:
        text, self.text = self.text[self.start :] if self.start else self.text, ""
        self.start = 0
        text += piece  # a local that nothing else refers to grows in place
        self.text = text

    def take(self, end: int) -> str:
        """The text up to position `end` of `self.text`."""
        taken, self.start = self.text[self.start : end], end
        return taken


class MarkerScanner:
    """Finds the first of some markers in a buffer, and how much of the buffer none of them can touch."""

    def __init__(self, markers: Iterable[str]) -> None:
        self.markers = tuple(markers)
        self._pattern = re.compile("|".join(re.escape(marker) for marker in self.markers) or r"(?!)")
        self._longest = max((len(marker) for marker in self.markers), default=1)

    def find(self, buffer: Buffer) -> tuple[int, str] | None:
        """Position and marker of the first whole one."""
        match = self._pattern.search(buffer.text, buffer.start)
        return None if match is None else (match.start(), match.group())

    def safe(self, buffer: Buffer) -> int:
        """The position up to which no marker can still begin, given that there is no whole one."""
        text, end = buffer.text, len(buffer.text)
        for at in range(max(buffer.start, end - self._longest + 1), end):
            if any(marker.startswith(text[at:]) for marker in self.markers):
                return at
        return end


_SPACE = re.compile(r"[ \t\n\r]*")
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_WORD = re.compile(r"[-+.0-9A-Za-z]*")
_SCALAR = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|true|false|null")
_CLOSERS = {"{": "}", "[": "]"}
_HEX = "0123456789abcdefABCDEF"


class JsonScanner:
    """One strict JSON object or array, fed in pieces.

    `state` is `open` until the value has ended (`done`) or a character fits no JSON (`failed`).
    """

    def __init__(self) -> None:
        self.state: Literal["open", "done", "failed"] = "open"
        self._stack: list[str] = []
        self._expects: Literal["start", "value", "first", "key", "colon", "next"] = "start"
        self._in: Literal["", "string", "key", "escape", "word"] = ""
        self._escape_of: Literal["string", "key"] = "string"
        self._hex = 0
        self._word = ""

    def feed(self, text: str, start: int) -> int:
        """Reads `text` from `start`; gives the position after what was read. On `failed` that is the offender's."""
        at, end = start, len(text)
        while at < end and self.state == "open":
            if self._in == "word":
                at = self._read_word(text, at, end)
            elif self._in == "escape":
                at = self._read_escape(text, at)
            elif self._in:
                at = self._read_string(text, at, end)
            else:
                at = self._read_structure(text, at, end)
        return at

    def _fail(self, at: int) -> int:
        self.state = "failed"
        return at

    def _read_string(self, text: str, at: int, end: int) -> int:
        match = _PLAIN.match(text, at, end)
        at = match.end() if match else at
        if at == end:
            return at
        char = text[at]
        if char == '"':
            self._expects = "colon" if self._in == "key" else "next"
            self._in = ""
        elif char == "\\":
            self._escape_of = "key" if self._in == "key" else "string"
            self._in, self._hex = "escape", 0
        else:
            return self._fail(at)
        return at + 1

    def _read_escape(self, text: str, at: int) -> int:
        char = text[at]
        if self._hex:
            if char not in _HEX:
                return self._fail(at)
            self._hex -= 1
        elif char == "u":
            self._hex = 4
        elif char not in '"\\/bfnrt':
            return self._fail(at)
        if not self._hex:
            self._in = self._escape_of
        return at + 1

    def _read_word(self, text: str, at: int, end: int) -> int:
        match = _WORD.match(text, at, end)
        stop = match.end() if match else at
        self._word += text[at:stop]
        if stop < end:
            if not _SCALAR.fullmatch(self._word):
                return self._fail(stop)
            self._in, self._expects, self._word = "", "next", ""
        return stop

    def _read_structure(self, text: str, at: int, end: int) -> int:
        match = _SPACE.match(text, at, end)
        at = match.end() if match else at
        if at == end:
            return at
        char, expects = text[at], self._expects
        closes = bool(self._stack) and char == _CLOSERS[self._stack[-1]]
        if closes and expects in ("first", "next"):
            self._stack.pop()
            self._expects = "next"
            if not self._stack:
                self.state = "done"
        elif char == "," and expects == "next":
            self._expects = "key" if self._stack[-1] == "{" else "value"
        elif char == ":" and expects == "colon":
            self._expects = "value"
        elif char == '"' and (expects == "key" or (expects == "first" and self._stack[-1] == "{")):
            self._in = "key"
        elif expects in ("value", "start") or (expects == "first" and self._stack[-1] == "["):
            return self._begin_value(char, at)
        else:
            return self._fail(at)
        return at + 1

    def _begin_value(self, char: str, at: int) -> int:
        if char in _CLOSERS:
            self._stack.append(char)
            self._expects = "first"
        elif self._expects == "start":
            return self._fail(at)
        elif char == '"':
            self._in = "string"
        elif _WORD.fullmatch(char):
            self._in, self._word = "word", char
        else:
            return self._fail(at)
        return at + 1
