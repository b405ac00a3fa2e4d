"""Identifiers that sort by time, drawn without a system call each; and those of others, made to fit."""

from __future__ import annotations

import os
import time
from hashlib import blake2b

_pool = ""
"""Random hexadecimal digits, and which of them comes next."""
_next = 0
_VARIANT = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}


def _random(count: int) -> str:
    global _pool, _next
    if _next + count > len(_pool):
        _pool, _next = os.urandom(4096).hex(), 0  # one system call for many ids: each would cost 25 µs under load
    _next += count
    return _pool[_next - count : _next]


def _forget() -> None:
    global _pool
    _pool = ""


os.register_at_fork(after_in_child=_forget)


def uuid7() -> str:
    """A UUIDv7 (RFC 9562) in its text form."""
    clock, drawn = f"{int(time.time() * 1000):012x}", _random(19)
    return f"{clock[:8]}-{clock[8:]}-7{drawn[:3]}-{_VARIANT[drawn[3]]}{drawn[4:7]}-{drawn[7:]}"


LONGEST = 64
"""Characters of an id that every provider takes."""


def fitted(value: str) -> str:
    """The id, or what stands for one that is too long (R15): of the same id always the same, so results still bind."""
    if len(value) <= LONGEST:
        return value
    digest = blake2b(value.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return f"{value[: LONGEST - 33]}_{digest}"
