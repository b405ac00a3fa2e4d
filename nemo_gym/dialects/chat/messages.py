"""Messages and tools of Chat Completions, to and from ours.

What bodies share is read once, and written once for as long as the tools are called the same: a call that was made
before is spelled as its tool is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ...exchange.ids import fitted
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
)
from ...exchange.tools import Tool, Toolbox, is_strict
from .. import codec
from ..grammar import with_grammar
from .details import read_details, write_details

NAME = "chat"
_EMPTY: Mapping[str, Any] = {}
_NO_RESULT = ToolResult("", ())


def read_message(message: Mapping[str, Any]) -> Message:
    role, content = message["role"], message.get("content")
    origin = Origin(NAME, message)
    if role == "tool":
        result = ToolResult(message["tool_call_id"], tuple(_read_content(content)))
        return Message("tool", (result,), origin)
    if role != "assistant":
        return Message(role, tuple(_read_content(content)), origin)
    thoughts = read_details(message.get("reasoning_details")) if "reasoning_details" in message else []
    return Message("assistant", tuple(read_assistant(message, thoughts)), origin)


def read_assistant(message: Mapping[str, Any], thoughts: list[Reasoning] | None = None) -> Iterable[Part]:
    """The parts of an assistant message, in a request or a reply: reasoning, content, refusal, calls (B1).

    `thoughts` are those that it tells with what was signed; where they have a text, it is the same once more."""
    thoughts = thoughts or []
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if isinstance(reasoning, str) and reasoning and not any(thought.text for thought in thoughts):
        yield Reasoning(reasoning)
    yield from thoughts
    if message.get("content"):
        yield from _read_content(message["content"])
    if message.get("refusal"):
        yield Refusal(message["refusal"])
    for call in message.get("tool_calls") or ():
        yield read_call(call)


def read_call(call: Mapping[str, Any]) -> ToolCall:
    origin = Origin(NAME, call)
    if call.get("type") == "custom":
        custom = call["custom"]
        return ToolCall(custom["name"], custom.get("input") or "", call.get("id") or "", custom=True, origin=origin)
    function = call["function"]
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        # Some servers send an object; there is no string of the model's to keep then.
        arguments = "" if arguments is None else codec.encode(arguments).decode()
    return ToolCall(function["name"], arguments, call.get("id") or "", origin=origin)


def _read_content(content: Any) -> Iterable[Part]:
    if isinstance(content, str):
        yield Text(content)
        return
    for part in content or ():
        yield read_part(part)


def read_part(part: Mapping[str, Any]) -> Part:
    kind, origin = part["type"], Origin(NAME, part)
    if kind == "text":
        return Text(part["text"], origin=origin)
    if kind == "refusal":
        return Refusal(part["refusal"])
    if kind == "thinking":
        return Reasoning(_thought(part["thinking"]), origin=origin)  # as Mistral's models reply
    if kind == "image_url":
        return Media("image", part["image_url"]["url"], origin)
    if kind == "input_audio":
        audio = part["input_audio"]
        return Media("audio", f"data:audio/{audio['format']};base64,{audio['data']}", origin)
    if kind == "file" and isinstance(part["file"].get("file_data"), str):
        return Media("document", part["file"]["file_data"], origin)
    return Other(NAME, part)


def _thought(said: Any) -> str:
    return said if isinstance(said, str) else "".join([part["text"] for part in said if part["type"] == "text"])


def read_tool(tool: Mapping[str, Any]) -> Tool:
    origin = Origin(NAME, tool)
    if tool["type"] == "custom":
        custom = tool["custom"]
        return Tool(custom["name"], with_grammar(custom), kind="custom", origin=origin)
    function = tool["function"]
    return Tool(function["name"], function.get("description") or "", function.get("parameters"), origin=origin)


# ---- writing


def is_sayable(message: Message) -> bool:
    """Whether there is anything in it for this dialect; an item that only another one knows is left out."""
    if message.origin is not None and message.origin.dialect == NAME:
        return True
    for part in message.parts:
        if type(part) is Other:
            if part.dialect == NAME:
                return True
        elif type(part) is not Reasoning or part.text:
            return True
    return not message.parts


def write_message(message: Message, toolbox: Toolbox) -> dict[str, Any]:
    if message.origin is not None and message.origin.dialect == NAME:
        return dict(message.origin.body)
    if message.role == "tool":
        result: Part = message.parts[0] if message.parts else _NO_RESULT
        if type(result) is not ToolResult:
            result = next((part for part in message.parts if isinstance(part, ToolResult)), _NO_RESULT)
        return {"role": "tool", "tool_call_id": fitted(result.call_id), "content": _write_content(result.parts)}
    if message.role != "assistant":
        return {"role": message.role, "content": _write_content(message.parts)}
    written: dict[str, Any] = {"role": "assistant", "content": None}
    texts: list[str] = []
    reasoning: list[str] = []
    refusals: list[str] = []
    calls: list[dict[str, Any]] = []
    for part in message.parts:
        if type(part) is ToolCall:
            calls.append(_write_call(part, toolbox))
        elif type(part) is Text:
            texts.append(part.text)
        elif type(part) is Reasoning and part.text:
            reasoning.append(part.text)
        elif type(part) is Refusal:
            refusals.append(part.text)
    if texts:
        written["content"] = "".join(texts)
    if reasoning:
        written["reasoning_content"] = "\n".join(reasoning)
    if refusals:
        written["refusal"] = "".join(refusals)
    if calls:
        written["tool_calls"] = calls
    elif written["content"] is None and not refusals:
        written["content"] = ""
    return written | write_details(message.parts) if _brought(message.parts) else written


def _brought(parts: tuple[Part, ...]) -> bool:
    """Whether the client's own words said what a provider signed; a backend that never does is not told of it."""
    return any(
        type(part) is Reasoning and part.payload and part.origin is not None and part.origin.dialect == NAME
        for part in parts
    )


def _write_content(parts: Iterable[Part]) -> str | list[dict[str, Any]]:
    parts = tuple(parts)
    if not parts:
        return ""
    if len(parts) == 1 and isinstance(parts[0], Text):
        return parts[0].text
    return [part for part in map(_write_part, parts) if part is not None] or ""


def _write_part(part: Part) -> dict[str, Any] | None:
    origin = getattr(part, "origin", None)
    if origin is not None and origin.dialect == NAME:
        return dict(origin.body)
    if isinstance(part, Text | Refusal):
        return {"type": "text", "text": part.text}
    if isinstance(part, Media):
        return _write_media(part)
    if isinstance(part, Other) and part.dialect == NAME:
        return dict(part.body)
    return None


def _write_media(part: Media) -> dict[str, Any]:
    told = part.origin.body if part.origin is not None and part.origin.dialect == "responses" else _EMPTY
    if part.kind == "image":
        detail = {"detail": told["detail"]} if told.get("detail") in ("low", "high") else {}
        return {"type": "image_url", "image_url": {"url": part.source, **detail}}
    head, _, data = part.source.partition(";base64,")
    if part.kind == "audio" and head.startswith("data:audio/"):
        return {"type": "input_audio", "input_audio": {"data": data, "format": head.removeprefix("data:audio/")}}
    named = {"filename": told["filename"]} if isinstance(told.get("filename"), str) else {}
    return {"type": "file", "file": {**named, "file_data": part.source}}


def _write_call(call: ToolCall, toolbox: Toolbox) -> dict[str, Any]:
    if call.origin is not None and call.origin.dialect == NAME:
        return dict(call.origin.body)
    # R7: a custom tool is a function with one string to a chat backend.
    arguments = codec.encode({"input": call.arguments}).decode() if call.custom else call.arguments
    function = {"name": toolbox.spell(call), "arguments": arguments}
    return {"id": fitted(call.call_id), "type": "function", "function": function}


def write_tool(tool: Tool, toolbox: Toolbox) -> dict[str, Any]:
    if tool.origin is not None and tool.origin.dialect == NAME:
        return dict(tool.origin.body)
    function: dict[str, Any] = {"name": toolbox.flat(tool)}
    if tool.description:
        function["description"] = tool.description
    if tool.kind == "custom":
        function["parameters"] = {
            "type": "object",
            "properties": {"input": {"type": "string"}},
            "required": ["input"],
        }
    elif tool.parameters is not None:
        function["parameters"] = dict(tool.parameters)
    if is_strict(tool):
        function["strict"] = True
    return {"type": "function", "function": function}
