"""Whether log-probs are of the distribution that was sampled from (`processed`) or of temperature 1 (`raw`): measured.

At twice the temperature the alternatives of one position lie half as far apart, if the temperature is in their
log-probs, and as far apart as before, if it is not. No name and no version is asked.
"""

from __future__ import annotations

from collections.abc import Mapping

_APART = 0.5
"""Nats between two alternatives, from which on a change of temperature shows."""
_NEAR = 0.1
_NEVER = -9999.0
"""What servers write for a token that cannot be sampled."""


def mode_of(once: Mapping[str, float], twice: Mapping[str, float]) -> tuple[str | None, str]:
    """The mode, or None, and the reason; of a position's alternatives at temperature 1 and at 2."""
    if not once or not twice:
        return None, "no alternatives to compare"
    shared = [token for token in once.keys() & twice.keys() if min(once[token], twice[token]) > _NEVER]
    shared.sort(key=lambda token: once[token])
    if len(shared) < 2 or (apart := once[shared[-1]] - once[shared[0]]) < _APART:
        return None, "the alternatives are too near one another"
    ratio = (twice[shared[-1]] - twice[shared[0]]) / apart
    if abs(ratio - 0.5) < _NEAR:
        return "processed", "processed"
    if abs(ratio - 1.0) < _NEAR:
        return "raw", "raw"
    return None, f"neither raw nor processed: {ratio:.2f}"
