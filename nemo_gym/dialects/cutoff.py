"""What of a reply a client gets where agents run each call they see: a call that was cut off is withheld (A19).

The record keeps it.
"""

from __future__ import annotations

import msgspec

from ..exchange.parts import Other, Part, Reasoning, Refusal, Text, ToolCall, merged
from ..exchange.reply import Choice


def says(part: Part, dialect: str) -> bool:
    """Whether a part is written in the dialect at all: empty ones are refused when a client gives them back."""
    if isinstance(part, Text | Refusal):
        return bool(part.text)
    if isinstance(part, Reasoning):
        return bool(part.text) or part.payload is not None
    if isinstance(part, Other):
        return part.dialect == dialect
    return isinstance(part, ToolCall)


def shown(choice: Choice, dialect: str) -> tuple[Part, ...]:
    """The parts that a client gets, whole."""
    parts = tuple(merged(choice.parts))
    if choice.finish != "length":
        return parts
    last = next((place for place in reversed(range(len(parts))) if says(parts[place], dialect)), None)
    return parts if last is None or not _cut_off(parts[last]) else parts[:last]


def _cut_off(part: Part) -> bool:
    if not isinstance(part, ToolCall):
        return False
    origin = part.origin
    status = origin.body.get("status") if origin is not None and origin.dialect == "responses" else None
    if status == "incomplete":
        return True
    if part.custom:
        return status != "completed"  # of free text only a provider of this dialect can say that it is whole
    if origin is not None and origin.dialect == "messages":
        return True  # its input is an object however little of it was generated
    try:
        msgspec.json.decode(part.arguments)
    except (msgspec.DecodeError, UnicodeError):
        return True
    return False
