"""Declared tools, and the one place where a called name is resolved to a declared tool."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from .ids import LONGEST, fitted
from .parts import Origin, ToolCall

_SEPARATORS = re.compile(r"[.:/]|__")
_PARTING = re.compile(r"[.:/_-]")
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")


class Tool(Struct, frozen=True, gc=False):
    name: str
    description: str = ""
    parameters: Mapping[str, Any] | None = None
    """JSON schema; None for a custom tool."""
    namespace: str | None = None
    kind: Literal["function", "custom", "provider"] = "function"
    body: Mapping[str, Any] | None = None
    """A provider tool's whole declaration: its meaning, so it is compared."""
    origin: Origin | None = None


ToolChoice = Literal["auto", "none", "required"] | Tool


def is_strict(tool: Tool) -> bool:
    """Whether calls are to follow the schema to the letter, as the wire that the tool came over says it."""
    body = tool.origin.body if tool.origin is not None else {}
    function = body.get("function")
    return (function if isinstance(function, Mapping) else body).get("strict") is True


class Toolbox:
    """The declared tools under the flat names that a chat backend or a parser sees."""

    def __init__(self, tools: Iterable[Tool]) -> None:
        self.tools = tuple(tools)
        self._renamed: dict[tuple[str | None, str], str] = {}
        self._by_flat: dict[str, Tool] = {}
        for tool in self.tools:
            if tool.kind != "provider":
                self._by_flat[self._own(tool) if tool.namespace else tool.name] = tool

    # The rarer a spelling, the later it is looked for: most calls name a tool as it was declared.

    @cached_property
    def _by_name(self) -> dict[str, Tool | None]:
        """A bare name that two namespaces share resolves to neither."""
        return _unique((tool.name, tool) for tool in self._by_flat.values())

    @cached_property
    def _by_last(self) -> dict[str, Tool | None]:
        return _unique((_SEPARATORS.split(flat)[-1], tool) for flat, tool in self._by_flat.items())

    @cached_property
    def _by_fused(self) -> dict[str, Tool | None]:
        return _unique((_fused(flat), tool) for flat, tool in self._by_flat.items())

    def flat(self, tool: Tool) -> str:
        """A backend-safe name: letters, digits, `_`, `-`, namespace in front."""
        if not tool.namespace:
            return tool.name
        return self._renamed.get((tool.namespace, tool.name)) or spelled(tool.name, tool.namespace)

    def _own(self, tool: Tool) -> str:
        """The flat name of a tool, which is no other tool's."""
        flat = spelled(tool.name, tool.namespace)
        other = self._by_flat.get(flat)
        if other is not None and (other.namespace, other.name) != (tool.namespace, tool.name):
            flat = self._renamed[tool.namespace, tool.name] = fitted(f"{flat:_<{LONGEST}}{tool.namespace}.{tool.name}")
        return flat

    def spell(self, call: ToolCall) -> str:
        """The flat name of a call that was made before: its tool's, else its own."""
        if (call.namespace, call.name) in self._renamed:
            return self._renamed[call.namespace, call.name]
        name = spelled(call.name, call.namespace)
        tool = self.find(name)
        return name if tool is None else self.flat(tool)

    def find(self, name: str) -> Tool | None:
        """The declared tool that a called name means: exact, then with a qualifier missing, extra, or fused to it."""
        found = self._by_flat.get(name) or self._by_name.get(name)
        if found is not None or not self._by_flat:
            return found
        for cut in _SEPARATORS.finditer(name):
            last = name[cut.end() :]
            found = self._by_flat.get(last) or self._by_name.get(last)
            if found is not None:
                return found
        return self._by_last.get(name) or self._by_fused.get(_fused(name).removeprefix("functions"))

    def bind(self, call: ToolCall) -> ToolCall:
        """The call as declared: namespace split out, custom input unwrapped; unknown names unchanged."""
        tool = self.find(call.name)
        if tool is None:
            return call
        custom = tool.kind == "custom"
        arguments = call.arguments if call.custom or not custom else _custom_input(call.arguments)
        if (tool.name, tool.namespace, custom, arguments) == (call.name, call.namespace, call.custom, call.arguments):
            return call
        return replace(call, name=tool.name, namespace=tool.namespace, custom=custom, arguments=arguments, origin=None)


def spelled(name: str, namespace: str | None) -> str:
    """A tool's name with its namespace in front, as any backend takes it."""
    return fitted(_UNSAFE.sub("_", f"{namespace}__{name}")) if namespace else name


def _fused(name: str) -> str:
    """A name without what parts its qualifiers."""
    return _PARTING.sub("", name)


def _unique(named: Iterable[tuple[str, Tool]]) -> dict[str, Tool | None]:
    """Tools by name; a name of several is none's."""
    tools: dict[str, Tool | None] = {}
    for name, tool in named:
        tools[name] = None if name in tools else tool
    return tools


def _custom_input(arguments: str) -> str:
    """R7: the one string of an object with exactly one string value; anything else is taken whole."""
    try:
        value = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, UnicodeError):
        return arguments
    if isinstance(value, dict) and len(value) == 1:
        (only,) = value.values()
        if isinstance(only, str):
            return only
    return arguments
