"""Cuttings of a text, and the law that all of them keep."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

from nemo_gym.parsers import Parsed, Parser


def at(text: str, places: Iterable[int]) -> list[str]:
    inside = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[a:b] for a, b in pairwise(inside)]


def by(text: str, size: int) -> list[str]:
    return [text[n : n + size] for n in range(0, len(text), size)]


def everywhere(text: str) -> Iterator[list[str]]:
    """Cut in two at every position, and into pieces of each small size."""
    for place in range(1, len(text)):
        yield [text[:place], text[place:]]
    for size in (1, 2, 3, 4, 7, 16):
        yield by(text, size)


def read(parser: Parser, pieces: Iterable[str]) -> Parsed:
    stream = parser.stream()
    parts = [part for piece in pieces for part in stream.feed(piece)]
    return Parsed.fold([*parts, *stream.finish()])


def check(parser: Parser, text: str, cuttings: Iterable[list[str]]) -> int:
    """P1 for each of the cuttings; gives how many there were."""
    whole, count = parser.parse(text), 0
    for pieces in cuttings:
        assert read(parser, pieces) == whole, pieces
        count += 1
    return count
