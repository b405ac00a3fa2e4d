"""What a format of tool calls declares, and the shapes that most formats share.

A format is a small class: its markers, and a generator that reads what begins at one of them. `JsonFormat` reads calls
whose arguments are one JSON value between a head and a tail; `TagFormat`, in `tag_format.py`, those made of tags.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import ClassVar, Protocol

import regex
from msgspec import Struct

from ..exchange.parts import ToolCall
from ..exchange.tools import Toolbox
from .arguments import json_arguments, named
from .scanner import GAP, Pattern, Reading, Source, pattern

NAME = r"[^\s<>{}()\[\]|\"'`,;=\udc00-\udfff]{1,256}"
"""What may be the name of a tool: prose after a marker is none."""


class Sink(Protocol):
    """Where what a format has read goes."""

    def call(self, call: ToolCall) -> None: ...

    def text(self, end: int) -> None:
        """What stands up to `end` is malformed markup."""
        ...


class Format:
    """Args:
    tools: the declared tools; names and types of arguments follow them.
    spelling: markers that stand for themselves under another spelling in the text (`tokens.py`).
    """

    specials: ClassVar[tuple[str, ...]] = ()
    """All markers of fixed spelling; what of them is one token can be known by its id."""
    opening: ClassVar[tuple[str, ...]] = ()
    """The markers that may begin a call."""
    bare: ClassVar[tuple[str, ...]] = ()
    """Those of them that are ordinary characters: they begin none inside a reasoning block."""
    stray: ClassVar[tuple[str, ...]] = ()
    """Those that count only where the outer marker, which models leave out at times, is not known by its id."""
    text_ends: ClassVar[str | None] = None
    """With it plain text after the first call is not part of the reply; malformed markup is, up to this marker."""
    positional: ClassVar[bool] = False
    """Whether what a call stands behind matters."""

    def __init__(self, tools: Toolbox, spelling: Mapping[str, str] | None = None) -> None:
        self.tools = tools
        self.spelling = spelling or {}
        stray = self.stray if self.spelling.keys() & {*self.opening} else ()
        self.openers = {self.spell(opener): opener for opener in self.opening if opener not in stray}
        self.closer = None if self.text_ends is None else self.spell(self.text_ends)
        self._patterns: dict[str, Pattern] = {}
        fixed = "|".join(f"«{marker}»" for marker in self.openers.values() if marker not in self.bare)
        self.before_call = self.pattern(f"{GAP}(?:{fixed})") if fixed else None
        """What a call begins with, and the white space before it."""

    def spell(self, marker: str) -> str:
        return self.spelling.get(marker, marker)

    def pattern(self, text: str) -> Pattern:
        """A pattern of `regex` in which `«marker»` stands for a marker."""
        known = self._patterns.get(text)
        if known is None:
            known = self._patterns[text] = pattern(spelled(text, tuple(self.spelling.items())))
        return known

    def read(self, source: Source, opener: str, sink: Sink) -> Reading[bool]:
        """Reads what begins at `source.start` with `opener`; `source.at` is behind it.

        True: each call was given to `sink` when it was complete, and `source.start` is behind all that was read.
        False: what stands up to `source.at` is text.
        """
        raise NotImplementedError


@lru_cache(maxsize=512)
def spelled(text: str, spelling: tuple[tuple[str, str], ...]) -> str:
    """A pattern's text with its markers, which stand in `«»`, as they are spelled."""
    table = dict(spelling)
    return regex.sub(r"«(.*?)»", lambda match: regex.escape(table.get(match[1], match[1])), text)


class Grammar(Struct, frozen=True):
    """Patterns of what surrounds one call's JSON, or nothing where the tail alone tells the end.

    `after` has the groups `next` (another call) and `end`.
    """

    head: str
    tail: str = ""
    after: str = ""


_EMPTY = rf"{GAP}(?:null|\[{GAP}\]|\"\"|0|false)?"
"""Arguments that are none (P3)."""


class JsonFormat(Format):
    """One JSON value between a head and a tail, behind one of several openers."""

    grammars: ClassVar[Mapping[str, Grammar]] = {}

    def read(self, source: Source, opener: str, sink: Sink) -> Reading[bool]:
        grammar = self.grammars[opener]
        while True:
            read = yield from self._one(source, grammar, sink)
            if not read:
                return False
            after = yield from self._after(source, grammar)
            if after != "next":
                return True

    def _one(self, source: Source, grammar: Grammar, sink: Sink) -> Reading[bool]:
        head = yield from source.match(self.pattern(grammar.head), source.at)
        if head is None:
            return False
        begin, groups = head
        empty = None
        if grammar.tail and not source.text.startswith("{", begin):
            empty = yield from source.match(self.pattern(_EMPTY + grammar.tail), begin)
        if empty is not None:
            end, call = empty[0], self.call(groups, "{}")
        else:
            end, call = yield from self._json(source, grammar, begin, groups)
        if call is None:
            source.at = max(source.at, end)  # what is in a whole value that is no call is none either
            return False
        sink.call(call)
        source.take(end)
        source.at = end
        return True

    def _json(
        self, source: Source, grammar: Grammar, begin: int, groups: Mapping[str, str | None]
    ) -> Reading[tuple[int, ToolCall | None]]:
        end = yield from source.json(begin)
        tail = None if end is None else (yield from source.match(self.pattern(grammar.tail), end))
        return (0, None) if tail is None else (tail[0], self.call(groups, source.text[begin:end]))

    def _after(self, source: Source, grammar: Grammar) -> Reading[str | None]:
        """Which group of the grammar's `after` follows a call; what it is made of belongs to no text."""
        if not grammar.after:
            return None
        found = yield from source.match(self.pattern(grammar.after), source.at)
        if found is None:
            return None
        source.at, groups = found
        name = next(name for name, text in groups.items() if text is not None)
        if name == "end":
            source.take(source.at)
        return name

    def call(self, groups: Mapping[str, str | None], text: str) -> ToolCall | None:
        """The call of a head's groups and its JSON; None when it is none."""
        arguments = json_arguments(text)
        name = groups.get("name")
        if arguments is None or not name:
            return None
        return named(name, arguments, self.tools, groups.get("id") or "")
