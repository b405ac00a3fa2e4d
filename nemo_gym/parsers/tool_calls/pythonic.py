"""Pythonic: a list of calls as Python writes them, `[f(a=1), g(b="x")]`, where a line begins.

The list is a call only as a whole, with all arguments named and literal; JSON's own words for values are read too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ...exchange.parts import ToolCall
from ..arguments import named
from ..format import Format, Sink
from ..scanner import GAP, Reading, Source
from ..schema import literal, literal_json, strict_json
from .llama3_json import begins_line

_NAME = r"[^\W\d]\w{0,63}(?:\.[^\W\d]\w{0,63}){0,8}"
_HEAD = rf"\[{GAP}{_NAME}{GAP}\({GAP}(?:\)|[^\W\d]\w{{0,63}}{GAP}=)"
_CALL = re.compile(rf"\s*({_NAME})\s*\((.*)\)\s*", re.DOTALL)
_ARGUMENT = re.compile(r"\s*([^\W\d]\w*)\s*=(.*)", re.DOTALL)
_STOP = re.compile(r"[\[\](){}'\"]")
_IN_STRING = {quote: re.compile(rf"\\|{quote}") for quote in ("'", '"', "'''", '"""')}
_STRING = re.compile(r"'''.*?'''|\"\"\".*?\"\"\"|'(?:[^'\\]|\\.)*+'|\"(?:[^\"\\]|\\.)*+\"", re.DOTALL)
_NAMED = re.compile(r"\w\s*\Z")
_PAIRS = {")": "(", "]": "[", "}": "{"}


class Pythonic(Format):
    opening = ("[",)
    bare = ("[",)
    positional = True

    def read(self, source: Source, opener: str, sink: Sink) -> Reading[bool]:
        head = (yield from source.match(self.pattern(_HEAD), source.start)) if begins_line(source) else None
        if head is None:
            return False
        end = yield from _end(source)
        calls = None if end is None else self._calls(source.text[source.start + 1 : end - 1])
        if end is None or calls is None:
            return False
        for call in calls:
            sink.call(call)
        source.take(end)
        return True

    def _calls(self, text: str) -> list[ToolCall] | None:
        calls = []
        for item in _parts(text):
            call = _CALL.fullmatch(item)
            if call is None:
                return None
            arguments: dict[str, Any] = {}
            for argument in _parts(call[2]):
                found = _ARGUMENT.fullmatch(argument)
                try:
                    arguments.setdefault(found[1] if found else "", _value(found[2] if found else ""))
                    written = literal_json(arguments)
                except ValueError:
                    return None
            written = literal_json(arguments)
            calls.append(named(call[1], written, self.tools))
        return calls


def _value(text: str) -> Any:
    for reading in (literal, strict_json):
        try:
            return reading(text.strip())
        except ValueError:
            pass
    return literal(_STRING.sub(lambda string: string[0].replace("\n", "\\n"), text.strip()))


def _end(source: Source) -> Reading[int | None]:
    """The end of the bracket that opens at `source.start`; None when it has none."""
    at, stack = source.start, list[str]()
    while True:
        match = _STOP.search(source.text, at)
        found, at = (None, len(source.text)) if match is None else (match[0], match.end())
        match = None
        if found is None:
            if source.final:
                return None
            yield
        elif found in "'\"":
            closed = yield from _string_end(source, at, found)
            if closed is None:
                return None
            at = closed
        elif found in "[({":
            if found == "(" and len(stack) != 1 and _NAMED.search(source.text, max(0, at - 17), at - 1):
                return None  # a call inside a value is no literal: it may be a restart
            stack.append(found)
        elif not stack or stack.pop() != _PAIRS[found]:
            return None
        elif not stack:
            return at


def _string_end(source: Source, at: int, quote: str) -> Reading[int | None]:
    while len(source.text) < at + 2 and not source.final:
        yield
    if source.text.startswith(quote * 2, at):
        quote, at = quote * 3, at + 2
    while True:
        match = _IN_STRING[quote].search(source.text, at)
        found, begin = (None, at) if match is None else (match[0], match.start())
        match = None
        if found == quote:
            return begin + len(quote)
        if found is not None and begin + 1 < len(source.text):
            at = begin + 2  # what a backslash stands before
            continue
        if source.final:
            return None
        at = max(at, len(source.text) - 2) if found is None else begin
        yield


def _parts(text: str) -> Iterator[str]:
    """What commas part, but for those inside brackets and strings."""
    depth = begin = at = 0
    while at < len(text):
        char = text[at]
        if char in "'\"":
            string = _STRING.match(text, at)
            at = string.end() if string else len(text)
            continue
        depth += (char in "[({") - (char in "])}")
        if char == "," and depth == 0:
            yield text[begin:at]
            begin = at + 1
        at += 1
    if text[begin:].strip():
        yield text[begin:]
