"""What a replica's actor is asked and what it answers, as bytes.

Ray passes bytes on as they are; anything else it pickles, each argument by itself, on either side, and that took more
of a call than the rest of its way. Numbers are their own bytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from .engine import EngineRequest


class Asked(Struct, frozen=True):
    call_id: str
    request: EngineRequest


class ActorOutput(Struct, frozen=True):
    """One choice as it leaves the actor."""

    index: int
    ids: array
    """array('i')"""
    logprobs: array
    """array('f')"""
    text: str
    finish: str | None
    stop: str | int | None
    versions: tuple[tuple[int, int], ...]
    texts: tuple[str, ...] | None = None
    top: tuple[dict[str, float], ...] | None = None


class ActorReply(Struct, frozen=True, tag=True):
    outputs: tuple[ActorOutput, ...]
    cached: int | None
    prompt_logprobs: array | None = None
    """array('f'); the first is not a number."""
    handoff: Mapping[str, Any] | None = None
    """What its connector tells whoever goes on with this prompt."""


class ActorFailure(Struct, frozen=True, tag=True):
    """A failure as a value: an exception of vLLM's could only be read where vLLM is imported."""

    refused: bool
    """The request is at fault, and `message` says how."""
    message: str


Answered = ActorReply | ActorFailure


def numbers_written(value: Any) -> Any:
    if isinstance(value, array):
        return value.typecode.encode() + value.tobytes()
    raise NotImplementedError(type(value).__name__)


def numbers_read(kind: Any, value: Any) -> Any:
    if kind is array and isinstance(value, bytes) and value[:1] in (b"i", b"f"):
        whole = array(value[:1].decode())
        whole.frombytes(value[1:])
        return whole
    raise ValueError("expected numbers")


packed = msgspec.msgpack.Encoder(enc_hook=numbers_written).encode
asked = msgspec.msgpack.Decoder(Asked, dec_hook=numbers_read).decode
answered = msgspec.msgpack.Decoder(Answered, dec_hook=numbers_read).decode
