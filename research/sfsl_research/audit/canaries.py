"""Epsilon from below by canaries: a client whose vector is known is in a sum or is not, many times over.

The observer is the one of the definition: it knows everything but whether the canary is there, and looks at
the opened sum. How well it tells the two apart bounds what the sum costs from below, with a confidence; a
claim below that bound is false.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sfsl.arrays import Reals
from sfsl.errors import ParameterError
from sfsl_research.audit.intervals import lower_bound, upper_bound

# Observes so many trials with the canary or without it, from a seed; each statistic should grow with it.
Observer = Callable[[bool, int, int], Reals]
# One trial at a time: whether the canary is there, and a seed.
Trial = Callable[[bool, int], float]

_LEAST_TRIALS = 40
_AT_ONCE = 1000
# Of Rényi divergences that are looked at.
_ORDERS = np.concatenate([1 + np.geomspace(1e-3, 10, 60), np.geomspace(12, 1000, 30)])


def one_by_one(trial: Trial) -> Observer:
    """Observe by trials that are made one at a time."""

    def observe(present: bool, seed: int, count: int) -> Reals:
        return np.array([trial(present, seed * _AT_ONCE + number) for number in range(count)])

    return observe


@dataclass(frozen=True)
class CanaryBound:
    """What a claim says, and the least that the trials show, with this confidence in both bounds together.

    ``epsilon`` is at ``delta``, of one sum. ``rho`` is the zCDP cost: it bounds every Rényi divergence of the
    observer's verdicts, so trials bound it from below as well. ``told``: the share of the canaries that the
    observer finds with the line that tells most; ``mistaken``: how often it finds one where there is none.
    """

    trials: int
    confidence: float
    delta: float
    claimed_epsilon: float
    claimed_rho: float
    epsilon: float
    rho: float
    told: float
    mistaken: float

    @property
    def violated(self) -> bool:
        return self.epsilon > self.claimed_epsilon or self.rho > self.claimed_rho


def bound_by_canaries(
    observe: Observer,
    *,
    trials: int,
    claimed_epsilon: float,
    claimed_rho: float,
    delta: float,
    confidence: float = 0.999,
    seed: int = 0,
) -> CanaryBound:
    """Try so many sums with the canary and as many without it, and bound what one sum costs.

    Half of the trials choose where to draw the line between the two, the other half test it: chosen and
    tested on the same ones, a line would be found in any noise.
    """
    if trials < _LEAST_TRIALS or trials % 2:
        raise ParameterError(
            f"{trials} trials of each kind: an even number from {_LEAST_TRIALS} up is needed"
        )
    if not 0 <= delta < 1:
        raise ParameterError(f"a delta of {delta} is not a probability below 1")
    found = np.stack([_observed(observe, present, trials, seed) for present in (False, True)])
    half = trials // 2
    choosing, testing = found[:, :half], found[:, half:]
    # Two lines, one for epsilon and one for rho, and two proportions at each, bounded on one side.
    each = 1 - (1 - confidence) / 4
    epsilon = rho = 0.0
    for line in _lines(choosing):
        absent, present = (int(np.count_nonzero(side >= line)) for side in testing)
        for often, seldom in ((present, absent), (half - absent, half - present)):
            least, most = lower_bound(often, half, each), upper_bound(seldom, half, each)
            epsilon = max(epsilon, _epsilon(least, most, delta))
            rho = max(rho, _rho(least, most))
    return CanaryBound(
        trials, confidence, delta, claimed_epsilon, claimed_rho, epsilon, rho, present / half, absent / half
    )


def _observed(observe: Observer, present: bool, trials: int, seed: int) -> Reals:
    parts = range(0, trials, _AT_ONCE)
    place = 2 * len(parts) * seed + len(parts) * present
    return np.concatenate(
        [observe(present, place + n, min(_AT_ONCE, trials - at)) for n, at in enumerate(parts)]
    )


def _lines(choosing: Reals) -> tuple[float, float]:
    """Return the line at which the odds are farthest apart, beyond chance, and the one that tells most."""
    lines = np.unique(choosing)
    absent, present = (len(side) - np.searchsorted(np.sort(side), lines) for side in choosing)
    size = choosing.shape[1]
    odds = []
    for often, seldom in ((present, absent), (size - absent, size - present)):
        spread = np.sqrt(1 / (often + 1) + 1 / (seldom + 1))
        odds.append(np.log((often + 1) / (seldom + 1)) - 2 * spread)
    return float(lines[np.max(odds, axis=0).argmax()]), float(lines[(present - absent).argmax()])


def _epsilon(often: float, seldom: float, delta: float) -> float:
    """Return the least epsilon at which an event of these chances is possible."""
    return max(0.0, math.log((often - delta) / seldom)) if often > delta and seldom > 0 else 0.0


def _rho(often: float, seldom: float) -> float:
    """Return the least rho at which it is: rho-zCDP bounds a verdict's divergence of order a by a rho."""
    if not 0 < seldom < often < 1:
        return 0.0
    terms = np.logaddexp(
        _ORDERS * math.log(often) + (1 - _ORDERS) * math.log(seldom),
        _ORDERS * math.log1p(-often) + (1 - _ORDERS) * math.log1p(-seldom),
    )
    return float(np.max(terms / (_ORDERS - 1) / _ORDERS))
