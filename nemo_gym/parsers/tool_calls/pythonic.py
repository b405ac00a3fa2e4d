"""Pythonic: a list of calls as Python writes them, `[f(a=1), g(b="x")]`, where a line begins.

The list is a call only as a whole, with all arguments named and literal; JSON's own words for values are read too.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from typing import Any

from ..arguments import named
from ..format import Format, Sink
from ..scanner import GAP, Reading, Source
from ..schema import literal, literal_json, strict_json
from .llama3_json import begins_line

_NAME = r"[^\W\d]\w{0,63}(?:\.[^\W\d]\w{0,63}){0,8}"
_HEAD = rf"\[{GAP}{_NAME}{GAP}\({GAP}(?:\)|[^\W\d]\w{{0,63}}{GAP}=)"
_CALL = re.compile(rf"\s*({_NAME})\s*\((.*)\)\s*", re.DOTALL)
_ARGUMENT = re.compile(r"\s*([^\W\d]\w*)\s*=(.*)", re.DOTALL)
_STOP = re.compile(r"[\[\](){}'\"\\]")
_IN_STRING = {quote: re.compile(rf"\\|{quote}") for quote in ("'", '"', "'''", '"""')}
_LONG, _SHORT = r"{0}{0}{0}(?:[^{0}\\]|\\.|{0}(?!{0}{0}))*+{0}{0}{0}", r"{0}(?:[^{0}\\]|\\.)*+{0}"
_STRING = re.compile("|".join(kind.format(quote) for kind in (_LONG, _SHORT) for quote in "'\""), re.DOTALL)
"""A string as `_end` finds its end, so that none is looked for in vain."""
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
        read = None if end is None else _read(source.text[source.start : end])
        if end is None or read is None:
            return False
        for name, arguments in read:
            sink.call(named(name, arguments, self.tools))
        source.take(end)
        return True


_Called = tuple[str, str]
"""A name, and arguments as JSON."""


def _read(text: str) -> list[_Called] | None:
    """The calls of a list: as Python has it, else piece by piece, since models write what Python refuses."""
    try:
        return list(_by_python(text))
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        pass
    try:
        return list(_by_pieces(text[1:-1]))
    except ValueError:
        return None


def _by_python(text: str) -> Iterator[_Called]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an odd escape in the model's text is no concern of ours
        tree = ast.parse(text, mode="eval").body
    for call in tree.elts if isinstance(tree, ast.List) else [tree]:
        if not isinstance(call, ast.Call) or call.args:
            raise ValueError("no call, or a value without a name")
        arguments: dict[str, Any] = {}
        for keyword in call.keywords:
            arguments.setdefault(_written(keyword.arg, text), ast.literal_eval(keyword.value))
        yield _written(_dotted(call.func), text), literal_json(arguments)


def _dotted(name: ast.expr) -> str:
    if isinstance(name, ast.Attribute):
        return f"{_dotted(name.value)}.{name.attr}"
    return name.id if isinstance(name, ast.Name) else ""


def _written(name: str | None, text: str) -> str:
    """The name as the model wrote it: Python spells some of them otherwise."""
    if not name or name not in text:
        raise ValueError("no name")
    return name


def _by_pieces(text: str) -> Iterator[_Called]:
    for item in _parts(text):
        call = _CALL.fullmatch(item)
        if call is None:
            raise ValueError("no call")
        arguments: dict[str, Any] = {}
        for argument in _parts(call[2]):
            found = _ARGUMENT.fullmatch(argument)
            if found is None:
                raise ValueError("a value without a name")
            arguments.setdefault(found[1], _value(found[2]))
        yield call[1], literal_json(arguments)


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
            if found == "(" and len(stack) != 1 and _names(source.text[max(0, at - 300) : at - 1]):
                return None  # a call inside a value is no literal: it may be a restart
            stack.append(found)
        elif not stack or stack.pop() != _PAIRS.get(found):
            return None  # or a backslash, which no literal has outside of its strings
        elif not stack:
            return at


def _names(before: str) -> bool:
    """Whether a bracket behind this text calls something; at most a gap stands between."""
    return re.match(r"\w", before.rstrip()[-1:]) is not None


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
