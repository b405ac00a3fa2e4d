"""Tools of this dialect's own that the client runs itself (A18).

A model behind another dialect is offered each of them as a function; a call of that function goes out under the item
type that the client waits for, and such an item and its output come back in as a call and its result.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from ...exchange.parts import Origin, Part, Text, ToolCall, ToolResult
from ...exchange.tools import Tool
from .. import codec

_TEXT = {"type": "string"}
_COUNT = {"type": "integer"}
_LIMITS = {"timeout_ms": _COUNT}


class Hosted(Struct, frozen=True):
    """One such tool.

    `field` is where an item has what the function has as its arguments; `fixed` and `inner` are what an item, and
    that field, always say.
    """

    type: str
    prefix: str
    description: str
    properties: Mapping[str, Any]
    required: tuple[str, ...]
    field: str
    fixed: Mapping[str, Any] = {}
    inner: Mapping[str, Any] = {}

    @property
    def call(self) -> str:
        return f"{self.type}_call"


_SEARCH = Hosted(
    "tool_search",
    "tsc",
    "Searches for tools that are not loaded yet; those found can be called from then on.",
    {"query": _TEXT},
    ("query",),
    "arguments",
    fixed={"execution": "client"},
)
_KINDS = (
    _SEARCH,
    Hosted(
        "local_shell",
        "lsh",
        "Runs a command on the user's machine.",
        {"command": {"type": "array", "items": _TEXT}, **_LIMITS, "working_directory": _TEXT},
        ("command",),
        "action",
        inner={"type": "exec", "command": [], "env": {}},
    ),
    Hosted(
        "shell",
        "sh",
        "Runs shell commands on the user's machine.",
        {"commands": {"type": "array", "items": _TEXT}, **_LIMITS, "max_output_length": _COUNT},
        ("commands",),
        "action",
        inner={"commands": [], "timeout_ms": None, "max_output_length": None},
    ),
    Hosted(
        "apply_patch",
        "apc",
        "Creates, updates or deletes a file by a unified diff.",
        {
            "type": {"type": "string", "enum": ["create_file", "update_file", "delete_file"]},
            "path": _TEXT,
            "diff": _TEXT,
        },
        ("type", "path"),
        "operation",
    ),
)
_BY_TYPE = {kind.type: kind for kind in _KINDS}
_BY_CALL = {kind.call: kind for kind in _KINDS}
_OUTPUTS = {f"{kind.call}_output" for kind in _KINDS if kind is not _SEARCH} | {"tool_search_output"}
CALLS = frozenset(_BY_CALL)
OUTPUTS = frozenset(_OUTPUTS)


# ---- declarations


def read_tool(tool: Mapping[str, Any]) -> Tool | None:
    """The function that stands for a tool which the client runs; None when it is no such tool."""
    kind = _BY_TYPE.get(str(tool.get("type")))
    if kind is None or not _by_client(tool):
        return None
    declared = tool.get("parameters")
    parameters = {"type": "object", "properties": dict(kind.properties), "required": list(kind.required)}
    return Tool(
        kind.type,
        tool.get("description") or kind.description,
        declared if isinstance(declared, Mapping) and declared else parameters,
        body=tool,
        origin=Origin("responses", tool),
    )


def _by_client(tool: Mapping[str, Any]) -> bool:
    if tool["type"] == "tool_search":
        return tool.get("execution") == "client"
    return _is_local(tool.get("environment"))


def _is_local(environment: Any) -> bool:
    return not isinstance(environment, Mapping) or environment.get("type") == "local"


def is_call(item: Mapping[str, Any]) -> bool:
    """Whether an item is a call that the client runs; what a provider ran is none of the model's any more."""
    return item.get("type") in CALLS and item.get("execution") != "server" and _is_local(item.get("environment"))


def is_output(item: Mapping[str, Any]) -> bool:
    return item.get("type") in OUTPUTS and item.get("execution") != "server"


def declared(tools: Iterable[Tool]) -> dict[str, Hosted]:
    """The tools of a request that are such, by the name of the function."""
    found = (tool for tool in tools if tool.kind == "function" and tool.body is not None)
    return {tool.name: _BY_TYPE[tool.name] for tool in found if tool.name in _BY_TYPE}


# ---- calls and their results


def read_call(item: Mapping[str, Any]) -> ToolCall:
    kind = _BY_CALL[item["type"]]
    said = item.get(kind.field)
    fields = said.items() if isinstance(said, Mapping) else ()
    arguments = {name: value for name, value in fields if name not in kind.inner or value != kind.inner[name]}
    call_id, own = (value if isinstance(value, str) else "" for value in (item.get("call_id"), item.get("id")))
    return ToolCall(kind.type, codec.encode(arguments).decode(), call_id or own, own, origin=Origin("responses", item))


def write_call(kind: Hosted, call: ToolCall, item_id: str, status: str) -> dict[str, Any]:
    """A call as its item. Arguments that are no object are none: the client's tool then says what it misses (M5)."""
    try:
        said = msgspec.json.decode(call.arguments or "{}")
    except (msgspec.DecodeError, UnicodeError):
        said = {}
    said = {**kind.inner, **said} if isinstance(said, dict) else dict(kind.inner)
    return {
        "type": kind.call,
        "id": item_id,
        "call_id": call.call_id,
        "status": status,
        **kind.fixed,
        kind.field: said,
    }


def read_output(item: Mapping[str, Any], calls: Mapping[str, str]) -> ToolResult:
    """What the client's tool gave, as text that any model can read; `calls` are the call ids of earlier items."""
    call_id = item.get("call_id") or item.get("id")
    call_id = call_id if isinstance(call_id, str) else ""
    return ToolResult(calls.get(call_id, call_id), tuple(_read(item)), origin=Origin("responses", item))


def _read(item: Mapping[str, Any]) -> Iterable[Part]:
    if item["type"] == "tool_search_output":
        yield Text(_found(item.get("tools")))
        return
    output = item.get("output")
    text = output if isinstance(output, str) else "" if output is None else codec.encode(output).decode()
    yield Text(text or str(item.get("status") or ""))


def _found(tools: Any) -> str:
    """The names of the tools that a search found, as the model is to call them; they are declared to it whole."""
    found = []
    for tool in tools if isinstance(tools, list) else ():
        if not isinstance(tool, Mapping):
            continue
        inner = tool.get("tools")
        members = inner if isinstance(inner, list) else [tool]
        space = f"{tool.get('name')}__" if isinstance(inner, list) else ""
        found += [
            {"name": f"{space}{one.get('name')}", "description": one.get("description") or ""}
            for one in members
            if isinstance(one, Mapping)
        ]
    return json.dumps({"tools": found}, ensure_ascii=False)
