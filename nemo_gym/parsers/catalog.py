"""The formats by their names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from .format import Format
from .reasoning import BLOCKS as REASONING
from .tool_calls.deepseek import DeepSeekV3, DeepSeekV31
from .tool_calls.glm import Glm
from .tool_calls.hermes import Hermes
from .tool_calls.kimi_k2 import KimiK2
from .tool_calls.llama3_json import Llama3Json
from .tool_calls.minimax_m2 import MinimaxM2
from .tool_calls.mistral import Mistral
from .tool_calls.pythonic import Pythonic
from .tool_calls.qwen3_coder import Qwen3Coder

__all__ = ["REASONING", "TOOL_CALLS", "lookup"]

_Value = TypeVar("_Value")

TOOL_CALLS: dict[str, type[Format]] = {
    "hermes": Hermes,
    "qwen3": Hermes,
    "qwen3_coder": Qwen3Coder,
    "glm45": Glm,
    "glm47": Glm,
    "glm": Glm,
    "glm_moe_dsa": Glm,
    "deepseek_v3": DeepSeekV3,
    "deepseek_v31": DeepSeekV31,
    "kimi_k2": KimiK2,
    "mistral": Mistral,
    "minimax_m2": MinimaxM2,
    "llama3_json": Llama3Json,
    "pythonic": Pythonic,
}


def lookup(table: Mapping[str, _Value], name: str, key: str) -> _Value:
    """The named format. Raises ValueError that lists what there is."""
    try:
        return table[name]
    except KeyError:
        raise ValueError(f"{key}: unknown format {name!r}; expected one of {', '.join(sorted(table))}") from None
