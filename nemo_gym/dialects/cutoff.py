"""A tool call that was cut off is withheld where agents would run it (A19); the record keeps it."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from ..exchange.parts import Part, ToolCall, merged
from ..exchange.reply import Choice


def shown(choice: Choice, says: Callable[[Part], bool]) -> tuple[Part, ...]:
    """The parts that a client gets, whole; `says` tells which of them the dialect writes at all."""
    parts = tuple(merged(choice.parts))
    if choice.finish != "length":
        return parts
    last = next((place for place in reversed(range(len(parts))) if says(parts[place])), None)
    return parts if last is None or not _cut_off(parts[last]) else parts[:last]


def _cut_off(part: Part) -> bool:
    if not isinstance(part, ToolCall):
        return False
    if part.origin is not None and part.origin.dialect == "responses":
        return part.origin.body.get("status") == "incomplete"  # a provider of this dialect says so itself
    if part.custom:
        return True
    if part.origin is not None and part.origin.dialect == "messages":
        return True  # its input is an object however little of it was generated
    try:
        msgspec.json.decode(part.arguments or "{}")
    except (msgspec.DecodeError, UnicodeError):
        return True
    return False
