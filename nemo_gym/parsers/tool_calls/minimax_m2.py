"""MiniMax M2: `<invoke>` with parameters as tags, several of them in one `<minimax:tool_call>`, or by themselves."""

from __future__ import annotations

from typing import ClassVar

from ..format import NAME
from ..scanner import GAP
from ..tag_format import TagFormat, Tags

_INVOKE = "<invoke name="
_NAME = rf"[\"']?(?P<name>{NAME})[\"']?{GAP}>"
_STEP = rf"{GAP}(?:<parameter name=[\"']?(?P<key>[^<>\"'\n\udc00-\udfff]{{1,256}}+)[\"']?{GAP}>|(?P<end></invoke>))"
_AFTER = rf"{GAP}(?:(?P<next>%s)|«</minimax:tool_call>»)"


class MinimaxM2(TagFormat):
    specials = ("<minimax:tool_call>", "</minimax:tool_call>")
    opening = ("<minimax:tool_call>", _INVOKE)
    stray = (_INVOKE,)
    closing = "</parameter>"
    nested = opening
    tags: ClassVar = {
        "<minimax:tool_call>": Tags(head=f"{GAP}{_INVOKE}{_NAME}", step=_STEP, after=_AFTER % f"(?={_INVOKE})"),
        _INVOKE: Tags(head=_NAME, step=_STEP, after=_AFTER % _INVOKE),
    }
