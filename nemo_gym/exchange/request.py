"""What is to be generated, and nothing of how it is delivered (that stays in `origin`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from .parts import Message, Origin
from .tools import Tool, ToolChoice


class Sampling(Struct, frozen=True, gc=False):
    """None = not asked for; the backend's default holds."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    n: int = 1
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Mapping[int, float] | None = None
    logprobs: int | None = None
    """Alternatives a token; 0 = only the sampled one's."""


class ModelRequest(Struct, frozen=True, gc=False):
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool = True
    sampling: Sampling = Sampling()
    output_schema: Mapping[str, Any] | None = None
    """{} = any JSON object."""
    effort: str | None = None
    model: str | None = None
    previous: str | None = None
    """previous_response_id; resolved before generate."""
    origin: Origin | None = None
