"""How far a prompt's tokens go on from the call that it continues, and why no further.

Where the prompt was rendered by a server that is not ours, the cause is read from what both calls held, without the
tokenizer: the likeliest of the closed list.
"""

from __future__ import annotations

from array import array

from ..exchange.call import Prior
from ..exchange.parts import ToolCall
from ..exchange.request import ModelRequest


def shared(first: array, second: array) -> int:
    """So many tokens both begin with."""
    length = min(len(first), len(second))
    if first[:length] == second[:length]:
        return length
    return next(at for at in range(length) if first[at] != second[at])


def displaced(prior: Prior) -> str | None:
    """The cause where the earlier turn is not in its place among the messages; None where it is."""
    if prior.left_out:
        return "reasoning_dropped" if prior.reasoned else "template_boundary"
    if prior.messages == 0:
        return "compaction"  # the client moved or rewrote what stood before the turn
    return None


def broken(prior: Prior, prompt: array, request: ModelRequest, relation: str) -> tuple[int, str] | None:
    """The position where the prompt leaves the earlier call's tokens, and the cause; None when it holds all of them."""
    at = shared(prior.tokens, prompt)
    if at == len(prior.tokens):
        return None
    if relation in ("retry", "compaction"):
        return at, relation
    if (cause := displaced(prior)) is not None:
        return at, cause
    turn = prior.messages - 1
    if not 0 <= turn < len(request.messages) or request.messages[turn].role != "assistant":
        return at, "foreign_history"
    if prior.reasoned:
        return at, "reasoning_dropped"
    if any(isinstance(part, ToolCall) for part in request.messages[turn].parts):
        return at, "arguments_reserialised"
    return at, "template_boundary"
