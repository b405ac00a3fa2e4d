"""Token counts as backends spell them: a whole number however it was written, else unknown."""

from __future__ import annotations

from typing import Any


def tokens(value: Any) -> int | None:
    if value is None or (type(value) is int and 0 <= value < 2**31):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if 0 <= value < 2**31 and value == int(value) else None
