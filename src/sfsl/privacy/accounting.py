"""What noisy sums cost (spec privacy 10): zero-concentrated differential privacy, in rho, for one client's
vector against zeros in its place. Rho adds up over a client's rounds; ``dp-accounting`` says which
(epsilon, delta) that is. It takes a second to import, so only functions that convert do.
"""

import math
from functools import lru_cache
from typing import Literal

import msgspec
import numpy as np

from sfsl.errors import ParameterError
from sfsl.privacy.noise import DISTANCE, LARGEST

# A sum of discrete Gaussians is not quite one. With deviations from 2.5 words up, at most 100,000 clients and
# 2^40 words, that costs less than CORRECTION in rho (``sum_correction``), which every round is charged with.
LEAST_DEVIATION = 2.5
MOST_HONEST = 100_000
CORRECTION = 1e-12
# Far above the correction; its noise is 22,000 times the sensitivity and good for nothing.
LEAST_RHO = 1e-9
# Draws of all clients in all rounds of one, whose distance from the exact distribution delta pays for.
MOST_DRAWS = 2.0**60

Kind = Literal["survey", "train"]


@lru_cache(maxsize=256)
def epsilon_of(rho: float, delta: float) -> float:
    """Return epsilon at ``delta`` of rounds that cost ``rho`` together. Infinite where there is no noise."""
    _require(rho >= 0, f"rho is a number from 0 up, not {rho!r}")
    _require_delta(delta)
    if rho == 0 or rho == math.inf:
        return rho
    # With noise a distance eta away from the exact one, delta grows by (1 + e^epsilon) eta. An epsilon one
    # higher than without pays for that, unless it is so high that delta does not cover it at all.
    guess = _convert(rho, delta) + 1
    spare = delta - MOST_DRAWS * DISTANCE * (1 + math.exp(min(guess, 700.0)))
    epsilon = _convert(rho, spare) if spare > 0 else math.inf
    return epsilon if epsilon <= guess else math.inf


@lru_cache(maxsize=64)
def rho_for(epsilon: float, delta: float) -> float:
    """Return the largest rho, rounded down, that ``epsilon_of`` puts at ``epsilon`` or below."""
    _require(epsilon >= 0, f"epsilon is a number from 0 up, not {epsilon!r}")
    _require_delta(delta)
    if epsilon == 0 or epsilon == math.inf:
        return epsilon
    low, high = 0.0, epsilon  # at order alpha > 1 rho costs more than rho, and delta gives less than 1 back
    while epsilon_of(high, delta) <= epsilon:
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if epsilon_of(middle, delta) <= epsilon else (low, middle)
    return low


def multiplier(rho: float) -> float:
    """Return the deviation of a sum's noise, in sensitivities, for which a round costs ``rho``."""
    _require(rho > CORRECTION, f"a round costs more than {CORRECTION:g}, not {rho!r}")
    return 1 / math.sqrt(2 * (rho - CORRECTION))


def rho_of(sensitivity: float, deviation: float, honest: int) -> float:
    """Return what a round costs in which each of ``honest`` clients that are certain adds noise of
    ``deviation`` words, and no client's words have a Euclidean norm above ``sensitivity``."""
    _require_sum(sensitivity, honest)
    if deviation == 0:
        return math.inf
    _require(
        LEAST_DEVIATION <= deviation <= LARGEST,
        f"a client's noise has a deviation from {LEAST_DEVIATION} to {LARGEST:,.0f} words, not {deviation!r}",
    )
    return sensitivity**2 / (2 * honest * deviation**2) + CORRECTION


def deviation_for(rho: float, sensitivity: float, honest: int) -> float:
    """Return the deviation of one client's noise, in words, with which ``rho_of`` is at most ``rho``; 0 where
    rho is infinite."""
    _require_sum(sensitivity, honest)
    if rho == math.inf:
        return 0.0
    # A last bit more, so that rounding never makes a round cost more than was asked for.
    deviation = multiplier(rho) * sensitivity / math.sqrt(honest) * (1 + 2.0**-50)
    if deviation < LEAST_DEVIATION:
        raise ParameterError(
            f"noise of {deviation:.3g} words per client is too little to add up (from {LEAST_DEVIATION} up); "
            f"count values in units of at most 1/{math.ceil(LEAST_DEVIATION / deviation)} of the present one"
        )
    if deviation > LARGEST:
        raise ParameterError(
            f"noise of {deviation:,.0f} words per client does not fit the ring (up to {LARGEST:,.0f}); count "
            f"values in units at least {math.ceil(deviation / LARGEST)} times the present one"
        )
    return deviation


def sum_correction(deviation: float, honest: int, words: int) -> float:
    """Return what the sum of ``honest`` discrete Gaussians costs beyond the one that it resembles
    (Kairouz, Liu and Steinke, arXiv 2102.06387, Proposition 14: tau d)."""
    number = np.arange(1, honest)
    tau = 10 * np.exp(-2 * math.pi**2 * deviation**2 * number / (number + 1)).sum()
    return float(tau * words)


def honest_survivors(least_survivors: int, clients: int, corruption: float) -> int:
    """Return how many honest clients are certain to be in a sum that opens with ``least_survivors`` of
    ``clients`` or more, where at most the share ``corruption`` of all works with the server."""
    _require(0 <= corruption < 1, f"the share of corrupt clients is from 0 to below 1, not {corruption!r}")
    _require(
        1 <= least_survivors <= clients,
        f"from 1 to all {clients} clients are left when a sum opens, not {least_survivors}",
    )
    corrupt = math.floor(corruption * clients + 1e-9)  # 29 % of 100 are 29, whatever binary fractions say
    if least_survivors <= corrupt:
        raise ParameterError(
            f"a sum that opens with {least_survivors} of {clients} clients may hold none that is honest, "
            f"where {corrupt} are corrupt; ask for at least {corrupt + 1} survivors, better many more"
        )
    return least_survivors - corrupt


class NoisePlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One total (epsilon, delta) as rho: what one survey and one training round cost a client that is in
    ``surveys`` and ``participations`` of them."""

    epsilon: float
    delta: float
    participations: int
    surveys: int
    rho: float
    rho_survey: float
    rho_train: float

    def rho_per_round(self, kind: Kind) -> float:
        return self.rho_survey if kind == "survey" else self.rho_train

    def deviation(self, kind: Kind, sensitivity: float, honest: int) -> float:
        """Return the deviation of one client's noise in a round of this kind, in words."""
        return deviation_for(self.rho_per_round(kind), sensitivity, honest)


def plan_noise(
    epsilon: float, delta: float, participations: int, surveys: int = 1, survey_share: float = 0.1
) -> NoisePlan:
    """Split a total (epsilon, delta) over a client's training rounds and surveys. All surveys together get
    ``survey_share`` of its rho."""
    _require(epsilon > 0, f"epsilon is above 0 (math.inf for no noise), not {epsilon!r}")
    _require(participations >= 1, f"a client takes part at least once, not {participations!r} times")
    _require(surveys >= 0, f"there are 0 surveys or more, not {surveys!r}")
    _require(0 < survey_share < 1, f"surveys get a share between 0 and 1, not {survey_share!r}")
    rho = rho_for(epsilon, delta)
    share = survey_share if surveys else 0.0
    train, survey = rho * (1 - share) / participations, rho * share / surveys if surveys else 0.0
    least = min(train, survey) if surveys else train
    if least < LEAST_RHO:
        factor = LEAST_RHO / least
        raise ParameterError(
            f"epsilon {epsilon:g} at delta {delta:g} leaves rho {least:.3g} for a round, below the least "
            f"({LEAST_RHO:g}); possible are epsilon {epsilon_of(rho * factor * 1.01, delta):.3g}, or rounds "
            f"and surveys fewer by a factor of {math.ceil(factor):,}"
        )
    return NoisePlan(epsilon, delta, participations, surveys, rho, survey, train)


def _convert(rho: float, delta: float) -> float:
    from dp_accounting import ZCDpEvent
    from dp_accounting.rdp import RdpAccountant

    # Any order gives a bound. The best is near this one; at 1.01 and below the accountant knows none.
    near = math.sqrt(max(math.log(1 / delta), 0.1) / rho)
    orders = np.maximum(1 + near * np.geomspace(0.1, 10, 400), 1.0101)
    return float(RdpAccountant(orders).compose(ZCDpEvent(rho)).get_epsilon(delta))


def _require_sum(sensitivity: float, honest: int) -> None:
    _require(0 < sensitivity < math.inf, f"a sensitivity is above 0 and finite, not {sensitivity!r}")
    _require(
        1 <= honest <= MOST_HONEST, f"1 to {MOST_HONEST:,} honest clients are counted on, not {honest!r}"
    )


def _require_delta(delta: float) -> None:
    _require(0 < delta < 1, f"delta lies between 0 and 1 (usual: 1e-6), not {delta!r}")


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise ParameterError(message)
