"""What was put away lately, in bounded memory: what was not asked for the longest is forgotten first."""

from __future__ import annotations

from collections.abc import Mapping

_COUNT = 1 << 14


class Recent:
    """By the digest of what was put, that under which it is stored. What is forgotten is stored once more."""

    def __init__(self, count: int = _COUNT) -> None:
        self._count = count
        self._young: dict[bytes, bytes] = {}
        self._old: dict[bytes, bytes] = {}
        """So many that came before the young ones, unless they were asked for since."""

    def get(self, key: bytes) -> bytes | None:
        known = self._young.get(key)
        if known is None and (known := self._old.get(key)) is not None:
            self.update({key: known})
        return known

    def update(self, known: Mapping[bytes, bytes]) -> None:
        self._young.update(known)
        if len(self._young) >= self._count:
            self._young, self._old = {}, self._young
