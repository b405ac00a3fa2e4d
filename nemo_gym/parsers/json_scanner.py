"""Where one strict JSON value ends in text that comes in pieces, or the very character that makes it no JSON.

Each character is looked at a bounded number of times (P8); a string that is all there is read in one step.
"""

from __future__ import annotations

import json
import re
from typing import Any, Literal

_SPACE = re.compile(r"[ \t\n\r]*")
_GAP = r"[ \t\n\r]*+"
_TEXT = r'"[^"\\\x00-\x1f]*+(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*+)*+"'
_NUMBER = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?"
_SIMPLE = rf"(?:{_TEXT}|(?:{_NUMBER}|true|false|null)(?=[ \t\n\r,}}\]]))"
_MEMBER = rf"{_TEXT}{_GAP}:{_GAP}{_SIMPLE}{_GAP}"
_OBJECT = rf"\{{{_GAP}(?:{_MEMBER}(?:,{_GAP}{_MEMBER})*+)?\}}"
_ARRAY = rf"\[{_GAP}(?:{_SIMPLE}{_GAP}(?:,{_GAP}{_SIMPLE}{_GAP})*+)?\]"
_FLAT = re.compile(f"{_OBJECT}|{_ARRAY}")
"""What holds no object and no array is read in one step, when it is all there; so are these."""
_VALUE = re.compile(f"{_SIMPLE}|{_OBJECT}|{_ARRAY}")
_KEY = re.compile(rf"{_TEXT}{_GAP}:")
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_WORD = re.compile(r"[-+.0-9A-Za-z]*")
_SCALAR = re.compile(f"{_NUMBER}|true|false|null")
_CLOSERS = {"{": "}", "[": "]"}
_HEX = "0123456789abcdefABCDEF"


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


_READ = json.JSONDecoder(parse_int=float, parse_constant=_constant).raw_decode


def json_end(text: str, at: int) -> int | None:
    """The end of an object or array that is all there; None when it is not, or is no JSON, or is nested very deep."""
    if text[at : at + 1] not in ("{", "["):
        return None
    try:
        return _READ(text, at)[1]
    except (ValueError, RecursionError):
        return None


class JsonScanner:
    """One strict JSON object or array, fed in pieces.

    `state` is `open` until the value has ended (`done`) or a character fits no JSON (`failed`).
    """

    def __init__(self) -> None:
        self.state: Literal["open", "done", "failed"] = "open"
        self._stack: list[str] = []
        self.opened: list[int] = []
        """Where the brackets stand that are open."""
        self._expects: Literal["start", "value", "first", "key", "colon", "next"] = "start"
        self._in: Literal["", "string", "key", "escape", "word"] = ""
        self._escape_of: Literal["string", "key"] = "string"
        self._hex = 0
        self._word: list[str] = []

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
        self._word.append(text[at:stop])
        if stop < end:
            if not _SCALAR.fullmatch("".join(self._word)):
                return self._fail(stop)
            self._in, self._expects = "", "next"
        return stop

    def _read_structure(self, text: str, at: int, end: int) -> int:
        match = _SPACE.match(text, at, end)
        at = match.end() if match else at
        if at == end:
            return at
        char, expects = text[at], self._expects
        if expects in ("value", "start") or (expects == "first" and self._stack[-1] == "[" and char != "]"):
            return self._begin_value(char, text, at)
        if char == '"' and (expects == "key" or (expects == "first" and self._stack[-1] == "{")):
            match = _KEY.match(text, at)
            if match is not None:
                self._expects = "value"
                return match.end()
            self._in = "key"
        elif expects in ("first", "next") and char == _CLOSERS[self._stack[-1]]:
            self._stack.pop()
            self.opened.pop()
            self._expects = "next"
            if not self._stack:
                self.state = "done"
        elif char == "," and expects == "next":
            self._expects = "key" if self._stack[-1] == "{" else "value"
        elif char == ":" and expects == "colon":
            self._expects = "value"
        else:
            return self._fail(at)
        return at + 1

    def _begin_value(self, char: str, text: str, at: int) -> int:
        whole = (_VALUE if self._stack else _FLAT).match(text, at)
        if whole is not None:
            self._expects = "next"
            if not self._stack:
                self.state = "done"
            return whole.end()
        if char in _CLOSERS:
            self._stack.append(char)
            self.opened.append(at)
            self._expects = "first"
        elif not self._stack:
            return self._fail(at)
        elif char == '"':
            self._in = "string"
        elif _WORD.fullmatch(char):
            self._in, self._word = "word", [char]
        else:
            return self._fail(at)
        return at + 1
