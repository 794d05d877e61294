"""Epsilon from below by canaries: a client whose vector an observer knows is in a sum or is not, many times over.

The observer is the one of the definition: it knows everything but whether the canary is there, and looks at the
opened sum. How well it tells the two apart bounds what the sum costs from below, with a confidence; a claim below
that bound is false. Whatever makes the sums, a trial is a function of ``present`` and of a seed.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sfsl.arrays import Reals
from sfsl.errors import ParameterError
from sfsl_research.audit.intervals import lower_bound, upper_bound

# Observes one trial: whether the canary is there, and a seed; returns a statistic that should grow with it.
Trial = Callable[[bool, int], float]

_LEAST_TRIALS = 40
_ORDERS = np.concatenate([1 + np.geomspace(1e-3, 10, 60), np.geomspace(12, 1000, 30)])


@dataclass(frozen=True)
class CanaryBound:
    """What a claim says, and the least that the trials show, with this confidence in both bounds together.

    ``epsilon`` is at ``delta``, of one sum. ``rho`` is the zCDP cost: it bounds every Rényi divergence of the
    observer's verdicts, so trials bound it from below as well. ``told``: the share of the canaries that the
    observer finds; ``mistaken``: of those it finds where there is none.
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
    trial: Trial,
    *,
    trials: int,
    claimed_epsilon: float,
    claimed_rho: float,
    delta: float,
    confidence: float = 0.999,
    seed: int = 0,
    progress: Callable[[int], None] = lambda done: None,
) -> CanaryBound:
    """Try so many sums with the canary and as many without it, and bound what one sum costs.

    Half of the trials choose where to draw the line between the two, the other half test it: chosen and
    tested on the same ones, a line would be found in any noise.
    """
    if trials < _LEAST_TRIALS or trials % 2:
        raise ParameterError(f"{trials} trials of each kind: an even number from {_LEAST_TRIALS} up is needed")
    if not 0 <= delta < 1:
        raise ParameterError(f"a delta of {delta} is not a probability below 1")
    found = np.zeros((2, trials))
    for number in range(trials):
        for present in (False, True):
            found[int(present), number] = trial(present, seed + 2 * number + present)
        progress(number + 1)
    choosing, testing = found[:, : trials // 2], found[:, trials // 2 :]
    line = _best_line(choosing, delta)
    # Two proportions are bounded, each on one side; epsilon and rho follow from the same two.
    one_side = 1 - (1 - confidence) / 2
    half = trials // 2
    absent, present = (int(np.count_nonzero(side >= line)) for side in testing)
    epsilon = rho = 0.0
    for often, seldom in ((present, absent), (half - absent, half - present)):
        least, most = lower_bound(often, half, one_side), upper_bound(seldom, half, one_side)
        epsilon = max(epsilon, _epsilon(least, most, delta))
        rho = max(rho, _rho(least, most))
    return CanaryBound(
        trials, confidence, delta, claimed_epsilon, claimed_rho, epsilon, rho, present / half, absent / half
    )


def _best_line(choosing: Reals, delta: float) -> float:
    """Return the line that tells most, in either direction, beyond chance."""
    lines = np.unique(choosing)
    absent, present = (len(side) - np.searchsorted(np.sort(side), lines) for side in choosing)
    size = choosing.shape[1]
    scores = []
    for often, seldom in ((present, absent), (size - absent, size - present)):
        spread = np.sqrt(1 / (often + 1) + 1 / (seldom + 1))
        scores.append(np.log((often + 1) / (seldom + 1)) - 2 * spread)
    return float(lines[np.max(scores, axis=0).argmax()])


def _epsilon(often: float, seldom: float, delta: float) -> float:
    """Return the least epsilon at which an event of these chances is possible."""
    return max(0.0, math.log((often - delta) / seldom)) if often > delta and seldom > 0 else 0.0


def _rho(often: float, seldom: float) -> float:
    """Return the least rho at which it is: rho-zCDP bounds the divergence of order a of any verdict by a rho."""
    if not 0 < seldom < often < 1:
        # A bound is 1 only where nothing was tried.
        often = min(often, 1 - 1e-12)
        if not 0 < seldom < often:
            return 0.0
    with np.errstate(over="ignore"):
        terms = np.logaddexp(
            _ORDERS * math.log(often) + (1 - _ORDERS) * math.log(seldom),
            _ORDERS * math.log1p(-often) + (1 - _ORDERS) * math.log1p(-seldom),
        )
    return float(np.max(terms / (_ORDERS - 1) / _ORDERS))
