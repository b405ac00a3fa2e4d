"""A called tool's name and arguments, out of the JSON that a model wrote.

The arguments stay the model's own text, never printed anew; only what is missing or empty becomes `{}` (P3).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..exchange.parts import ToolCall
from ..exchange.tools import Tool, Toolbox

_DECODER = json.JSONDecoder()
_SPACE = " \t\n\r"


def toolbox(tools: Sequence[Mapping[str, Any]] | None) -> Toolbox:
    """Declared tools from OpenAI tool dicts, with or without the `function` level."""
    declared = []
    for tool in tools or ():
        function = tool.get("function", tool)
        if isinstance(function, Mapping) and isinstance(function.get("name"), str):
            declared.append(Tool(function["name"], parameters=function.get("parameters")))
    return Toolbox(declared)


def json_call(text: str, tools: Toolbox) -> ToolCall | None:
    """The call that a JSON object means, or None when it means none."""
    members = _members(text)
    if members is None:
        return None
    name = members.get("name", (None, ""))[0]
    if not isinstance(name, str) or not name.strip():
        return None
    declared = tools.find(name.strip())
    return ToolCall(tools.flat(declared) if declared else name.strip(), _arguments(members))


def _arguments(members: Mapping[str, tuple[Any, str]]) -> str:
    for key in ("arguments", "parameters"):
        value, text = members.get(key, (None, ""))
        if isinstance(value, str) and _is_object(value):
            return value  # an object that was written as a string
        if value:
            return text
    return "{}"


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def _members(text: str) -> dict[str, tuple[Any, str]] | None:
    """Each member's value and its own text. None when `text` is no JSON object."""
    members: dict[str, tuple[Any, str]] = {}
    at = _skip(text, 0)
    if text[at : at + 1] != "{":
        return None
    at = _skip(text, at + 1)
    try:
        while text[at : at + 1] != "}":
            key, at = _DECODER.raw_decode(text, at)
            at = _skip(text, _skip(text, at) + 1)  # the colon
            value, end = _DECODER.raw_decode(text, at)
            members[key] = value, text[at:end]
            at = _skip(text, end)
            if text[at : at + 1] == ",":
                at = _skip(text, at + 1)
    except (ValueError, RecursionError):
        return None
    return members


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _SPACE:
        at += 1
    return at
