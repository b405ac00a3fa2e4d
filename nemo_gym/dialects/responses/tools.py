"""Declared tools of a Responses request: functions, namespaces of them, custom tools, those of this dialect that the
client runs (see hosted.py), and what a provider runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from ...exchange.parts import Origin
from ...exchange.tools import Tool, ToolChoice, is_strict
from ..grammar import with_grammar
from . import hosted
from .items import NAME


def read_tools(tools: Iterable[Any], namespace: str | None = None) -> Iterator[Tool]:
    for tool in tools:
        yield from _read_tool(plain(tool), namespace)


def plain(tool: Any) -> Any:
    """A tool as a dict: the SDK's model objects are treated alike (R8)."""
    return tool.model_dump(mode="json", by_alias=True, exclude_unset=True) if isinstance(tool, BaseModel) else tool


def _read_tool(tool: Mapping[str, Any], namespace: str | None) -> Iterator[Tool]:
    kind, origin = tool.get("type"), Origin(NAME, tool)
    if kind == "namespace":
        yield from read_tools(tool["tools"], tool["name"])
    elif kind == "function":
        yield Tool(tool["name"], tool.get("description") or "", tool.get("parameters"), namespace, origin=origin)
    elif kind == "custom":
        yield Tool(tool["name"], with_grammar(tool), None, namespace, "custom", origin=origin)
    elif (offered := hosted.read_tool(tool)) is not None:
        yield offered
    elif not _offline_search(tool):
        yield Tool(str(tool.get("name") or kind), kind="provider", body=tool, origin=origin)


def _offline_search(tool: Mapping[str, Any]) -> bool:
    """R8: a search that may not leave the provider's cache is no tool at all."""
    return str(tool.get("type", "")).startswith("web_search") and tool.get("external_web_access") is False


def read_choice(choice: Any, tools: tuple[Tool, ...]) -> ToolChoice:
    if choice is None:
        return "auto"
    if isinstance(choice, str):
        return choice  # type: ignore[return-value]
    if choice["type"] == "allowed_tools":
        return choice.get("mode") or "auto"
    name = choice.get("name") or choice["type"]
    space = choice.get("namespace")
    named = [tool for tool in tools if tool.name == name and (space is None or tool.namespace == space)]
    kind: Any = choice["type"] if choice["type"] in ("function", "custom") else "provider"
    return named[0] if named else Tool(name, namespace=space, kind=kind)


def write_tools(tools: Iterable[Tool]) -> list[dict[str, Any]]:
    """For a backend. Tools of another dialect as functions; the members of a namespace under it again."""
    written: list[dict[str, Any]] = []
    spaces: dict[str, dict[str, Any]] = {}
    for tool in tools:
        if tool.kind == "provider" and tool.origin is not None and tool.origin.dialect != NAME:
            continue  # another provider's
        body = _write_tool(tool)
        if tool.namespace is None:
            written.append(body)
        elif tool.namespace in spaces:
            spaces[tool.namespace]["tools"].append(body)
        else:
            spaces[tool.namespace] = {"type": "namespace", "name": tool.namespace, "tools": [body]}
            written.append(spaces[tool.namespace])
    return written


def _write_tool(tool: Tool) -> dict[str, Any]:
    if tool.origin is not None and tool.origin.dialect == NAME:
        return dict(tool.origin.body)
    if tool.kind == "custom":
        return {"type": "custom", "name": tool.name, **_told_by_chat(tool)}
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": is_strict(tool),
    }


def _told_by_chat(tool: Tool) -> dict[str, Any]:
    """A custom tool's description, and its grammar, which lies one level higher here."""
    custom = tool.origin.body.get("custom") if tool.origin is not None and tool.origin.dialect == "chat" else None
    if not isinstance(custom, Mapping):
        return {"description": tool.description}
    form = custom.get("format") or {}
    told = {"type": form["type"], **(form.get("grammar") or {})} if form.get("type") else None
    return {"description": custom.get("description") or "", **({"format": told} if told else {})}


def write_choice(choice: ToolChoice) -> Any:
    if isinstance(choice, str):
        return choice
    if choice.kind == "provider" or choice.body is not None:
        return {"type": choice.name}
    return {"type": choice.kind, "name": choice.name}
