"""Llama 3: a call is a JSON object, bare or behind `<|python_tag|>`; several are parted by `;`.

A bare object is a call only where a line begins, outside a code fence, and when it has nothing but a call's members:
what is written in a sentence, or shown as an example, is none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar

from ...exchange.parts import ToolCall
from ..arguments import json_call
from ..format import Grammar, JsonFormat, Sink
from ..scanner import GAP, Reading, Source

_KEYS = frozenset({"name", "parameters", "arguments", "type", "id"})
_FIRST = rf"\{{{GAP}\"(?:{'|'.join(sorted(_KEYS))})\"{GAP}:"
_LINE = re.compile(r"\n[ \t]*\Z")
_FENCE = re.compile(r"```\w*[ \t]*\n[ \t]*\Z")
_GRAMMAR = Grammar(head=rf"{GAP}(?=\{{)", after=rf"{GAP}(?P<next>;){GAP}(?=\{{)")


def begins_line(source: Source) -> bool:
    before = source.before(source.start)
    return bool(_LINE.search(before)) and not _FENCE.search(before)


class Llama3Json(JsonFormat):
    specials = ("<|python_tag|>",)
    opening = ("<|python_tag|>", "{")
    bare = ("{",)
    positional = True
    grammars: ClassVar = {"<|python_tag|>": _GRAMMAR, "{": _GRAMMAR}

    def read(self, source: Source, opener: str, sink: Sink) -> Reading[bool]:
        if opener == "{":
            first = (yield from source.match(self.pattern(_FIRST), source.start)) if begins_line(source) else None
            if first is None:
                return False
            source.at = source.start
        read = yield from super().read(source, opener, sink)
        source.at = max(source.at, source.start + 1) if not read else source.at
        return read

    def call(self, groups: Mapping[str, str | None], text: str) -> ToolCall | None:
        return json_call(text, self.tools, _KEYS)
