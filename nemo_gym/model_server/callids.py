"""Ids that were too long for the backend (R15): a reply that names what stood for one gets the client's own again."""

from __future__ import annotations

from msgspec.structs import replace

from ..exchange.ids import LONGEST, fitted
from ..exchange.parts import Part, ToolCall, ToolResult
from ..exchange.reply import ModelReply
from ..exchange.request import ModelRequest


def restored(reply: ModelReply, request: ModelRequest) -> ModelReply:
    parts = [part for choice in reply.choices for part in choice.parts]
    if not any(isinstance(part, ToolCall) and LONGEST in (len(part.call_id), len(part.id)) for part in parts):
        return reply
    known = {fitted(one): one for one in _ids(request) if len(one) > LONGEST}
    if not known:
        return reply
    choices = [replace(one, parts=tuple(_restored(part, known) for part in one.parts)) for one in reply.choices]
    return replace(reply, choices=tuple(choices))


def _ids(request: ModelRequest) -> set[str]:
    found = set()
    for message in request.messages:
        for part in message.parts:
            if isinstance(part, ToolCall):
                found |= {part.call_id, part.id}
            elif isinstance(part, ToolResult):
                found.add(part.call_id)
    return found


def _restored(part: Part, known: dict[str, str]) -> Part:
    if not isinstance(part, ToolCall) or (part.call_id not in known and part.id not in known):
        return part
    return replace(part, call_id=known.get(part.call_id, part.call_id), id=known.get(part.id, part.id), origin=None)
