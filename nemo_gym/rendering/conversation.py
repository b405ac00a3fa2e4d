"""Messages and tools as the dicts that chat templates read.

An assistant's reasoning goes under both names that templates know. Arguments stay the model's own string
where the template takes one.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator
from typing import Any

from ..exchange.parts import Media, Message, Other, Part, Reasoning, Refusal, Text, ToolCall, ToolResult
from ..exchange.tools import Tool, Toolbox, spelled

_CUSTOM_INPUT = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "The whole input, as it is."}},
    "required": ["input"],
}


def tool_dicts(tools: Iterable[Tool]) -> list[dict[str, Any]]:
    """Tools in OpenAI's form under their flat names; a provider's own tools are not the model's to call."""
    box = Toolbox(tools)
    return [_tool(box, tool) for tool in box.tools if tool.kind != "provider"]


def _tool(box: Toolbox, tool: Tool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": box.flat(tool)}
    if tool.description:
        function["description"] = tool.description
    parameters = _CUSTOM_INPUT if tool.kind == "custom" else tool.parameters
    if parameters is not None:
        function["parameters"] = parameters
    return {"type": "function", "function": function}


def message_dicts(messages: Iterable[Message], *, string_arguments: bool) -> list[dict[str, Any]]:
    """Args:
    string_arguments: pass a call's arguments as the string they are, else as the object they mean.
    """
    return [entry for message in messages for entry in _entries(message, string_arguments)]


def _entries(message: Message, string_arguments: bool) -> Iterator[dict[str, Any]]:
    results = [part for part in message.parts if isinstance(part, ToolResult)]
    for result in results:
        yield {"role": "tool", "tool_call_id": result.call_id, "content": _text(result.parts)}
    rest = [part for part in message.parts if not isinstance(part, ToolResult)]
    if not rest and results:
        return
    entry: dict[str, Any] = {"role": message.role, "content": _text(rest)}
    reasoning = "".join(part.text for part in rest if isinstance(part, Reasoning))
    if reasoning:
        entry["reasoning_content"] = entry["reasoning"] = reasoning
    calls = [_call(part, string_arguments) for part in rest if isinstance(part, ToolCall)]
    if calls:
        entry["tool_calls"] = calls
    yield entry


def _call(call: ToolCall, string_arguments: bool) -> dict[str, Any]:
    name = spelled(call.name, call.namespace)
    arguments: Any = json.dumps({"input": call.arguments}, ensure_ascii=False) if call.custom else call.arguments
    if not string_arguments:
        with contextlib.suppress(ValueError):  # what is no JSON stays as it is: the template may show it
            arguments = json.loads(arguments)
    return {"id": call.call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _text(parts: Iterable[Part]) -> str:
    return "".join(_piece(part) for part in parts)


def _piece(part: Part) -> str:
    if isinstance(part, Text | Refusal):
        return part.text
    if isinstance(part, Media):
        return f"[{part.kind} omitted]"  # A11
    if isinstance(part, Other):
        text = part.body.get("text")
        return text if isinstance(text, str) else ""
    return ""
