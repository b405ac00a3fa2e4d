"""How long a completion may get: the context has room for it, or the prompt did not fit to begin with (A12)."""

from __future__ import annotations

from ..exchange.errors import ModelError


def room(prompt: int, context: int | None) -> int | None:
    """Tokens that are left for the completion; None where the context is not known."""
    if context is None:
        return None
    if prompt >= context:
        raise ModelError(
            400,
            "invalid",
            f"This model's maximum context length is {context} tokens, and the prompt has {prompt}.",
            code="context_length_exceeded",
            param="messages",
        )
    return context - prompt
