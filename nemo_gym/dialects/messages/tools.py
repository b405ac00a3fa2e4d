"""Declared tools of a Messages request: functions, tools of the API that the client runs, and what a provider runs.

A tool that is held back (`defer_loading`, until a result refers to it; or removed by a system message) is declared but
not the model's to call: it is a provider's tool to every other dialect.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ...exchange.parts import Origin, read_once
from ...exchange.tools import Tool, Toolbox, ToolChoice, is_strict
from . import hosted
from .blocks import NAME


def read_tools(declared: Iterable[Any], messages: Iterable[Mapping[str, Any]]) -> tuple[Tool, ...]:
    declared = [tool for tool in declared if isinstance(tool, Mapping)]
    found: dict[str, Mapping[str, Any]] = {}
    offered = {_name(tool): tool.get("defer_loading") is not True for tool in declared}
    for change in _changes(messages, all(offered.values())):
        _apply(change, offered, found)
    tools = [*declared, *(tool for name, tool in found.items() if name not in {_name(one) for one in declared})]
    return tuple([read_once(tool, read_tool) if offered[_name(tool)] else _held_back(tool) for tool in tools])


def _name(tool: Mapping[str, Any]) -> str:
    return str(tool.get("name") or tool.get("type"))


def _changes(messages: Iterable[Mapping[str, Any]], offered: bool) -> Iterator[Mapping[str, Any]]:
    """Blocks that load, define or remove a tool: in system messages, and in results unless all are offered anyway."""
    for message in messages:
        content = message["content"]
        if isinstance(content, str) or (offered and message["role"] != "system"):
            continue
        for block in content:
            if block["type"] in ("tool_addition", "tool_removal"):
                yield block
            elif block["type"] in ("tool_result", "tool_search_tool_result"):
                yield from _references(block.get("content"))


def _references(content: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(content, Mapping):
        content = content.get("tool_references")
    for block in content if isinstance(content, list) else ():
        if isinstance(block, Mapping) and block.get("type") == "tool_reference":
            yield block


def _apply(change: Mapping[str, Any], offered: dict[str, bool], found: dict[str, Mapping[str, Any]]) -> None:
    tool = change.get("tool")
    if change["type"] == "tool_reference":
        name: Any = change.get("tool_name")
    elif not isinstance(tool, Mapping):
        return
    elif isinstance(definition := tool.get("definition"), Mapping):
        name = _name(definition)
        found[name], offered[name] = definition, True
        return
    else:
        name = tool.get("name")
    if isinstance(name, str) and name in offered:
        offered[name] = change["type"] != "tool_removal"


def read_tool(tool: Mapping[str, Any]) -> Tool:
    """One that the model may call, if this server knows what it takes."""
    kind = tool.get("type")
    if kind in (None, "custom"):
        schema = tool.get("input_schema")
        description = tool.get("description") or ""
    else:
        known = hosted.find(str(kind))
        description, schema = known if known is not None else ("", None)
    if schema is None:
        return _held_back(tool)
    return Tool(_name(tool), description, schema, origin=Origin(NAME, tool))


def _held_back(tool: Mapping[str, Any]) -> Tool:
    return Tool(_name(tool), kind="provider", body=tool, origin=Origin(NAME, tool))


def is_held_back(tool: Tool) -> bool:
    """Whether the client runs it, once it is loaded."""
    kind = (tool.body or {}).get("type")
    return tool.kind == "provider" and (kind in (None, "custom") or hosted.find(str(kind)) is not None)


def loaded(tools: Iterable[Tool]) -> tuple[Tool, ...]:
    """With all that is held back: where nothing can search for it, it is there from the beginning."""
    return tuple(read_tool(tool.body) if tool.body and is_held_back(tool) else tool for tool in tools)


def read_choice(choice: Mapping[str, Any] | None, tools: tuple[Tool, ...]) -> ToolChoice:
    kind = choice["type"] if choice else "auto"
    if kind == "tool":
        assert choice is not None
        return next((tool for tool in tools if tool.name == choice["name"]), Tool(choice["name"]))
    return {"any": "required", "none": "none"}.get(kind, "auto")  # type: ignore[return-value]


def write_tools(tools: Iterable[Tool], toolbox: Toolbox, declared: Any) -> list[dict[str, Any]]:
    """For a backend; `declared` is what the request's own body declares, if it is one of this dialect."""
    written = []
    for tool in tools:
        if tool.origin is not None and tool.origin.dialect == NAME:
            body = tool.origin.body
            if declared is None or any(body is one for one in declared):  # else a message defines it
                written.append(dict(body))
        elif tool.kind != "provider":
            written.append(_write_tool(tool, toolbox))
    return written


def _write_tool(tool: Tool, toolbox: Toolbox) -> dict[str, Any]:
    schema = dict(tool.parameters or {})
    if tool.kind == "custom":
        schema = {"properties": {"input": {"type": "string"}}, "required": ["input"]}
    written: dict[str, Any] = {"name": toolbox.flat(tool), "input_schema": {"type": "object", **schema}}
    if tool.description:
        written["description"] = tool.description
    if is_strict(tool):
        written["strict"] = True
    return written


def write_choice(choice: ToolChoice, parallel: bool, toolbox: Toolbox) -> dict[str, Any] | None:
    """None where it says nothing that is not so anyway."""
    if choice == "none":
        return {"type": "none"}
    if choice == "auto":
        written: dict[str, Any] = {"type": "auto"}
    elif choice == "required":
        written = {"type": "any"}
    else:
        assert not isinstance(choice, str)
        written = {"type": "tool", "name": toolbox.flat(choice)}
    if not parallel:
        written["disable_parallel_tool_use"] = True
    return None if written == {"type": "auto"} else written
