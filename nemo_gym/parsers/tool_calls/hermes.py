"""Hermes and Qwen3: a JSON object between `<tool_call>` tags.

Plain text after the first call is not part of the reply (P3). A call ends where its JSON ends, so its strings may quote
the tags; a call restarted inside a call is no JSON, and is read from the restart (P5).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from ...exchange.parts import ToolCall
from ..arguments import json_call
from ..format import Grammar, JsonFormat
from ..scanner import GAP


class Hermes(JsonFormat):
    specials = ("<tool_call>", "</tool_call>")
    opening = ("<tool_call>",)
    text_ends = "</tool_call>"
    grammars: ClassVar = {"<tool_call>": Grammar(head=GAP + r"(?=\{)", tail=GAP + "«</tool_call>»")}

    def call(self, groups: Mapping[str, str | None], text: str) -> ToolCall | None:
        return json_call(text, self.tools)
