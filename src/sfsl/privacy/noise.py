"""Discrete Gaussian noise from a cryptographic stream (spec privacy 9).

``DiscreteGaussian(deviation)`` draws whole numbers k with probability proportional to
exp(-k² / (2 deviation²)), up to a statistical distance of at most ``DISTANCE`` per draw.

Up to ``SEAM`` a draw is one look-up of a uniform number of 256 bits in the table of the distribution
function. Above, it is X0 + b X1 with both from one smaller table of deviation t = deviation / sqrt(1 + b²).
Completing the square, the chance of x is that of the discrete Gaussian times a sum of exp(-(k - y)² / (2 r²))
over all whole k, with r = t / sqrt(1 + b²). By Poisson's summation that sum is the same for every y up to a
factor of 1 ± 2.1 exp(-2 π² r²), and b is the largest for which r is at least 3: that is 1 ± 2^-255.
"""

from bisect import bisect_right
from decimal import ROUND_FLOOR, Context, Decimal, localcontext
from functools import lru_cache
from itertools import accumulate
from math import isqrt

import numpy as np
from numpy.typing import NDArray

from sfsl.crypto.ring import Z64, MaskStream
from sfsl.crypto.secret import KEY_BYTES, Randomness, Secret
from sfsl.errors import ParameterError

# The bound of spec privacy 9.2: rounded thresholds give less than 2^-237, the rest less than 2^-254.
DISTANCE = 2.0**-230
SMALLEST, LARGEST = 0.25, 2.0**24
SEAM = 128.0
_WIDTH = 3  # r above
_TAIL = 19  # a table ends at so many deviations
_LOW_WORDS = 3  # a threshold has one high word and so many low ones
_GUIDE_BITS = 16
# 100 digits; the sum over a table loses 11 of them, and 78 are used.
_ARITHMETIC = Context(prec=100)


class DiscreteGaussian:
    """Noise of one deviation, from 1/4 to 2^24."""

    def __init__(self, deviation: float) -> None:
        if not SMALLEST <= deviation <= LARGEST:
            raise ParameterError(
                f"noise has a deviation from {SMALLEST} to {LARGEST:,.0f} words, not {deviation!r}; change "
                "the unit in which values are counted"
            )
        self.deviation = float(deviation)
        # The largest b with t² / (1 + b²) >= 3², which is deviation >= 3 (1 + b²).
        self._step = isqrt(int(self.deviation / _WIDTH) - 1) if self.deviation > SEAM else 0
        self._table = _table(self.deviation, self._step)

    def draw(self, count: int, randomness: Randomness) -> NDArray[np.int64]:
        """Return ``count`` independent draws from one fresh key. How long it takes depends on them."""
        stream = MaskStream(Secret(randomness.bytes(KEY_BYTES)), Z64)
        drawn = self._table.draw(count, stream)
        if self._step:
            drawn += self._step * self._table.draw(count, stream)
        return drawn

    def __repr__(self) -> str:
        return f"DiscreteGaussian({self.deviation!r})"


class _Table:
    """The distribution function on -last … last as whole numbers of 256 bits, ascending. A uniform number u
    stands for -last plus the number of thresholds that are at most u."""

    def __init__(self, thresholds: list[int]) -> None:
        self._thresholds = thresholds
        self._last = len(thresholds) // 2
        self._high = np.array([one >> (64 * _LOW_WORDS) for one in thresholds], np.uint64)
        # Nearly always the first bits of u decide. Where they do not, the guide says -1.
        first = np.arange(1 << _GUIDE_BITS, dtype=np.uint64) << np.uint64(64 - _GUIDE_BITS)
        below = np.searchsorted(self._high, first, side="left")
        upto = np.searchsorted(self._high, first | np.uint64((1 << (64 - _GUIDE_BITS)) - 1), side="right")
        self._guide = np.where(below == upto, below, -1)

    def draw(self, count: int, stream: MaskStream) -> NDArray[np.int64]:
        words = np.empty(count, np.uint64)
        stream.fill(words)
        places: NDArray[np.int64] = self._guide[words >> np.uint64(64 - _GUIDE_BITS)]
        unclear = np.flatnonzero(places < 0)
        places[unclear] = np.searchsorted(self._high, words[unclear], side="left")
        # Once in about 2^54 draws the high word of a threshold is drawn: then the low words decide.
        equal = self._high[np.minimum(places[unclear], len(self._high) - 1)] == words[unclear]
        for tied in unclear[equal]:
            places[tied] = self._resolve(int(words[tied]), stream)
        places -= self._last
        return places

    def _resolve(self, high: int, stream: MaskStream) -> int:
        low = np.empty(_LOW_WORDS, np.uint64)
        stream.fill(low)
        number = int.from_bytes(high.to_bytes(8, "big") + low.astype(">u8").tobytes(), "big")
        return bisect_right(self._thresholds, number)


@lru_cache(maxsize=16)
def _table(deviation: float, step: int) -> _Table:
    """The table of deviation / sqrt(1 + step²)."""
    with localcontext(_ARITHMETIC):
        variance = Decimal(deviation) ** 2 / (1 + step * step)
        last = int(_TAIL * variance.sqrt()) + 1
        # exp(-k²/2v) for k = 0, 1, …: each is the one before times exp(-(2k-1)/2v).
        rate = (Decimal(-1) / (2 * variance)).exp()
        weight, ratio, square = Decimal(1), rate, rate * rate
        weights = [weight]
        for _ in range(last):
            weight *= ratio
            ratio *= square
            weights.append(weight)
        sums = list(accumulate(weights[:0:-1] + weights))
        scale = Decimal(1 << (64 * (1 + _LOW_WORDS))) / sums[-1]
        return _Table([int((one * scale).to_integral_value(ROUND_FLOOR)) for one in sums[:-1]])
