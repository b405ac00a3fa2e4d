"""JSON in and out, exact: integers of any size survive, and no surrogate half gets past the door."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec

_decoder = msgspec.json.Decoder()
_encoder = msgspec.json.Encoder()


def decode(data: bytes | str, *, halves: bool = False) -> Any:
    """What `json.loads` gives, with lone surrogates as U+FFFD. Raises what `json.loads` raises.

    With `halves` lone surrogates stay: a stream's next piece may bring the other one.

    msgspec refuses some of what json takes (NaN, lone surrogates, a byte order mark), so it only has the first word.
    """
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        value = json.loads(data)
    return value if halves else whole(value)


class NotFinite(ValueError):
    """NaN, an infinity, or a number too large for a float: no JSON that could be passed on. `path` leads to it."""

    def __init__(self, path: tuple[str | int, ...], value: float) -> None:
        super().__init__(f"{value} is no JSON value")
        self.path = path
        self.value = value


def decode_body(data: bytes | str) -> Any:
    """As `decode`, of what will be passed on. Raises NotFinite too."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        value = whole(json.loads(data))
    _check_finite(value, ())
    return value


def _check_finite(value: Any, path: tuple[str | int, ...]) -> None:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise NotFinite(path, value)
    elif isinstance(value, list):
        for place, entry in enumerate(value):
            _check_finite(entry, (*path, place))
    elif isinstance(value, dict):
        for key, entry in value.items():
            _check_finite(entry, (*path, key))


def strict(data: bytes | memoryview) -> Any:
    """The first word alone. Raises msgspec.MsgspecError, UnicodeError or RecursionError where `decode` may go on."""
    return _decoder.decode(data)


def is_strict(text: str) -> bool:
    """Whether any JSON parser takes it; `decode` takes more."""
    try:
        _decoder.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return False
    return True


def encode(value: Any) -> bytes:
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:
        return _encoder.encode(whole(value))


def encode_lines(texts: list[str]) -> list[str]:
    """Each text as JSON; in one go, since a call for each would cost more than the work."""
    try:
        return _encoder.encode_lines(texts).decode().split("\n")[:-1]
    except UnicodeEncodeError:
        return [_encoder.encode(whole_text(text)).decode() for text in texts]


def whole_text(text: str) -> str:
    """Surrogate pairs joined, lone halves as U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def whole(value: Any) -> Any:
    if isinstance(value, str):
        return whole_text(value)
    if isinstance(value, list | tuple):
        return [whole(entry) for entry in value]
    if isinstance(value, dict):
        return {whole_text(key): whole(entry) for key, entry in value.items()}
    return value
