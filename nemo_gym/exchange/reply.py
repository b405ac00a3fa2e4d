"""A finished reply. Unknown is None, never 0."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from .parts import Origin, Part


class Usage(Struct, frozen=True, gc=False):
    """Tokens. None = unknown; a dialect that needs a number writes 0, the record keeps null."""

    prompt: int | None = None
    completion: int | None = None
    reasoning: int | None = None
    cached: int | None = None


class TokenTrace(Struct, frozen=True, gc=False):
    """One choice's generated tokens, from the engine, end token included; columns of equal length.

    `array.array` has the buffer protocol (to Arrow without a copy) and value equality.
    """

    ids: array | None = None
    """array('i')"""
    logprobs: array | None = None
    """array('f'), natural log, of the sampled token."""
    versions: tuple[tuple[int, int], ...] = ()
    """Runs (start, policy_version): ((0, 7),) = all by 7."""
    texts: tuple[str, ...] | None = None
    """Only when the client asked for log-probs."""
    top: tuple[Mapping[str, float], ...] | None = None


Finish = Literal["stop", "length", "tool_calls", "stop_sequence", "content_filter", "refusal", "cancelled"]


class Choice(Struct, frozen=True, gc=False):
    index: int
    parts: tuple[Part, ...]
    """In the order the model produced them."""
    finish: Finish
    tokens: TokenTrace | None = None
    stop_sequence: str | None = None
    origin: Origin | None = None


class ModelReply(Struct, frozen=True, gc=False):
    id: str
    model: str
    """As the backend reports it."""
    created: int
    """Unix seconds."""
    choices: tuple[Choice, ...]
    usage: Usage = Usage()
    prompt_ids: array | None = None
    """array('i'), shared by all choices."""
    origin: Origin | None = None
