"""GLM-4.5 and GLM-4.7: a name, then keys and values in tags of their own.

4.5 writes the name on a line of its own and a newline between tags; 4.7 writes no white space at all, and calls
without arguments as the name alone. Either is read from either: white space between tags is layout, in a value it is
the value's.
"""

from __future__ import annotations

from typing import ClassVar

from ..format import NAME
from ..scanner import GAP
from ..tag_format import TagFormat, Tags


class Glm(TagFormat):
    specials = ("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
    opening = ("<tool_call>",)
    closing = "</arg_value>"
    nested = ("<tool_call>",)
    tags: ClassVar = {
        "<tool_call>": Tags(
            head=rf"{GAP}(?P<name>{NAME}){GAP}(?=«<arg_key>»|«</tool_call>»)",
            step=rf"{GAP}(?:«<arg_key>»(?P<key>[^<\udc00-\udfff]{{1,256}})«</arg_key>»{GAP}«<arg_value>»|(?P<end>«</tool_call>»))",
        )
    }
