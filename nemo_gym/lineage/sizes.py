"""What a conversation takes of memory, about: the texts in it, and something for each object.

It counts a text that several conversations share in each of them, so it is never too little.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ..exchange.parts import Media, Message, Other, Part, ToolCall, ToolResult
from ..exchange.tools import Tool

OBJECT = 256
"""Of a part or a message beside its text: itself, and what it was read from."""
_encode = msgspec.json.Encoder(enc_hook=repr).encode


def of_message(message: Message) -> int:
    return OBJECT + of_parts(message.parts)


def of_parts(parts: Iterable[Part]) -> int:
    return sum([OBJECT + _of_part(part) for part in parts])


def of_tools(tools: Iterable[Tool]) -> int:
    return sum([OBJECT + len(tool.description or "") + _of_json([tool.parameters, tool.body]) for tool in tools])


def _of_part(part: Part) -> int:
    if isinstance(part, ToolCall):
        return len(part.arguments)
    if isinstance(part, ToolResult):
        return of_parts(part.parts)
    if isinstance(part, Media):
        return len(part.source)
    if isinstance(part, Other):
        return _of_json(part.body)
    return len(part.text)


def _of_json(value: object) -> int:
    try:
        return len(_encode(value))
    except (UnicodeEncodeError, TypeError):
        return len(repr(value))
