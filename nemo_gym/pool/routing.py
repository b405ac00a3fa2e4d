"""Which replica: a rollout's own, where its prefix is cached, as long as that is fair to the others.

Pure and quick: one digest a decision, however many replicas there are. Rendezvous hashing: a replica that goes or comes
moves only its own rollouts, and a rollout whose replica comes back goes back to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Protocol, TypeVar

SHARE = 0.1
"""By how much of the mean load a rollout's own replica may be busier than the mean, and the least busy one idler."""
SLACK = 8.0
"""Calls by which it may be busier in any case: a cached prefix is worth that."""
_MASK = (1 << 64) - 1
_ODD = 0x9E3779B97F4A7C15


class Candidate(Protocol):
    point: int
    """`point_of` its name."""
    load: float
    """Calls in flight, divided by its weight."""


C = TypeVar("C", bound=Candidate)


def point_of(name: str) -> int:
    """64 bits that a name always has, in every process."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big")


def choose(candidates: Sequence[C], affinity: str | None) -> C:
    """One of at least one candidate."""
    if len(candidates) == 1:
        return candidates[0]
    loads = [candidate.load for candidate in candidates]
    least = min(loads)
    if affinity is not None:
        own = _own(candidates, point_of(affinity))
        mean = sum(loads) / len(loads)
        fair = own.load + 1 <= mean * (1 + SHARE) and least >= mean * (1 - SHARE)
        if fair or own.load <= least + SLACK:
            return own
    return candidates[loads.index(least)]


def _own(candidates: Sequence[C], rollout: int) -> C:
    # Multiplied by an odd number, the upper bits depend on all bits below: that is mixing enough for digests.
    weights = [((candidate.point ^ rollout) * _ODD) & _MASK for candidate in candidates]
    return candidates[weights.index(max(weights))]
