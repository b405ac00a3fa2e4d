"""Whether a reply is what its types say, whoever made it: one that is not would be unreadable in every later view."""

from __future__ import annotations

import re
import sys
from array import array

from .parts import Media, Other, Part, Reasoning, Refusal, Text, ToolCall, ToolResult
from .reply import Choice, ModelReply, TokenTrace, Usage

_INT32 = 2**31
_LOGPROB_SLACK = 0.01
"""Log-probs are at most 0 but for rounding."""
_POSITIVE = re.compile(rb"[\x3c-\x7f]")
"""The top byte of a float of 0.0078 and more, and of what is no number."""


def unsound(reply: ModelReply) -> str | None:
    """What is wrong with a reply, in words fit for a client; None when nothing is."""
    if not isinstance(reply.id, str) or not isinstance(reply.model, str):
        return "its id or model is no string"
    if not _whole(reply.created, 2**53):
        return "its time is no number of seconds"
    wrong = _usage(reply.usage) or (_ids(reply.prompt_ids) if reply.prompt_ids is not None else None)
    indices = {choice.index for choice in reply.choices}
    if len(indices) != len(reply.choices):
        wrong = wrong or "two of its choices have one index"
    for choice in reply.choices:
        wrong = wrong or _choice(choice)
    for place in range(len(indices)):  # a stream begins with choice 0, and a choice that is not there cannot end
        if place not in indices:
            return wrong or f"it has no choice {place}, but one after it"
    return wrong


def _choice(choice: Choice) -> str | None:
    if not _whole(choice.index, _INT32):
        return "a choice's index is no whole number"
    for part in choice.parts:
        if wrong := _part(part):
            return wrong
    return None if choice.tokens is None else _trace(choice.tokens)


def _part(part: Part) -> str | None:
    match part:
        case Text() | Refusal():
            sound = isinstance(part.text, str) and isinstance(part.id, str)
        case Reasoning():
            sound = isinstance(part.text, str) and isinstance(part.payload, str | None)
        case ToolCall():
            sound = all(isinstance(value, str) for value in (part.name, part.arguments, part.call_id, part.id))
        case ToolResult() | Media() | Other():
            sound = True
    return None if sound else f"a part of it ({type(part).__name__}) holds something that is no text"


def _usage(usage: Usage) -> str | None:
    for count in (usage.prompt, usage.completion, usage.reasoning, usage.cached):
        if count is not None and not _whole(count, _INT32):
            return "its usage is no token count"
    return None


def _trace(tokens: TokenTrace) -> str | None:
    if tokens.ids is not None and (wrong := _ids(tokens.ids)):
        return wrong
    suspicious = tokens.logprobs is not None and _POSITIVE.search(_top_bytes(tokens.logprobs))
    if suspicious and max(tokens.logprobs or ()) > _LOGPROB_SLACK:
        return "a log-probability is greater than 0"
    return None


def _ids(ids: array) -> str | None:
    return None if _top_bytes(ids).isascii() else "a token id is negative"


def _top_bytes(values: array) -> bytes:
    """Each value's byte with the sign: looking at these finds what could be wrong without an object for each value."""
    first = values.itemsize - 1 if sys.byteorder == "little" else 0
    return values.tobytes()[first :: values.itemsize]


def _whole(value: object, limit: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < limit
