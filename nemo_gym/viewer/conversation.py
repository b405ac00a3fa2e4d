"""A stored rollout as a person reads it: what was said in turn, bounded in number and in length.

Rows come from any agent and any verifier, so nothing of their shape is taken for granted: what is not known is shown as
JSON, and what is too long is cut in its middle and says so.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from msgspec import Struct

Kind = Literal["system", "user", "reasoning", "reply", "call", "result", "other"]

HEAD, TAIL = 3000, 1500
"""Characters that are kept of a long text."""
_LINE = 160
FIRST, LAST = 40, 20
"""Turns that are kept of a long conversation."""


class Turn(Struct, frozen=True):
    kind: Kind
    name: str
    """Whose: a tool, a role that is none of ours, or nothing."""
    text: str
    left_out: int
    """Characters that the text has more."""
    tokens: int | None = None


class Gap(Struct, frozen=True):
    """Turns that are not shown."""

    turns: int


def conversation(row: Mapping[str, Any]) -> list[Turn | Gap]:
    turns = list(_turns(row))
    if len(turns) <= FIRST + LAST:
        return list(turns)
    return [*turns[:FIRST], Gap(len(turns) - FIRST - LAST), *turns[-LAST:]]


def question(row: Mapping[str, Any]) -> str:
    """What was asked, in one line."""
    asked = [turn.text for turn in _given(row) if turn.kind == "user"]
    line = " ".join(asked[-1].split()) if asked else ""
    return line if len(line) <= _LINE else line[:_LINE] + "…"


def _turns(row: Mapping[str, Any]) -> Iterator[Turn]:
    yield from _given(row)
    response = row.get("response")
    names: dict[str, str] = {}
    for item in _list(response.get("output") if isinstance(response, Mapping) else None):
        yield from _item(item, names)
    error = response.get("error") if isinstance(response, Mapping) else None
    if error:
        yield _turn("other", "error", _json(error))


def _given(row: Mapping[str, Any]) -> Iterator[Turn]:
    asked = row.get("responses_create_params")
    if not isinstance(asked, Mapping):
        return
    if isinstance(asked.get("instructions"), str) and asked["instructions"]:
        yield _turn("system", "instructions", asked["instructions"])
    names: dict[str, str] = {}
    given = asked.get("input")
    if isinstance(given, str):
        yield _turn("user", "", given)
        return
    for item in _list(given):
        yield from _item(item, names)


def _item(item: Any, names: dict[str, str]) -> Iterator[Turn]:
    if not isinstance(item, Mapping):
        yield _turn("other", "", _json(item))
        return
    kind = item.get("type") or ("message" if "role" in item else "")
    tokens = _tokens(item)
    match kind:
        case "message":
            yield _message(item, tokens)
        case "reasoning":
            pieces = [*_list(item.get("summary")), *_list(item.get("content"))]
            text = "\n\n".join(_text(piece) for piece in pieces) or (
                "(encrypted)" if item.get("encrypted_content") else ""
            )
            if text:
                yield _turn("reasoning", "", text, tokens)
        case "function_call" | "custom_tool_call" | "mcp_call":
            name = str(item.get("name") or "")
            names[str(item.get("call_id"))] = name
            yield _turn("call", name, _arguments(item), tokens)
        case "function_call_output" | "custom_tool_call_output":
            yield _turn("result", names.get(str(item.get("call_id")), ""), _content(item.get("output")))
        case _:
            yield _turn("other", str(kind), _json({key: value for key, value in item.items() if key != "type"}), tokens)


def _message(item: Mapping[str, Any], tokens: int | None) -> Turn:
    role = str(item.get("role") or "assistant")
    kinds: dict[str, Kind] = {"assistant": "reply", "user": "user", "system": "system", "developer": "system"}
    return _turn(
        kinds.get(role, "other"),
        "" if role in kinds and role != "developer" else role,
        _content(item.get("content")),
        tokens,
    )


def _arguments(item: Mapping[str, Any]) -> str:
    """As the model wrote them; JSON that fits into no line is laid out."""
    written = item.get("arguments", item.get("input", ""))
    if not isinstance(written, str):
        return _json(written)
    if len(written) < 80:
        return written
    try:
        return json.dumps(json.loads(written), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return written


def _content(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(map(_text, content)) if isinstance(content, list) else "" if content is None else _json(content)


def _text(piece: Any) -> str:
    if isinstance(piece, str):
        return piece
    if not isinstance(piece, Mapping):
        return _json(piece)
    for key in ("text", "refusal"):
        if isinstance(piece.get(key), str):
            return piece[key]
    for key in ("image_url", "file_data", "data"):
        if isinstance(piece.get(key), str):
            return f"({piece.get('type', key)}, {len(piece[key]):,} characters)"
    return _json(piece)


def _tokens(item: Mapping[str, Any]) -> int | None:
    ids = item.get("generation_token_ids")
    return len(ids) if isinstance(ids, list) and ids else None


def _turn(kind: Kind, name: str, text: str, tokens: int | None = None) -> Turn:
    left_out = 0
    if len(text) > HEAD + TAIL + 200:
        left_out = len(text) - HEAD - TAIL
        text = f"{text[:HEAD]}\n… {left_out:,} characters left out …\n{text[-TAIL:]}"
    return Turn(kind, name[:120], text, left_out, tokens)


def _list(value: Any) -> Iterable[Any]:
    return value if isinstance(value, list) else ()


def _json(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, indent=1)
    except (TypeError, ValueError, RecursionError):
        return repr(value)
