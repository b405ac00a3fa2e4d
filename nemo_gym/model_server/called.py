"""A reply's calls, as its client gets them: under the names that it declared (R6), and under ids that are its own again
where they were too long for the backend (R15). None stands for two calls, since results bind by it (R10)."""

from __future__ import annotations

from itertools import count

from msgspec.structs import replace

from ..exchange.ids import LONGEST, fitted
from ..exchange.parts import Part, ToolCall, ToolResult
from ..exchange.reply import Choice, ModelReply
from ..exchange.request import ModelRequest
from ..exchange.tools import Toolbox


def as_declared(reply: ModelReply, request: ModelRequest) -> ModelReply:
    if request.tools:
        toolbox = Toolbox(request.tools)
        reply = replace(reply, choices=tuple(_bind(choice, toolbox) for choice in reply.choices))
    return _distinct(_restored(reply, request))


def _bind(choice: Choice, toolbox: Toolbox) -> Choice:
    parts = tuple(toolbox.bind(part) if isinstance(part, ToolCall) else part for part in choice.parts)
    return choice if parts == choice.parts else replace(choice, parts=parts, origin=None)


def _restored(reply: ModelReply, request: ModelRequest) -> ModelReply:
    parts = [part for choice in reply.choices for part in choice.parts]
    if not any(isinstance(part, ToolCall) and LONGEST in (len(part.call_id), len(part.id)) for part in parts):
        return reply
    known = {fitted(one): one for one in _ids(request) if len(one) > LONGEST}
    if not known:
        return reply
    choices = [replace(one, parts=tuple(_known(part, known) for part in one.parts)) for one in reply.choices]
    return replace(reply, choices=tuple(choices))


def _distinct(reply: ModelReply) -> ModelReply:
    """The reply itself, unless its backend gave two calls of one choice the same id."""
    ids = [[part.call_id for part in choice.parts if type(part) is ToolCall] for choice in reply.choices]
    if not any(len(set(one)) < len(one) for one in ids):
        return reply
    return replace(reply, choices=tuple(map(_told_apart, reply.choices)))


def _told_apart(choice: Choice) -> Choice:
    taken = {part.call_id for part in choice.parts if type(part) is ToolCall}
    seen: set[str] = set()
    parts: list[Part] = []
    for part in choice.parts:
        if type(part) is ToolCall and part.call_id in seen:
            name = next(name for n in count(2) if (name := f"{part.call_id}_{n}") not in taken)
            part = replace(part, call_id=name, id="", origin=None)
            taken.add(name)
        if type(part) is ToolCall:
            seen.add(part.call_id)
        parts.append(part)
    return replace(choice, parts=tuple(parts))


def _ids(request: ModelRequest) -> set[str]:
    found = set()
    for message in request.messages:
        for part in message.parts:
            if isinstance(part, ToolCall):
                found |= {part.call_id, part.id}
            elif isinstance(part, ToolResult):
                found.add(part.call_id)
    return found


def _known(part: Part, known: dict[str, str]) -> Part:
    if not isinstance(part, ToolCall) or (part.call_id not in known and part.id not in known):
        return part
    return replace(part, call_id=known.get(part.call_id, part.call_id), id=known.get(part.id, part.id), origin=None)
