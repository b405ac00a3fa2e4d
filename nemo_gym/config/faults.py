"""One fault in a configuration, in the words of whoever wrote it."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from msgspec import Struct


class Problem(Struct, frozen=True):
    """A fault: which key, where it was written, and what was expected instead."""

    key: str
    where: str
    message: str

    def __str__(self) -> str:
        return ": ".join(part for part in (self.where, self.key, self.message) if part)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?`, or what there is to choose from, or nothing."""
    names = sorted(set(known))
    if near := get_close_matches(word, names, n=1, cutoff=0.6):
        return f"; did you mean {near[0]!r}?"
    if 0 < len(names) <= 12:
        return f"; there {'is' if len(names) == 1 else 'are'} {', '.join(names)}"
    return ""
