"""What an HTTP failure means: which to repeat, and an overflow told from the rest (A5, A12)."""

from __future__ import annotations

import re

from ..exchange.errors import ModelError

REPEATABLE = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
"""A generation has no side effect, so an answer with one of these may be asked for again."""

_OVERFLOW = re.compile(
    r"maximum context length (?:is|of) \d+|context length.*exceed|prompt is too long|"
    r"longer than the maximum model length|input is too long|maximum model length of \d+",
    re.IGNORECASE,
)
_TOO_MANY_ASKED = re.compile(
    r"max(?:_completion|_output|_new)?_tokens['\"`]*[^.]{0,60}(?:too large|at most|less than)", re.I
)
"""The prompt fits; what was asked for on top of it does not."""


def is_overflow(status: int, code: str | None, message: str) -> bool:
    """Whether the prompt did not fit the model's context.

    The structured code decides; else the provider's known wording, and then with both token numbers in it,
    so that a 400 about max_tokens stays itself.
    """
    if status not in (400, 413, 422):
        return False
    if code == "context_length_exceeded":
        return True
    if _TOO_MANY_ASKED.search(message):
        return False
    return bool(_OVERFLOW.search(message)) and len(re.findall(r"\d{2,}", message)) >= 2


def is_repeatable(error: ModelError) -> bool:
    """Whether the same request may be sent again; a quota that is used up does not come back in a minute."""
    return error.status in REPEATABLE and error.code != "insufficient_quota"
