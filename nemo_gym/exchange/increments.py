"""A stream is a reply in smaller parts, so there is no second vocabulary: `fold(unfold(reply))` gives its parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import regex
from msgspec import Struct
from msgspec.structs import replace

from .parts import Part, Reasoning, Refusal, Text, merged
from .reply import Choice, ModelReply, TokenTrace

_GRAPHEME = regex.compile(r"\X")
_PIECE = 128
"""Graphemes in a replayed piece: a stream that looks like one, without a frame for each token."""


class Increment(Struct, frozen=True, gc=False):
    """A piece of a part of a choice."""

    part: Part
    choice: int = 0
    tokens: TokenTrace | None = None


def unfold(reply: ModelReply) -> Iterator[Increment]:
    """Pieces for a replay; cuts fall between graphemes, and between tokens where `texts` are known.

    A choice's tokens, where their texts are known, ride on its first text."""
    for choice in reply.choices:
        tokens = choice.tokens if choice.tokens is not None and choice.tokens.texts is not None else None
        for part in choice.parts:
            for piece in _pieces(part, choice):
                if tokens is not None and isinstance(piece, Text):
                    yield Increment(piece, choice.index, tokens)
                    tokens = None
                else:
                    yield Increment(piece, choice.index)


def _pieces(part: Part, choice: Choice) -> Iterator[Part]:
    if not isinstance(part, Text | Reasoning | Refusal) or not part.text:
        yield part
        return
    texts = cuts(part.text, choice)
    last = len(texts) - 1
    for number, text in enumerate(texts):
        piece = replace(part, text=text)
        if isinstance(piece, Reasoning) and number < last:
            piece = replace(piece, payload=None)
        yield piece


def cuts(text: str, choice: Choice) -> list[str]:
    """The pieces in which a text of this choice is replayed."""
    if choice.tokens is not None and choice.tokens.texts is not None:
        # The writer lays log-probs beside the text, so a part stays whole here (B6 allows it).
        return [text]
    if text.isascii() and "\r" not in text:
        return [text[start : start + _PIECE] for start in range(0, len(text), _PIECE)]
    graphemes = _GRAPHEME.findall(text)
    return ["".join(graphemes[start : start + _PIECE]) for start in range(0, len(graphemes), _PIECE)]


def fold(increments: Iterable[Increment]) -> dict[int, tuple[Part, ...]]:
    """`fold(unfold(reply)) == {c.index: c.parts for c in reply.choices}` where no choice is empty."""
    pieces: dict[int, list[Part]] = {}
    for increment in increments:
        pieces.setdefault(increment.choice, []).append(increment.part)
    return {index: tuple(merged(parts)) for index, parts in pieces.items()}
