"""DeepSeek V3 (and R1) and V3.1: calls in a section of special tokens; V3 fences the arguments as a code block."""

from __future__ import annotations

from typing import ClassVar

from ..format import NAME, Grammar, JsonFormat
from ..scanner import GAP

_BEGIN, _END, _CALL, _SEP, _CALLED = (
    f"<\uff5c{name}\uff5c>"
    for name in ("tool▁calls▁begin", "tool▁calls▁end", "tool▁call▁begin", "tool▁sep", "tool▁call▁end")
)
_AFTER = rf"{GAP}(?:(?P<next>(?=«{_CALL}»))|(?P<end>«{_END}»))"

_FENCED = rf"(?:json{GAP}(?=\S)|{GAP}(?=[^\sj]))"


class DeepSeekV3(JsonFormat):
    specials = (_BEGIN, _END, _CALL, _SEP, _CALLED)
    opening = (_BEGIN,)
    grammars: ClassVar = {
        _BEGIN: Grammar(
            head=rf"{GAP}«{_CALL}»{GAP}(?:function)?{GAP}«{_SEP}»{GAP}(?P<name>{NAME}){GAP}```{_FENCED}",
            tail=rf"{GAP}```{GAP}«{_CALLED}»",
            after=_AFTER,
        )
    }


class DeepSeekV31(JsonFormat):
    specials = DeepSeekV3.specials
    opening = (_BEGIN,)
    grammars: ClassVar = {
        _BEGIN: Grammar(
            head=rf"{GAP}«{_CALL}»{GAP}(?P<name>{NAME}){GAP}«{_SEP}»{GAP}",
            tail=rf"{GAP}«{_CALLED}»",
            after=_AFTER,
        )
    }
