"""Hermes and Qwen3: a JSON object between `<tool_call>` tags.

Plain text after the first call is not part of the reply (P3). A call ends where its JSON ends, so its
strings may quote the tags. What fails to be a call comes out as text, and is read again from the last
opening tag in it: a call restarted inside a call is one (P5).
"""

from __future__ import annotations

from array import array

from ...exchange.parts import Part, Text
from ...exchange.tools import Toolbox
from ..arguments import json_call
from ..parser import BaseParser
from ..scanner import Buffer, JsonScanner, MarkerScanner

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_TEXT, _BROKEN = MarkerScanner([_OPEN]), MarkerScanner([_OPEN, _CLOSE])
_SPACE = " \t\n\r"


class HermesParser(BaseParser):
    openers: tuple[str, ...] = (_OPEN,)

    def __init__(self, tools: Toolbox) -> None:
        self._tools = tools

    def stream(self) -> HermesStream:
        return HermesStream(self._tools)


class HermesStream:
    """Three states: in text, in a call (`_json` set), and in markup that turned out to be no call (`_broken`)."""

    def __init__(self, tools: Toolbox) -> None:
        self._tools = tools
        self._buffer = Buffer()
        """In a call it begins with the opening tag."""
        self._json: JsonScanner | None = None
        self._read = 0
        """In a call: how far it was read."""
        self._json_end = 0
        self._broken = False
        self._called = False

    def feed(self, text: str, ids: array | None = None) -> list[Part]:
        self._read -= self._buffer.start
        self._json_end -= self._buffer.start
        self._buffer.add(text)
        parts: list[Part] = []
        while self._in_call(self._json, parts) if self._json is not None else self._in_text(parts):
            pass
        return parts

    def finish(self) -> list[Part]:
        parts: list[Part] = []
        while self._json is not None:
            self._fail(len(self._buffer.text), parts)
            parts += self.feed("")
        self._say(len(self._buffer.text), parts)
        return parts

    def _in_text(self, parts: list[Part]) -> bool:
        """True when there is more to read."""
        scanner = _BROKEN if self._broken else _TEXT
        found = scanner.find(self._buffer)
        if found is None:
            self._say(scanner.safe(self._buffer), parts)
            return False
        position, marker = found
        self._say(position + len(marker) if marker == _CLOSE else position, parts)
        self._broken = False
        if marker == _OPEN:
            self._json, self._read = JsonScanner(), position + len(_OPEN)
        return True

    def _in_call(self, json: JsonScanner, parts: list[Part]) -> bool:
        text = self._buffer.text
        if json.state == "open":
            self._read = self._json_end = json.feed(text, self._read)
        if json.state == "failed":
            return self._fail(self._read, parts)
        if json.state == "open":
            return False
        while self._read < len(text) and text[self._read] in _SPACE:
            self._read += 1
        tail = text[self._read : self._read + len(_CLOSE)]
        if tail != _CLOSE:
            return not _CLOSE.startswith(tail) and self._fail(self._read, parts)
        call = json_call(text[self._buffer.start + len(_OPEN) : self._json_end], self._tools)
        if call is None:
            return self._fail(self._json_end, parts)
        parts.append(call)
        self._called = True
        self._buffer.take(self._read + len(_CLOSE))
        self._json = None
        return True

    def _fail(self, at: int, parts: list[Part]) -> bool:
        """The buffer up to `at` is no call. Nothing before its last opening tag is read a second time."""
        restart = self._buffer.text.rfind(_OPEN, self._buffer.start + len(_OPEN), at)
        self._json, self._broken = None, True
        self._say(at if restart < 0 else restart, parts)
        return True

    def _say(self, end: int, parts: list[Part]) -> None:
        text = self._buffer.take(end)
        if text and (self._broken or not self._called):
            parts.append(Text(text))
