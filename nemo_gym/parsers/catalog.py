"""The formats by their names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..exchange.tools import Toolbox
from .parser import Parser
from .reasoning import QWEN3, Markers
from .tool_calls.hermes import HermesParser

TOOL_CALLS: dict[str, Callable[[Toolbox], Parser]] = {"hermes": HermesParser, "qwen3": HermesParser}
REASONING: dict[str, Markers] = {"qwen3": QWEN3}


def lookup(table: dict[str, Any], name: str, key: str) -> Any:
    """The named format. Raises ValueError that lists what there is."""
    try:
        return table[name]
    except KeyError:
        raise ValueError(f"{key}: unknown format {name!r}; expected one of {', '.join(sorted(table))}") from None
