"""Exact confidence bounds for a proportion (Clopper and Pearson 1934), without a statistics package."""

import math
from collections.abc import Callable

from sfsl.errors import InputError

_TINY = 1e-300


def lower_bound(successes: int, trials: int, confidence: float) -> float:
    """The proportion is at least this, with this confidence."""
    _check(successes, trials, confidence)
    if successes == 0:
        return 0.0
    # The least p for which so many successes or more still have probability 1 - confidence.
    return _solve(lambda p: beta_cdf(p, successes, trials - successes + 1), 1 - confidence)


def upper_bound(successes: int, trials: int, confidence: float) -> float:
    """The proportion is at most this, with this confidence."""
    return 1 - lower_bound(trials - successes, trials, confidence)


def _check(successes: int, trials: int, confidence: float) -> None:
    if not 0 <= successes <= trials or trials == 0:
        raise InputError(f"{successes} successes in {trials} trials")
    if not 0 < confidence < 1:
        raise InputError(f"a confidence of {confidence} is not between 0 and 1")


def _solve(rising: Callable[[float], float], target: float) -> float:
    low, high = 0.0, 1.0
    while low < (middle := (low + high) / 2) < high:
        if rising(middle) < target:
            low = middle
        else:
            high = middle
    return low


def beta_cdf(x: float, a: float, b: float) -> float:
    """The regularized incomplete beta function, by its continued fraction (Lentz's method)."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):  # where the fraction for the other tail converges faster
        return 1 - beta_cdf(1 - x, b, a)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    value, c, d = 1.0, 1.0, 0.0
    for step in range(10_000):
        if step == 0:
            term = 1.0
        elif step % 2 == 0:
            m = step // 2
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        else:
            m = step // 2
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        d = 1 / _away_from_zero(1 + term * d)
        c = _away_from_zero(1 + term / c)
        value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return front * (value - 1) / a


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
