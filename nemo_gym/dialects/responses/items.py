"""Items to and from parts: whatever shape clients replay goes in, one shape comes out.

An assistant's turn is one message, however many items it was: its calls stay together, so that results bind by id
(R10). Where an item says something we do not model, it stays as the origin of its parts.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeGuard

from ...exchange.ids import LONGEST, fitted
from ...exchange.parts import Media, Message, Origin, Other, Part, Reasoning, Refusal, Text, ToolCall, ToolResult
from . import hosted

NAME = "responses"
_log = logging.getLogger(__name__)
_warned: set[str] = set()

_TEXTS = frozenset({"input_text", "output_text", "text", "reasoning_text", "summary_text"})
_OPAQUE = re.compile(r"[A-Za-z0-9+/=_-]{200,}\Z")


def read_items(items: Iterable[Mapping[str, Any]]) -> Iterator[Message]:
    """Input items as messages, in their order."""
    turn: list[Part] = []
    calls: dict[str, str] = {}
    """Of the tools in hosted.py: some outputs name the item and not the call."""
    for item in items:
        parts = _assistant_parts(item)
        if parts is not None:
            turn += parts
            if hosted.is_call(item):
                calls.update((part.id, part.call_id) for part in parts if isinstance(part, ToolCall))
            continue
        message = _message(item, calls)
        if isinstance(message, Other):
            turn.append(message)
            continue
        if message is None:
            continue
        if turn:
            yield Message("assistant", tuple(turn))
            turn = []
        yield message
    if turn:
        yield Message("assistant", tuple(turn))


def _kind(item: Mapping[str, Any]) -> str:
    kind = item.get("type")
    return kind if kind is not None else "message" if "role" in item else ""


def _assistant_parts(item: Mapping[str, Any]) -> list[Part] | None:
    """The parts of an item that belongs to an assistant's turn; None for any other item."""
    kind = _kind(item)
    if kind == "message" and item.get("role") == "assistant":
        return list(read_content(item.get("content"), _string(item, "id") or "", Origin(NAME, item)))
    if kind in ("function_call", "custom_tool_call"):
        return [read_call(item)]
    if hosted.is_call(item):
        return [hosted.read_call(item)]
    if kind == "reasoning":
        reasoning = read_reasoning(item)
        return [] if reasoning is None else [reasoning]
    return None


def _string(item: Mapping[str, Any], field: str) -> str | None:
    """A field that no schema checks; anything but a string is as good as none."""
    value = item.get(field)
    return value if isinstance(value, str) else None


_BARE = frozenset({"input_image", "input_file", "input_audio"})


def _message(item: Mapping[str, Any], calls: Mapping[str, str]) -> Message | Other | None:
    kind, origin = _kind(item), Origin(NAME, item)
    if kind == "message":
        return Message(item["role"], tuple(read_content(item["content"])), origin)
    if kind in ("function_call_output", "custom_tool_call_output"):
        result = ToolResult(item["call_id"], tuple(read_content(item["output"])), origin=origin)
        return Message("tool", (result,), origin)
    if hosted.is_output(item):
        return Message("tool", (hosted.read_output(item, calls),), origin)
    if kind == "additional_tools":
        return None  # hoisted into the tools (R5)
    if kind in _BARE and isinstance(found := _read_part(item, "", None), Media):
        return Message("user", (found,), origin)  # A11: a part that stands as an item of its own
    parts = tuple(_readable(item))
    if parts:
        return Message("user", parts, origin)
    _warn_once(kind, "an input item of type %r has no readable text; only a Responses backend gets it", kind)
    return Other(NAME, item)  # what a provider ran, mostly: it belongs to the turn around it


def _readable(item: Mapping[str, Any]) -> Iterator[Part]:
    """The texts of an item that no schema checked."""
    content = item.get("content") or item.get("text") or item.get("summary")
    if not content and _is_text(item.get("encrypted_content")):
        content = item["encrypted_content"]
    if isinstance(content, str):
        yield Text(content)
        return
    for part in content if isinstance(content, list) else ():
        if isinstance(part, dict) and isinstance(part.get("type"), str):
            known = part["type"] not in _TEXTS or isinstance(part.get("text"), str)
            found = _read_part(part, "", None) if known and part["type"] != "refusal" else None
            if isinstance(found, Text) and found.text:
                yield found


def _warn_once(key: str, message: str, *values: Any) -> None:
    if key not in _warned and len(_warned) < 1000:
        _warned.add(key)
        _log.warning(message, *values)


def read_content(content: Any, item_id: str = "", origin: Origin | None = None) -> Iterator[Part]:
    if isinstance(content, str):
        yield Text(content, item_id, origin)
        return
    for part in content or ():
        found = _read_part(part, item_id, origin)
        if found is not None:
            yield found


def _read_part(part: Mapping[str, Any], item_id: str, origin: Origin | None) -> Part | None:
    kind, own = part.get("type"), Origin(NAME, part)
    if kind in _TEXTS:
        return Text(part["text"], item_id, origin or own)
    if kind == "refusal":
        return Refusal(part["refusal"], item_id)
    if kind == "input_image" and isinstance(part.get("image_url"), str):
        return Media("image", part["image_url"], own)
    if kind == "input_file":
        source = part.get("file_data") or part.get("file_url")
        return Media("document", source, own) if isinstance(source, str) else Other(NAME, part)
    if kind == "input_audio" and isinstance(part.get("input_audio"), Mapping):
        audio = part["input_audio"]
        return Media("audio", f"data:audio/{audio.get('format')};base64,{audio.get('data')}", own)
    if kind == "encrypted_content":
        value = part.get("encrypted_content") or part.get("text")
        return Text(value, item_id, own) if _is_text(value) else Other(NAME, part)
    return Other(NAME, part)


def _is_text(value: Any) -> TypeGuard[str]:
    """R3: clients send readable text under the name of an encrypted one; one long token is opaque."""
    return isinstance(value, str) and value != "" and not _OPAQUE.match(value)


def read_call(item: Mapping[str, Any]) -> ToolCall:
    custom = item["type"] == "custom_tool_call"
    return ToolCall(
        item["name"],
        item["input"] if custom else item["arguments"],
        item["call_id"],
        _string(item, "id") or "",
        _string(item, "namespace"),
        custom,
        Origin(NAME, item),
    )


def read_reasoning(item: Mapping[str, Any]) -> Reasoning | None:
    """R4: the text is in `content`, else in `summary`, else bare; None when there is nothing at all."""
    text = texts_of(item.get("content")) or texts_of(item.get("summary")) or item.get("text") or ""
    payload = item.get("encrypted_content") or None
    if not text and payload is None:
        return None
    return Reasoning(text, _string(item, "id") or "", payload, Origin(NAME, item))


def texts_of(parts: Any) -> str:
    if isinstance(parts, str):
        return parts
    return "\n".join(part["text"] for part in parts or () if isinstance(part.get("text"), str) and part["text"])


def read_output(items: Iterable[Mapping[str, Any]]) -> Iterator[Part]:
    """A backend's output items as the parts of a reply."""
    for item in items:
        parts = _assistant_parts(item)
        if parts is not None:
            yield from parts
        elif isinstance(item["type"], str):
            yield Other(NAME, item)
        else:
            raise TypeError("an item has a type")


# ---- writing: for a backend


def write_items(message: Message, tools: Mapping[str, hosted.Hosted]) -> Iterator[dict[str, Any]]:
    """A message as input items. What came as an item goes as that item; `tools` are those of hosted.py."""
    if message.origin is not None and message.origin.dialect == NAME:
        yield _fitting(message.origin.body)
        return
    if message.role == "tool":
        for part in message.parts:
            if isinstance(part, ToolResult):
                yield _write_result(part)
        return
    if message.role != "assistant":
        yield {"type": "message", "role": message.role, "content": list(_write_parts(message.parts))}
        return
    last: Mapping[str, Any] | None = None
    for part in message.parts:
        origin = getattr(part, "origin", None)
        if origin is not None and origin.dialect == NAME:
            if origin.body is not last:
                last = origin.body
                yield _for_provider(part, origin.body)
        elif not (isinstance(part, Refusal) and last is not None):
            yield from _write_assistant(part, tools)


_IDS = ("id", "call_id")


def _fitting(item: Mapping[str, Any]) -> dict[str, Any]:
    """The item, its ids no longer than a provider takes (R15)."""
    written = dict(item)
    for field in _IDS:
        value = written.get(field)
        if isinstance(value, str) and len(value) > LONGEST:
            written[field] = fitted(value)
    return written


def _for_provider(part: Part, item: Mapping[str, Any]) -> dict[str, Any]:
    written = _fitting(item)
    if isinstance(part, Reasoning):
        # R4: a Responses provider refuses `content` (and a null `status`) on reasoning, and wants a summary.
        written = {key: value for key, value in written.items() if key not in ("content", "status", "text")}
        if not written.get("summary"):
            written["summary"] = [{"type": "summary_text", "text": part.text}] if part.text else []
    return written


def _write_result(result: ToolResult) -> dict[str, Any]:
    if result.origin is not None and result.origin.dialect == NAME:
        return _fitting(result.origin.body)
    output = _write_output(result.parts)
    return {"type": "function_call_output", "call_id": fitted(result.call_id), "output": output}


def _write_assistant(part: Part, tools: Mapping[str, hosted.Hosted]) -> Iterator[dict[str, Any]]:
    if isinstance(part, Text):
        yield {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": part.text}]}
    elif isinstance(part, Refusal):
        yield {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": part.text}]}
    elif isinstance(part, ToolCall):
        yield _fitting(write_call(part, part.id, tools))
    elif isinstance(part, Reasoning) and part.payload is not None:
        summary = [{"type": "summary_text", "text": part.text}] if part.text else []
        item = {"type": "reasoning", "summary": summary, "encrypted_content": part.payload}
        yield _fitting(item | ({"id": part.id} if part.id else {}))
    elif isinstance(part, Other) and part.dialect == NAME:
        yield dict(part.body)


def _write_output(parts: Iterable[Part]) -> str | list[dict[str, Any]]:
    parts = tuple(parts)
    if all(isinstance(part, Text) for part in parts) and len(parts) < 2:
        return "".join(part.text for part in parts if isinstance(part, Text))
    return list(_write_parts(parts))


def _write_parts(parts: Iterable[Part]) -> Iterator[dict[str, Any]]:
    for part in parts:
        if isinstance(part, Text):
            yield {"type": "input_text", "text": part.text}
        elif isinstance(part, Media):
            yield _write_media(part)
        elif isinstance(part, Other) and part.dialect == NAME:
            yield dict(part.body)


def _write_media(part: Media) -> dict[str, Any]:
    """What Chat Completions says beside it has a place here too."""
    told = part.origin.body if part.origin is not None and part.origin.dialect == "chat" else {}
    if part.kind == "image":
        detail = (told.get("image_url") or {}).get("detail") or "auto"
        return {"type": "input_image", "image_url": part.source, "detail": detail}
    head, _, data = part.source.partition(";base64,")
    if part.kind == "audio" and head.startswith("data:audio/"):
        return {"type": "input_audio", "input_audio": {"data": data, "format": head.removeprefix("data:audio/")}}
    if not part.source.startswith("data:"):
        return {"type": "input_file", "file_url": part.source}
    name = (told.get("file") or {}).get("filename")
    return {"type": "input_file", "file_data": part.source, **({"filename": name} if name else {})}


def write_call(
    call: ToolCall, item_id: str, tools: Mapping[str, hosted.Hosted], status: str | None = None
) -> dict[str, Any]:
    """A call as its item; `status` is for what this server emits."""
    if call.name in tools and not call.custom and call.namespace is None:
        kind = tools[call.name]
        if call.origin is not None and call.origin.dialect == NAME and call.origin.body.get("type") == kind.call:
            return {**call.origin.body, "id": item_id, "status": status or "completed"}
        return hosted.write_call(kind, call, item_id, status or "completed")
    if call.custom:
        item = {"type": "custom_tool_call", "call_id": call.call_id, "name": call.name, "input": call.arguments}
    else:
        item = {"type": "function_call", "call_id": call.call_id, "name": call.name, "arguments": call.arguments}
    if call.namespace is not None:
        item["namespace"] = call.namespace
    if item_id:
        item["id"] = item_id
    if status is not None:
        item["status"] = status
    return item
