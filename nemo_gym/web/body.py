# LEAD'S DECISION (read, then delete this comment): no HTTP client of our own, neither connection.py nor connections.py. The
# project's rule is that a well-kept library, even a slower one (aiohttp is named), beats own code here; the benchmark's bare
# server uses "the same aiohttp client", and jobs cost 7.8 ms a rollout quiet with aiohttp (asked 10: met, /tmp/job/jobs6.log).
# Go back to aiohttp in this working tree (git checkout of your own hunks), keep what else you gained, tune aiohttp instead
# (prebuilt URL and headers, skip_auto_headers, read_bufsize, one session), and spend the time on our own code's cost.
"""JSON bodies between servers: what is written and what is read back are one and the same, integers of any size and
half a character included."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import orjson
from pydantic import BaseModel


def dumps(value: object) -> bytes:
    """JSON bytes of a plain value or of a pydantic object (unset fields left out, wire names kept)."""
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json", by_alias=True, exclude_unset=True)
    try:
        return orjson.dumps(value, default=_model)
    except TypeError:  # integers beyond 64 bits, lone surrogates
        return json.dumps(value, ensure_ascii=True, default=_model, separators=(",", ":")).encode()


def loads(body: bytes) -> Any:
    """The value of a JSON body. Raises ValueError for what is none."""
    try:
        return msgspec.json.decode(body)  # orjson would make floats of long integers
    except (msgspec.DecodeError, UnicodeError):
        pass  # NaN, and half a character: a model may have written it, and it was kept
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    try:
        return json.loads(body)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _model(value: object) -> object:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", by_alias=True, exclude_unset=True)
    raise TypeError(f"{type(value).__name__} has no form in JSON")
