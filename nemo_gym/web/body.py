"""JSON bodies between servers: what is written and what is read back are one and the same, integers of any size and
half a character included."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import msgspec
import orjson
from pydantic import BaseModel

_DEEPEST = 500
"""Levels that may be written: half of what can be read back, wherever that is done."""


def dumps(value: object) -> bytes:
    """JSON bytes of a plain value or of a pydantic object (unset fields left out, wire names kept).

    Raises:
        ValueError: it is nested too deeply.
    """
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json", by_alias=True, exclude_unset=True)
    try:
        return orjson.dumps(value, default=_model)
    except TypeError:  # integers beyond 64 bits, lone surrogates, many levels
        if _is_deeper(value, _DEEPEST):
            raise ValueError("it is nested too deeply") from None
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


def _is_deeper(value: object, levels: int) -> bool:
    level = [value]
    while level and levels:
        level = [inner for outer in level for inner in _inner(outer)]
        levels -= 1
    return bool(level)


def _inner(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list | tuple) else ()


def _model(value: object) -> object:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", by_alias=True, exclude_unset=True)
    raise TypeError(f"{type(value).__name__} has no form in JSON")
