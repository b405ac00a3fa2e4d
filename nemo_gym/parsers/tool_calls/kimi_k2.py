"""Kimi K2: calls in a section, each with the id under which its result comes back.

The id is the model's own (`functions.get_weather:0`), and its name is in it. A call outside of a section is one too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar

from ...exchange.parts import ToolCall
from ..arguments import json_arguments, named
from ..format import NAME, Grammar, JsonFormat
from ..scanner import GAP

_CALL = rf"{GAP}(?P<id>{NAME}){GAP}«<|tool_call_argument_begin|>»{GAP}"
_TAIL = rf"{GAP}«<|tool_call_end|>»"
_AFTER = rf"{GAP}(?:(?P<next>%s)|(?P<end>«<|tool_calls_section_end|>»))"
_ID = re.compile(r"(?:functions\.)?(?P<name>.+?)(?P<index>:\d+)?")


class KimiK2(JsonFormat):
    specials = (
        "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>",
        "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>",
    )  # fmt: skip
    opening = ("<|tool_calls_section_begin|>", "<|tool_call_begin|>")
    grammars: ClassVar = {
        "<|tool_calls_section_begin|>": Grammar(
            head=f"{GAP}«<|tool_call_begin|>»{_CALL}", tail=_TAIL, after=_AFTER % "(?=«<|tool_call_begin|>»)"
        ),
        "<|tool_call_begin|>": Grammar(head=_CALL, tail=_TAIL, after=_AFTER % "«<|tool_call_begin|>»"),
    }

    def call(self, groups: Mapping[str, str | None], text: str) -> ToolCall | None:
        arguments, id = json_arguments(text), groups["id"] or ""
        found = _ID.fullmatch(id)
        if arguments is None or found is None:
            return None
        return named(found["name"], arguments, self.tools, id if found["index"] else "")
