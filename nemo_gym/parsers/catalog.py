"""The formats by their names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from .format import Format
from .reasoning import BLOCKS as REASONING
from .tool_calls.hermes import Hermes

__all__ = ["REASONING", "TOOL_CALLS", "lookup"]

_Value = TypeVar("_Value")

TOOL_CALLS: dict[str, type[Format]] = {"hermes": Hermes, "qwen3": Hermes}


def lookup(table: Mapping[str, _Value], name: str, key: str) -> _Value:
    """The named format. Raises ValueError that lists what there is."""
    try:
        return table[name]
    except KeyError:
        raise ValueError(f"{key}: unknown format {name!r}; expected one of {', '.join(sorted(table))}") from None
