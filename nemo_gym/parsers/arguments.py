"""A called tool's name and its arguments, out of what a model wrote.

Arguments that are JSON stay the model's own text, never printed anew; only what is missing or empty becomes `{}` (P3).
Arguments that are tags around plain text become JSON by the tool's declared schema (P4, `schema.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from ..exchange.parts import Origin, ToolCall
from ..exchange.tools import Tool, Toolbox
from .json_scanner import JsonScanner
from .parser import PARSER
from .schema import Schema, strict_json

_DECODER = json.JSONDecoder(parse_int=float)
_SPACE = " \t\n\r"
_ARGUMENTS = {"arguments": None, "parameters": None}.keys()
UNKNOWN = Origin(PARSER, {"unknown_tool": True})
"""The mark of a call whose name no declared tool has (P6)."""


def toolbox(tools: Iterable[Mapping[str, Any]] | None) -> Toolbox:
    """Declared tools from OpenAI tool dicts, with or without the `function` level."""
    declared = []
    for tool in tools or ():
        function = tool.get("function", tool)
        if isinstance(function, Mapping) and isinstance(function.get("name"), str):
            declared.append(Tool(function["name"], parameters=function.get("parameters")))
    return Toolbox(declared)


def named(name: str, arguments: str, tools: Toolbox, call_id: str = "") -> ToolCall:
    """A call under the declared tool's name; marked when tools are declared and none is meant."""
    declared = tools.find(name)
    if declared is not None:
        return ToolCall(tools.flat(declared), arguments, call_id)
    return ToolCall(name, arguments, call_id, origin=UNKNOWN if tools.tools else None)


def tagged_call(name: str, values: Mapping[str, str], tools: Toolbox, schemas: dict[str, Schema]) -> ToolCall:
    """A call whose arguments came as plain text, each typed by the tool's schema.

    Args:
        schemas: those already read, by the called name.
    """
    schema = schemas.get(name)
    if schema is None:
        declared = tools.find(name)
        schema = Schema(declared.parameters if declared is not None else None)
        if declared is not None:
            schemas[name] = schema
    members = (f"{json.dumps(key, ensure_ascii=False)}: {schema.read(key, text)}" for key, text in values.items())
    return named(name, "{" + ", ".join(members) + "}", tools)


def json_call(text: str, tools: Toolbox, keys: frozenset[str] | None = None) -> ToolCall | None:
    """The call that a JSON object means, or None when it means none.

    Args:
        keys: with them an object is a call only when it has no other key, has arguments, and its name is one word.
    """
    members = _members(text)
    if members is None:
        return None
    name = members.get("name", (None, ""))[0]
    if not isinstance(name, str) or not name.strip():
        return None
    if keys is not None and (members.keys() - keys or not members.keys() & _ARGUMENTS or len(name.split()) != 1):
        return None
    call_id = members.get("id", (None, ""))[0]
    return named(name.strip(), _arguments(members), tools, call_id if isinstance(call_id, str) else "")


def json_arguments(text: str) -> str | None:
    """Arguments that are one JSON value: as the model wrote them; None when they are no JSON."""
    try:
        value = strict_json(text)
    except ValueError:
        return None
    return _unwrapped(value, text.strip(_SPACE))


def _arguments(members: Mapping[str, tuple[Any, str]]) -> str:
    for key in _ARGUMENTS:
        value, text = members.get(key, (None, ""))
        if value:
            return _unwrapped(value, text)
    return "{}"


def _unwrapped(value: Any, text: str) -> str:
    if isinstance(value, str) and _is_object(value):
        return value  # an object that was written as a string
    return text if value else "{}"


def _is_object(text: str) -> bool:
    try:
        return isinstance(strict_json(text), dict)
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
            value, end = _value(text, at)
            members.setdefault(key, (value, text[at:end]))
            at = _skip(text, end)
            if text[at : at + 1] == ",":
                at = _skip(text, at + 1)
    except ValueError:
        return None
    return members


def _value(text: str, at: int) -> tuple[Any, int]:
    try:
        return _DECODER.raw_decode(text, at)
    except RecursionError:  # nested too deep for the decoder, so surely not empty
        scanner = JsonScanner()
        return True, scanner.feed(text, at)


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _SPACE:
        at += 1
    return at
