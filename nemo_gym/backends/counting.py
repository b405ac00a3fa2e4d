"""How an endpoint is asked for the tokens of a prompt: each dialect has a route for it, and none is guessed at (M4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from ..dialects import codec
from ..exchange.errors import ModelError


class Route(Struct, frozen=True):
    path: str
    answer: str
    """The field of the answer that holds the number."""
    fields: frozenset[str]
    """Those of a request that change its prompt."""
    at_root: bool = False
    """Beside `/v1`, not below it."""


ROUTES = {
    "chat": Route(
        "/tokenize", "count", frozenset({"model", "messages", "tools", "chat_template_kwargs"}), at_root=True
    ),  # vLLM's
    "responses": Route(
        "/responses/input_tokens",
        "input_tokens",
        frozenset({"model", "input", "instructions", "tools", "tool_choice", "reasoning", "text", "truncation"}),
    ),
    "messages": Route(
        "/messages/count_tokens",
        "input_tokens",
        frozenset({"model", "messages", "system", "tools", "tool_choice", "thinking", "output_config"}),
    ),
}


def asked(dialect: str, body: Mapping[str, Any]) -> tuple[Route, bytes]:
    """Where to ask, and with what; `body` is a whole request of this dialect."""
    route = ROUTES[dialect]
    question = {name: value for name, value in body.items() if name in route.fields}
    effort = body.get("reasoning_effort")
    if dialect == "chat" and effort is not None:  # as vLLM renders it
        kwargs = {"reasoning_effort": effort, "enable_thinking": effort != "none"}
        question["chat_template_kwargs"] = kwargs | dict(question.get("chat_template_kwargs") or {})
    return route, codec.encode(question)


def read(route: Route, data: bytes) -> int:
    """The number in the endpoint's answer."""
    try:
        count = codec.decode(data)[route.answer]
    except (ValueError, LookupError, TypeError):
        count = None
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        raise ModelError(502, "backend", "the backend's count of tokens could not be read")
    return count
