"""No secret is in a record (C8): values under secret names, and values known to be secret wherever they are.

A request's text is left alone otherwise: it is what was generated from.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

NAMES = ("api_key", "apikey", "api-key", "x-api-key", "authorization", "proxy-authorization", "access_token")
HIDDEN = "[redacted]"


class Redactor:
    """`names` are field names in any case, added to the usual ones; `values` are secrets in themselves.

    A value of fewer than eight characters ("none", say) is no secret that could be told from ordinary text.
    """

    def __init__(self, names: Iterable[str] = (), values: Iterable[str] = ()) -> None:
        self._names = frozenset(name.lower() for name in (*NAMES, *names))
        self._values = tuple(value for value in values if len(value) >= 8)
        alternatives = b"|".join(re.escape(name.encode()) for name in sorted(self._names))
        self._field = re.compile(rb'("(?:' + alternatives + rb')"\s*:\s*")(?:[^"\\]|\\.)*', re.IGNORECASE)
        self._bytes = tuple(value.encode() for value in self._values)
        self.concerns: Callable[[bytes], object] = self._concerns if self._bytes else self._field.search
        """Whether this JSON has anything to hide."""

    def _concerns(self, data: bytes) -> object:
        return self.knows(data) or self._field.search(data)

    def knows(self, text: bytes) -> bool:
        """Whether a value that is a secret stands in a text."""
        return any(value in text for value in self._bytes)

    def hides(self, name: str) -> bool:
        """Whether a string under this name is a secret."""
        return name.lower() in self._names

    def text(self, text: str) -> str:
        for value in self._values:
            text = text.replace(value, HIDDEN)
        return text

    def raw(self, data: bytes) -> bytes:
        """Bytes that need not be whole JSON."""
        data = self._field.sub(rb"\1" + HIDDEN.encode(), data)
        for value in self._bytes:
            data = data.replace(value, HIDDEN.encode())
        return data

    def value(self, value: Any) -> Any:
        """A JSON value without its secrets; the same object when it has none."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list | tuple):
            cleaned = [self.value(one) for one in value]
            return value if all(one is other for one, other in zip(cleaned, value, strict=True)) else cleaned
        if not isinstance(value, dict):
            return value
        fields = {
            name: HIDDEN if isinstance(one, str) and self.hides(name) else self.value(one)
            for name, one in value.items()
        }
        return value if all(fields[name] is value[name] for name in value) else fields
