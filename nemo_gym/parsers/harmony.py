"""Harmony, the format of gpt-oss: messages on channels, each with a header.

`analysis` is reasoning, a message to a function is a call, all else is text. The `openai-harmony` package reads ids
only, refuses what is malformed, and must hold all of it; this reader keeps the law for text too, and is held against
the package by tests. `harmony_vocabulary` takes the package's tokens for those who have ids.

A call ends with `<|call|>`, or with the output: engines leave the token that stopped them out of the text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..exchange.parts import Reasoning, Text
from ..exchange.tools import Toolbox
from .arguments import json_arguments, named
from .format import spelled
from .scanner import GAP, Pattern, Reading, markers, pattern
from .source_stream import SourceParser, SourceStream

SPECIALS = (
    "<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>", "<|call|>"
)  # fmt: skip
_ENDS = ("<|end|>", "<|return|>", "<|call|>")
_NOBODY = frozenset({"assistant", "user", "all"})
_TO = r"[ ]{0,4}to=(?P<%s>[^\s<\udc00-\udfff]{1,256})"
_TYPE = r"[ ]{0,4}(?:«<|constrain|>»)?[ ]{0,4}(?P<type>[A-Za-z0-9_./+-]{1,64})?[ ]{0,4}"
_CHANNEL = r"«<|channel|>»(?P<%s>\w{1,32})"
_FIRST = f"{_TO % 'to'}(?:{_CHANNEL % 'channel'})?|{_CHANNEL % 'first_channel'}(?:{_TO % 'last_to'})?"
_END = GAP + "(?:" + "|".join(f"«{end}»" for end in _ENDS) + "|(?=«<|start|>»))"
_BLANK = re.compile(GAP + r"\Z")
_HEADER = rf"(?:«<|start|>»assistant)?(?:(?:{_FIRST}){_TYPE})?«<|message|>»"


class HarmonyStream(SourceStream):
    """Args:
    tools: the declared tools; None leaves calls, with all their markup, in the text.
    reasoning: whether the analysis is told from the text, or stays there with all its markup.
    """

    def __init__(self, tools: Toolbox | None, reasoning: bool, spelling: Mapping[str, str]) -> None:
        super().__init__()
        self._tools = tools
        self._reasoning = reasoning
        self._thinks = False
        self._endless = False
        """The output has ended, and no message's end is left in it."""
        self._spelling = tuple(spelling.items())
        self._start = start = spelling.get("<|start|>", "<|start|>")
        channel, message = (spelling.get(each, each) for each in ("<|channel|>", "<|message|>"))
        self._starts = markers(start, channel, message)
        self._ends = markers(start, *(spelling.get(end, end) for end in _ENDS))
        self._begin(self._read())

    def _pattern(self, text: str) -> Pattern:
        return pattern(spelled(text, self._spelling))

    def _read(self) -> Reading[None]:
        source = self._source
        marker: str | None = ""
        while marker is not None:
            source.held = True
            header = yield from source.match(self._pattern(_HEADER), source.start)
            source.held = False
            if header is not None:
                source.at, groups = header
                yield from self._message(groups)
            else:
                self._say(source.start + len(marker))
            marker = yield from source.until(self._starts, self._say)

    def _message(self, header: Mapping[str, str | None]) -> Reading[None]:
        to = header["to"] or header["last_to"]
        if to is not None and to not in _NOBODY:
            if self._tools is None:
                yield from self._verbatim()
            else:
                called = yield from self._call(self._tools, to, header["type"])
                if not called:
                    self._say(self._source.at)
        elif "analysis" not in (header["channel"], header["first_channel"]):
            yield from self._content()
        elif not self._reasoning:
            yield from self._verbatim()
        else:
            self._thinks = True
            yield from self._content()
            self._thinks = False

    def _content(self) -> Reading[None]:
        """Text or reasoning up to the message's end, as it comes."""
        self._source.take(self._source.at)
        end = yield from self._source.until(self._ends, self._say)
        if end is not None and end != self._start:
            self._source.take(self._source.start + len(end))

    def _verbatim(self) -> Reading[None]:
        """The whole message with its markup, as text."""
        self._say(self._source.at)
        end = yield from self._source.until(self._ends, self._say)
        if end is not None and end != self._start:
            self._say(self._source.start + len(end))

    def _call(self, tools: Toolbox, to: str, kind: str | None) -> Reading[bool]:
        """The call that the message is; False when it is none, and what stands up to `source.at` is text."""
        source = self._source
        source.held = True
        read = yield from self._json() if kind is None or "json" in kind else self._raw()
        source.held = False
        if read is None:
            return False
        arguments, end = read
        self._parts.append(named(to.removeprefix("functions."), arguments, tools))
        source.take(end)
        return True

    def _json(self) -> Reading[tuple[str, int] | None]:
        """Arguments that are one JSON value, and where the message ends."""
        source, begin = self._source, self._source.at
        empty = yield from source.match(self._pattern(_END), begin)
        if empty is not None:
            return "{}", empty[0]
        value = yield from source.match(self._pattern(GAP + r"(?=[{\[])"), begin)
        end = None if value is None else (yield from source.json(value[0]))
        if end is None:
            return None
        tail = yield from source.match(self._pattern(_END), end)
        if tail is None and not (source.final and _BLANK.match(source.text, end)):
            return None
        arguments = json_arguments(source.text[begin:end])
        return None if arguments is None else (arguments, tail[0] if tail else len(source.text))

    def _raw(self) -> Reading[tuple[str, int] | None]:
        """The input of a tool that takes no JSON, and where the message ends."""
        begin = self._source.at
        found = None if self._endless else (yield from self._source.search(self._ends, begin))
        if found is None:
            self._endless = True
            return None
        at, end = found
        return self._source.text[begin:at], at if end == self._start else at + len(end)

    def _say(self, end: int) -> None:
        text = self._source.take(end)
        if text:
            self._parts.append(Reasoning(text) if self._thinks else Text(text))


class HarmonyParser(SourceParser):
    """Reasoning and calls in one: the format knows which is which."""

    def __init__(self, tools: Toolbox | None, reasoning: bool) -> None:
        self._tools, self._reasoning = tools, reasoning

    specials = SPECIALS

    def spelled(self, spelling: Mapping[str, str]) -> HarmonyStream:
        return HarmonyStream(self._tools, self._reasoning, spelling)

    def stream(self) -> HarmonyStream:
        return self.spelled({})
