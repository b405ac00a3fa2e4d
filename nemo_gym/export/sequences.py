"""Training sequences: one for each branch of a rollout, each generated token trained in exactly one of them.

A sequence is what the model saw and said from the first prompt to the last completion of a branch. What an earlier
branch has already trained is context here, with a mask of 0.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from itertools import pairwise

from msgspec import Struct

from .forest import Generation

NO_VERSION = -1
"""The policy version of a token that no policy sampled, or whose policy is not known."""


class Sequence(Struct, frozen=True):
    """Columns of equal length, and what they are made of."""

    input_ids: array
    loss_mask: array
    logprobs: array
    policy_version: array
    branch: int
    generations: tuple[Generation, ...]
    """Those on the path, first to last."""
    trained: tuple[Generation, ...]
    """Those that this sequence trains."""

    @property
    def model(self) -> str:
        return self.generations[-1].model


def sequences(roots: Iterable[Generation]) -> Iterator[Sequence]:
    """Branches in the order of their calls; the first child of a generation carries its sequence on."""
    done: set[int] = set()
    branch = 0
    for path in _paths(roots):
        while path and path[-1].discarded is not None:
            path = path[:-1]
        trained = tuple(one for one in path if one.discarded is None and id(one) not in done)
        if not trained:
            continue
        done.update(map(id, trained))
        yield _sequence(path, trained, branch)
        branch += 1


def _paths(roots: Iterable[Generation]) -> Iterator[tuple[Generation, ...]]:
    """From each root to each leaf, depth first."""
    stack: list[tuple[Generation, ...]] = []
    stack.extend((root,) for root in reversed(list(roots)))
    while stack:
        path = stack.pop()
        if path[-1].children:
            stack.extend((*path, child) for child in reversed(path[-1].children))
        else:
            yield path


def _sequence(path: tuple[Generation, ...], trained: tuple[Generation, ...], branch: int) -> Sequence:
    ids = path[-1].full
    mask = array("b", bytes(len(ids)))
    logprobs = array("f", bytes(4 * len(ids)))
    versions = array("i", [NO_VERSION]) * len(ids)
    for generation in trained:
        start, end = len(generation.prompt), len(generation.full)
        assert generation.logprobs is not None
        mask[start:end] = array("b", b"\x01") * (end - start)
        logprobs[start:end] = generation.logprobs
        runs = [*generation.versions, (end - start, NO_VERSION)]
        for (first, version), (last, _) in pairwise(runs):
            versions[start + first : start + last] = array("i", [version]) * (last - first)
    return Sequence(ids, mask, logprobs, versions, branch, path, trained)
