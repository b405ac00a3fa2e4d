"""One normal form of a conversation: what clients rewrite without meaning it is the same here.

Equal here: one string and one text part; an argument string and its re-serialisation; item ids of any kind;
a tool call id and what is left of it when only letters and digits, at most 40, are kept; `developer` and
`system`; reasoning kept or dropped; whitespace kept or dropped around what the assistant says; one assistant turn in
one message or in several. Everything else differs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Any

import msgspec
from msgspec import Struct

from ..exchange.parts import (
    Media,
    Message,
    Other,
    Part,
    Reasoning,
    Refusal,
    Text,
    ToolCall,
    ToolResult,
    element_of,
)
from ..exchange.tools import Tool

_NOT_ALPHANUMERIC = re.compile(r"[^A-Za-z0-9]")
_ID_LENGTH = 40
_UNMEANT = frozenset({"id", "status", "cache_control"})
_canonical = msgspec.json.Encoder(order="sorted").encode


class Turn(Struct, frozen=True, gc=False):
    """One message, or the neighbouring messages of one assistant turn."""

    digest: bytes
    end: int
    """How many messages this turn and all before it are."""
    role: str


def turns(messages: Sequence[Message], known: Sequence[Turn] = ()) -> list[Turn]:
    """The conversation in normal form, from where the `known` turns end. Messages that say nothing make no turn."""
    found = list(known)
    start = found[-1].end if found else 0
    while start < len(messages):
        role = _role(messages[start])
        end = start + 1
        while role == "assistant" and end < len(messages) and messages[end].role == "assistant":
            end += 1
        digest = _turn(role, messages[start:end])
        if digest:
            found.append(Turn(digest, end, role))
        elif found and role == "assistant":
            found[-1] = Turn(found[-1].digest, end, found[-1].role)
        start = end
    return found


def _turn(role: str, messages: Sequence[Message]) -> bytes:
    """The digest of one turn; nothing when it says nothing. That of a shared message is kept with it."""
    element = element_of(messages[0]) if len(messages) == 1 else None
    if element is not None and element.turn is not None:
        return element.turn
    atoms = list(_atoms([part for message in messages for part in message.parts]))
    if role == "assistant":
        atoms = [trimmed for atom in atoms if (trimmed := _trimmed(atom))]
    digest = _digest([role, atoms]) if atoms else b""
    if element is not None:
        element.turn = digest
    return digest


def chain(before: bytes, turn: bytes) -> bytes:
    """The digest of a conversation that goes on from `before` with one more turn."""
    return blake2b(before + turn, digest_size=16).digest()


def tools_digest(tools: Sequence[Tool]) -> bytes:
    if not tools:
        return b""
    return _digest([[tool.namespace, tool.name, tool.description, tool.parameters, tool.body] for tool in tools])


def _digest(value: Any) -> bytes:
    try:
        data = _canonical(value)
    except (UnicodeEncodeError, TypeError):
        data = repr(value).encode("utf-8", "surrogatepass")
    return blake2b(data, digest_size=16).digest()


def _role(message: Message) -> str:
    return "system" if message.role == "developer" else message.role


def _atoms(parts: Iterable[Part]) -> Iterator[tuple[Any, ...]]:
    text = ""
    for part in parts:
        if isinstance(part, Text | Refusal):
            text += part.text
            continue
        if isinstance(part, Reasoning):
            continue
        if text:
            yield "text", text
            text = ""
        yield _atom(part)
    if text:
        yield "text", text


def _trimmed(atom: tuple[Any, ...]) -> tuple[Any, ...]:
    """Nothing where a text is whitespace alone: what stands between reasoning and a call is often left out."""
    if atom[0] != "text":
        return atom
    text = atom[1].strip()
    return ("text", text) if text else ()


def _atom(part: Part) -> tuple[Any, ...]:
    if isinstance(part, ToolCall):
        arguments = part.arguments if part.custom else _parsed(part.arguments)
        return "call", part.name, arguments, short_id(part.call_id)
    if isinstance(part, ToolResult):
        return "result", short_id(part.call_id), list(_atoms(part.parts))
    if isinstance(part, Media):
        return "media", part.kind, part.source
    if isinstance(part, Other):
        return "other", {name: value for name, value in part.body.items() if name not in _UNMEANT}
    raise TypeError(f"no such part: {type(part).__name__}")


def short_id(call_id: str) -> str:
    return _NOT_ALPHANUMERIC.sub("", call_id)[:_ID_LENGTH]


def _parsed(arguments: str) -> Any:
    try:
        return msgspec.json.decode(arguments) if arguments.strip() else {}
    except (msgspec.DecodeError, UnicodeError):
        return arguments
