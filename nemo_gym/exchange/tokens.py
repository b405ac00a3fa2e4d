"""Token ids as `array('i')`: where two sequences part."""

from __future__ import annotations

from array import array


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
