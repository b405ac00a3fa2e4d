"""`reasoning_details`: thoughts with what only their provider can read, in the shape that gateways gave it.

This API has no field for a signature or for sealed thoughts, and without them a provider does not take its thoughts
back. A message has the list only where there is such a thing; it holds all the message's thoughts then, each once and
at its `index`. A client gives it back as it came.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from ...exchange.parts import Origin, Part, Reasoning, merged
from ..signature import is_redacted, payload_of

_NAME = "chat"
_PIECES = frozenset({"text", "summary", "data", "signature"})
_TEXTS = {"reasoning.text": "text", "reasoning.summary": "summary"}


def write_details(parts: Iterable[Part]) -> dict[str, Any]:
    """The field, or nothing."""
    thoughts = [part for part in merged(parts) if isinstance(part, Reasoning) and (part.text or part.payload)]
    if all(thought.payload is None for thought in thoughts):
        return {}
    return {"reasoning_details": [_write(thought, index) for index, thought in enumerate(thoughts)]}


def _write(thought: Reasoning, index: int) -> dict[str, Any]:
    named = {"id": thought.id} if thought.id else {}
    if is_redacted(thought):
        return {"type": "reasoning.encrypted", "data": thought.payload, **named, "index": index}
    signed = {} if thought.payload is None else {"signature": thought.payload}
    return {"type": "reasoning.text", "text": thought.text, **signed, **named, "index": index}


def numbered(details: Any) -> Any:
    """A backend's own list as a client of a stream can fold it: by `index`, where it numbers its details at all."""
    if not isinstance(details, list) or not any(isinstance(one, Mapping) and "index" in one for one in details):
        return details
    return [{**one, "index": place} if isinstance(one, Mapping) else one for place, one in enumerate(details)]


def gathered(told: Any, pieces: Any) -> Any:
    """What a stream's next delta makes of the list: more of a detail, or more details."""
    if not isinstance(told, list) or not isinstance(pieces, list):
        return pieces
    told = list(told)
    for piece in pieces:
        place = next((place for place, one in enumerate(told) if _is_more(one, piece)), None)
        if place is None:
            told.append(piece)
        else:
            told[place] = _joined(told[place], piece)
    return told


def _is_more(one: Any, piece: Any) -> bool:
    if not isinstance(one, Mapping) or not isinstance(piece, Mapping) or not isinstance(piece.get("index"), int):
        return False
    return all(one.get(field) == piece.get(field) for field in ("index", "type"))


def _joined(one: Mapping[str, Any], piece: Mapping[str, Any]) -> dict[str, Any]:
    whole = dict(one)
    for field, value in piece.items():
        before = whole.get(field)
        if field in _PIECES and isinstance(value, str) and isinstance(before, str):
            whole[field] = before + value
        elif value is not None:
            whole[field] = value
    return whole


def read_details(details: Any) -> list[Reasoning]:
    """The thoughts of a message that came back, if any of them bears a payload.

    Clients keep the pieces of a stream as they came or put them together. What is no detail says nothing."""
    found: list[Reasoning] = []
    last: Mapping[str, Any] = {}
    for detail in details if isinstance(details, list) else ():
        piece = _read(detail) if isinstance(detail, Mapping) else None
        if piece is None:
            continue
        if found and found[-1].payload is None and _continues(last, detail):
            before = found[-1]
            found[-1] = replace(before, text=before.text + piece.text, id=before.id or piece.id, payload=piece.payload)
        else:
            found.append(piece)
        last = detail
    whole = [_checked(thought) for thought in found]
    return whole if any(thought.payload for thought in whole) else []


def _read(detail: Mapping[str, Any]) -> Reasoning | None:
    kind, origin = _string(detail, "type"), Origin(_NAME, detail)
    name = _string(detail, "id")
    if kind == "reasoning.encrypted":
        data = _string(detail, "data")
        return Reasoning("", name, data, origin) if data else None
    if kind not in _TEXTS:
        return None
    text, signed = _string(detail, _TEXTS[kind]), _string(detail, "signature")
    return Reasoning(text, name, signed or None, origin) if text or signed else None


def _string(detail: Mapping[str, Any], field: str) -> str:
    value = detail.get(field)
    return value if isinstance(value, str) else ""


def _continues(last: Mapping[str, Any], detail: Mapping[str, Any]) -> bool:
    """Whether a detail is more of the one before it: of its kind, or what was sealed beside a summary of it."""
    kinds = (last.get("type"), detail.get("type"))
    beside = kinds == ("reasoning.summary", "reasoning.encrypted")
    if kinds[0] != kinds[1] and not beside:
        return False
    return all(_same(last.get(field), detail.get(field)) for field in (("id",) if beside else ("index", "id")))


def _same(first: Any, second: Any) -> bool:
    """Whether two details may be of one thought by what they say of it; some say nothing."""
    return first in (None, "") or second in (None, "") or first == second


def _checked(thought: Reasoning) -> Reasoning:
    """A signature of our own says that the text came from here, and nothing to any provider."""
    return replace(thought, payload=payload_of(thought.text, thought.payload or ""))
