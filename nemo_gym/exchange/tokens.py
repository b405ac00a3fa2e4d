"""Token ids as `array('i')`, log-probs as `array('f')`: made of lists; where two sequences part."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from typing import Literal


def packed(kind: Literal["i", "f"], values: Sequence[float]) -> array:
    """`array(kind, values)` in a third of its time. Raises what that raises."""
    try:
        return array(kind, struct.pack(f"{len(values)}{kind}", *values))
    except (struct.error, OverflowError):  # which are not in the words, nor always the limits, of an array
        return array(kind, values)


def shared_prefix(first: array, second: array) -> int:
    """How many leading items are equal. Halves instead of stepping: comparing memory is what is fast."""
    shorter = min(len(first), len(second))
    one, other = memoryview(first), memoryview(second)
    if one[:shorter] == other[:shorter]:
        return shorter
    low, high = 0, shorter  # equal up to low, different within high
    while high - low > 1:
        middle = (low + high) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low
