"""Path -> dialect."""

from __future__ import annotations

from typing import cast

from . import chat, messages, responses
from .dialect import Dialect

DIALECTS: dict[str, Dialect] = {
    "/v1/chat/completions": cast(Dialect, chat),
    "/v1/responses": cast(Dialect, responses),
    "/v1/messages": cast(Dialect, messages),
}


def with_reasoning(shape: str) -> dict[str, Dialect]:
    """The same, with reasoning in Responses as a `summary` or as `content` (R23)."""
    if shape == "summary":
        return DIALECTS
    return {**DIALECTS, "/v1/responses": cast(Dialect, responses.shaped(shape))}
