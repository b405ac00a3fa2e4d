"""Student's t distribution, by the standard library alone: the two figures that an interval and a test need.

The tail is the regularised incomplete beta function by its continued fraction (modified Lentz), good to six
digits and more; the quantile is found from the tail, so the two agree.
"""

from __future__ import annotations

import math
from functools import lru_cache

_TINY = 1e-300
_STEPS = 10_000


def two_sided_p(t: float, df: float) -> float:
    """How often |T| would be at least |t| by chance alone."""
    if not df > 0:
        raise ValueError(f"degrees of freedom must be positive, not {df}")
    if math.isinf(t):
        return 0.0
    return _beta(df / (df + t * t), df / 2, 0.5)


@lru_cache(maxsize=1024)
def t_quantile(df: int, level: float = 0.95) -> float:
    """How many standard errors a two-sided interval of this level reaches to each side of a mean."""
    if not 0 < level < 1:
        raise ValueError(f"a level lies between 0 and 1, not at {level}")
    low, high = 0.0, 1.0
    while two_sided_p(high, df) > 1 - level:
        low, high = high, 2 * high
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if two_sided_p(middle, df) > 1 - level else (low, middle)
    return (low + high) / 2


def _beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function I_x(a, b)."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(x, a, b) / a
    return 1.0 - front * _fraction(1 - x, b, a) / b


def _fraction(x: float, a: float, b: float) -> float:
    c, d = 1.0, 1 / _kept_off_zero(1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, _STEPS):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / _kept_off_zero(1 + term * d)
            c = _kept_off_zero(1 + term / c)
            value *= d * c
        if abs(d * c - 1) < 1e-15:
            break
    return value


def _kept_off_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
