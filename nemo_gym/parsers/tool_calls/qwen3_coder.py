"""Qwen3-Coder: functions and parameters as XML-like tags inside `<tool_call>`.

A value stands on lines of its own: one newline at each of its ends is layout. Models leave the outer tag out at times:
a function that stands by itself is a call too, and a closing outer tag behind it is no text.
"""

from __future__ import annotations

from typing import ClassVar

from ..format import NAME
from ..scanner import GAP
from ..tag_format import TagFormat, Tags

_KEY = rf"{GAP}<parameter=(?P<key>[^<>\n\udc00-\udfff]{{1,256}})>"
_END = rf"{GAP}</function>"


class Qwen3Coder(TagFormat):
    specials = ("<tool_call>", "</tool_call>")
    opening = ("<tool_call>", "<function=")
    stray = ("<function=",)
    closing = "</parameter>"
    nested = ("<tool_call>",)
    tags: ClassVar = {
        "<tool_call>": Tags(
            head=rf"{GAP}<function=(?P<name>{NAME})>",
            step=rf"{_KEY}|{_END}{GAP}(?:(?P<end>«</tool_call>»)|<function=(?P<name>{NAME})>)",
        ),
        "<function=": Tags(head=rf"(?P<name>{NAME})>", step=rf"{_KEY}|(?P<end>{_END})", after=rf"{GAP}«</tool_call>»"),
    }

    def value(self, text: str) -> str:
        return text.removeprefix("\n").removesuffix("\n")
