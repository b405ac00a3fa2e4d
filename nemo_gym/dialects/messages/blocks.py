"""Content blocks to and from parts.

A part keeps its block as its origin, so that a backend of this dialect gets it as it came, `cache_control` and
citations included. Results of tools become messages of their own, since that is what they are to every other dialect.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from ...exchange.parts import (
    Media,
    Message,
    Origin,
    Other,
    Part,
    Reasoning,
    Refusal,
    Text,
    ToolCall,
    ToolResult,
    read_once,
)
from ...exchange.tools import Toolbox
from .. import codec
from ..signature import is_redacted, payload_of
from . import ids

NAME = "messages"
ATTRIBUTION = "x-anthropic-billing-header:"
"""Begins a system text that an agent writes for its provider: it differs in every call and is not for a model."""
_CUT = "[{} left out: this model takes none]"


def read_messages(system: Any, messages: Iterable[Mapping[str, Any]]) -> Iterator[Message]:
    if system:
        yield Message("system", tuple(_system(system)))
    for message in messages:
        made = read_once(message, read_message)
        if type(made) is Message:
            yield made
        else:
            yield from made  # type: ignore[misc]


def read_message(message: Mapping[str, Any]) -> Message | tuple[Message, ...]:
    """Several only where one of the user's holds results and words, or several results."""
    role, content, origin = message["role"], message["content"], Origin(NAME, message)
    if role == "system":
        return Message("system", tuple(_system(content)), origin)
    if role == "assistant":
        return Message("assistant", tuple(read_content(content)), origin)
    made = tuple(_user(read_content(content)))
    return Message(made[0].role, made[0].parts, origin) if len(made) == 1 else made


def _system(content: Any) -> list[Part]:
    return [part for part in read_content(content) if not (isinstance(part, Text) and is_attribution(part.text))]


def is_attribution(text: str) -> bool:
    return text.startswith(ATTRIBUTION)


def _user(parts: list[Part]) -> Iterator[Message]:
    """Results first, as they follow the calls; then what the user says."""
    rest = [part for part in parts if type(part) is not ToolResult]
    if len(rest) < len(parts):
        for part in parts:
            if type(part) is ToolResult:
                yield Message("tool", (part,))
    if rest or not parts:
        yield Message("user", tuple(rest))


def read_content(content: Any) -> list[Part]:
    if isinstance(content, str):
        return [Text(content)]
    parts: list[Part] = []
    for block in content or ():
        read_block(block, parts)
    return parts


def read_block(block: Mapping[str, Any], parts: list[Part]) -> None:
    """Adds what the block says to the parts."""
    kind, origin = block["type"], Origin(NAME, block)
    if kind == "text":
        parts.append(Text(block["text"], "", origin))
    elif kind == "tool_use":
        call_id = ids.original(block["id"])
        parts.append(ToolCall(block["name"], write_arguments(block["input"]), call_id, origin=origin))
    elif kind == "tool_result":
        inner = tuple(read_content(block.get("content")))
        is_error = block.get("is_error") is True
        parts.append(ToolResult(ids.original(block["tool_use_id"]), inner, is_error, origin))
    elif kind == "thinking":
        text = block["thinking"]
        parts.append(Reasoning(text, payload=payload_of(text, block.get("signature") or ""), origin=origin))
    elif kind == "redacted_thinking":
        parts.append(Reasoning("", payload=block["data"], origin=origin))
    elif kind in ("image", "document"):
        parts += _media(kind, block, origin)
    elif kind == "search_result":
        texts = [block["title"], block["source"], *(part["text"] for part in block["content"])]
        parts.append(Text("\n".join(texts), origin=origin))
    elif kind == "tool_reference":
        parts.append(Text(f"The tool {block['tool_name']} is loaded.", origin=origin))
    else:
        parts.append(Other(NAME, block))


def write_arguments(value: Any) -> str:
    """An object as a model would have written it."""
    return msgspec.json.format(codec.encode(value), indent=0).decode()


def _media(kind: Any, block: Mapping[str, Any], origin: Origin) -> Iterator[Part]:
    source = block["source"]
    form = source.get("type")
    if form == "base64":
        yield Media(kind, f"data:{source['media_type']};base64,{source['data']}", origin)
    elif form == "url":
        yield Media(kind, source["url"], origin)
    elif form == "text":
        yield Text(_headed(block, source["data"]), origin=origin)
    elif form == "content":
        inner = read_content(source["content"])
        if all(isinstance(part, Text) for part in inner):
            yield Text(_headed(block, "".join(part.text for part in inner if isinstance(part, Text))), origin=origin)
        else:
            head = _headed(block, "")
            yield from ((Text(head),) if head else ())
            yield from inner
    else:
        yield Other(NAME, block)


def _headed(document: Mapping[str, Any], text: str) -> str:
    heads = [document[field] for field in ("title", "context") if isinstance(document.get(field), str)]
    return "\n".join([*heads, text] if text else heads)


# ---- writing: for a backend


def write_messages(messages: Iterable[Message], toolbox: Toolbox) -> list[dict[str, Any]]:
    """Messages of this API: results of one turn and what the user adds to them are one message."""
    written: list[dict[str, Any]] = []
    results = False
    for message in messages:
        role = _ROLES[message.role]
        content = [block for part in message.parts for block in _write_part(part, toolbox)]
        if not content:
            continue
        if results and role == "user":
            written[-1]["content"] += content
        elif message.role == "tool":
            written.append({"role": role, "content": content})
        else:
            written.append({"role": role, "content": write_text(message.parts) or content})
        results = message.role == "tool"
    return written


_ROLES = {"user": "user", "tool": "user", "assistant": "assistant", "system": "system", "developer": "system"}


def write_text(parts: tuple[Part, ...]) -> str:
    """Of a message that is one plain text; else nothing."""
    only = parts[0] if len(parts) == 1 else None
    return only.text if isinstance(only, Text) and not _is_block(only) else ""


def _is_block(part: Part) -> bool:
    origin = getattr(part, "origin", None)
    return origin is not None and origin.dialect == NAME


def write_blocks(parts: Iterable[Part]) -> list[dict[str, Any]]:
    """Blocks of a system prompt or of a result: nothing in them is called."""
    return [block for part in parts for block in _write_part(part, _NO_TOOLS)]


_NO_TOOLS = Toolbox(())


def _write_part(part: Part, toolbox: Toolbox) -> Iterator[dict[str, Any]]:
    if isinstance(part, Reasoning):
        yield from _write_thinking(part)
    elif isinstance(part, Other):
        yield from (dict(part.body),) if part.dialect == NAME else ()
    elif _is_block(part):
        yield dict(part.origin.body)  # type: ignore[union-attr]
    elif isinstance(part, Text | Refusal):
        yield from ({"type": "text", "text": part.text},) if part.text else ()
    elif isinstance(part, ToolCall):
        yield write_call(part, toolbox)
    elif isinstance(part, ToolResult):
        yield _write_result(part)
    else:
        yield _write_media(part)


def _write_thinking(part: Reasoning) -> Iterator[dict[str, Any]]:
    """Only what a provider signed: it refuses any other."""
    if part.payload is None:
        return
    if _is_block(part):
        yield dict(part.origin.body)  # type: ignore[union-attr]
    elif is_redacted(part):
        yield {"type": "redacted_thinking", "data": part.payload}
    else:
        yield {"type": "thinking", "thinking": part.text, "signature": part.payload}


def write_call(call: ToolCall, toolbox: Toolbox) -> dict[str, Any]:
    name = f"{call.namespace}__{call.name}" if call.namespace else call.name
    tool = toolbox.find(name)
    return {
        "type": "tool_use",
        "id": ids.safe(call.call_id),
        "name": name if tool is None else toolbox.flat(tool),
        "input": read_input(call)[0],
    }


def read_input(call: ToolCall) -> tuple[dict[str, Any], str]:
    """The object that the arguments are, {} when they are none (M5), and the same as JSON text."""
    if call.custom:
        value: Any = {"input": call.arguments}
        return value, codec.encode(value).decode()
    try:
        value, text = codec.decode_body(call.arguments), call.arguments
    except (ValueError, RecursionError):
        return {}, "{}"  # NaN too: what JSON has in its place would be made up
    if not isinstance(value, dict):
        return {}, "{}"
    if not codec.is_strict(text):
        text = codec.encode(value).decode()
        value = codec.decode(text)
    return value, text


def _write_result(result: ToolResult) -> dict[str, Any]:
    content: Any = write_text(result.parts) or write_blocks(result.parts)
    written = {"type": "tool_result", "tool_use_id": ids.safe(result.call_id), "content": content}
    return written | {"is_error": True} if result.is_error else written


def _write_media(part: Media) -> dict[str, Any]:
    head, comma, data = part.source.partition(",")
    if part.kind == "audio":
        return {"type": "text", "text": _CUT.format("audio")}
    if not head.startswith("data:") or not comma:
        return {"type": part.kind, "source": {"type": "url", "url": part.source}}
    media_type = head.removeprefix("data:").removesuffix(";base64")
    return {"type": part.kind, "source": {"type": "base64", "media_type": media_type, "data": data}}
