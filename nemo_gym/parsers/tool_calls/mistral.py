"""Mistral: `[TOOL_CALLS]`, then a name and its arguments (v11 on), or a list of JSON objects (before)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from ...exchange.parts import ToolCall
from ..arguments import json_call
from ..format import NAME, Grammar, JsonFormat, Sink
from ..scanner import GAP, Reading, Source

_ID = r"(?:«[CALL_ID]»(?P<id>[A-Za-z0-9]{1,64}))?"


class Mistral(JsonFormat):
    specials = ("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]")
    opening = ("[TOOL_CALLS]",)
    grammars: ClassVar = {
        "[TOOL_CALLS]": Grammar(head=rf"{GAP}(?:(?P<name>{NAME}){_ID}(?:«[ARGS]»)?{GAP})?(?=\{{)"),
        "[": Grammar(head=GAP, after=rf"{GAP}(?:(?P<next>,){GAP}(?=\{{)|(?P<end>\]))"),
    }

    def read(self, source: Source, opener: str, sink: Sink) -> Reading[bool]:
        found = yield from source.match(self.pattern(rf"{GAP}\[{GAP}(?=\{{)"), source.at)
        if found is not None:
            source.at = found[0]
        return (yield from super().read(source, opener if found is None else "[", sink))

    def call(self, groups: Mapping[str, str | None], text: str) -> ToolCall | None:
        return super().call(groups, text) if groups.get("name") else json_call(text, self.tools)
