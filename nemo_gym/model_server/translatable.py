"""What a Responses client asks for that no backend of another dialect can be asked for: refused aloud, never dropped.

Tools that a provider runs follow `web_search` (R8): by default a 400 that names the client's setting, since the model
must not answer from memory while the client believes that a search ran.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from ..exchange.errors import InvalidRequest
from ..exchange.parts import Media, Message, Other, Part, ToolResult
from ..exchange.request import ModelRequest
from ..exchange.tools import Tool
from .said import say_once

_ELSEWHERE = ("conversation", "prompt")
"""Fields that name a conversation, or a part of it, that is kept elsewhere."""


def check(request: ModelRequest, body: Mapping[str, Any], search: Literal["refuse", "ignore"]) -> None:
    """Raises InvalidRequest that names the field; `search` is what the server does with a provider's tools."""
    for name in _ELSEWHERE:
        if body.get(name) is not None:
            raise InvalidRequest(f"{name}: not supported here: send the whole conversation as input", param=name)
    if request.previous is None and all(isinstance(part, Other) for one in request.messages for part in one.parts):
        raise InvalidRequest("input: holds nothing that the model could read", param="input")
    for message in request.messages:
        if message.role != "assistant":
            check_sources(message, "input")
            _check_parts(message.parts)
    for place, tool in enumerate(request.tools):
        if tool.kind == "provider":
            _check_provided(place, str((tool.body or {}).get("type")), search)


def check_sources(message: Message, field: str) -> None:
    """Chat Completions takes images by their URL, and nothing else."""
    for part in message.parts:
        for one in part.parts if isinstance(part, ToolResult) else (part,):
            if isinstance(one, Media) and one.kind != "image" and not one.source.startswith("data:"):
                words = f"{field}: this backend takes a {one.kind} as data only, not by its URL"
                raise InvalidRequest(words, param=field)


def _check_parts(parts: Iterable[Part]) -> None:
    for part in parts:
        if isinstance(part, ToolResult):
            _check_parts(part.parts)
        elif isinstance(part, Other) and part.body.get("type") != "encrypted_content":  # R3: that one is dropped
            words = f"input: a part of type {part.body.get('type')!r} without its data cannot be given to this backend"
            raise InvalidRequest(words, param="input")


def _check_provided(place: int, kind: str, search: Literal["refuse", "ignore"]) -> None:
    if kind == "tool_search":
        say_once("tool_search: nothing is searched by this server: all declared tools are offered at once")
        return
    if search == "refuse":
        codex = ' (Codex: web_search="disabled")' if kind.startswith("web_search") else ""
        raise InvalidRequest(
            f"tools[{place}]: {kind} is run by a provider, and this backend has none; turn it off in the client{codex},"
            " or set web_search: ignore on this server",
            param="tools",
        )
    say_once(f"the tool {kind} is left out: this backend has no provider that runs it")


def offered(request: ModelRequest, body: Mapping[str, Any]) -> dict[str, Any]:
    """What of `tools` and `tool_choice` changes for a backend that knows neither `allowed_tools` nor provided tools."""
    choice = body.get("tool_choice")
    if isinstance(request.tool_choice, Tool) and request.tool_choice.kind == "provider":
        say_once(f"tool_choice: the tool {request.tool_choice.name} is none of this backend's; the model may choose")
        return {"tool_choice": "auto"}
    if not isinstance(choice, Mapping) or choice.get("type") != "allowed_tools":
        return {}
    named = (choice.get("allowed_tools") or choice).get("tools")  # Chat Completions has it one level deeper
    allowed = (
        {(one.get("namespace"), _name(one)) for one in named if isinstance(one, Mapping)}
        if isinstance(named, list)
        else set()
    )
    return {"tools": tuple(tool for tool in request.tools if _is_allowed(tool, allowed))}


def _name(named: Mapping[str, Any]) -> Any:
    within = named.get(named["type"]) if isinstance(named.get("type"), str) else None
    return (within if isinstance(within, Mapping) else named).get("name") or named.get("type")


def _is_allowed(tool: Tool, allowed: set[tuple[Any, Any]]) -> bool:
    names = {(tool.namespace, tool.name), (None, tool.name), (None, tool.namespace)}
    return not names.isdisjoint(allowed - {(None, None)})
