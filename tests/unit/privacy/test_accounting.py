"""Rho and (epsilon, delta): our own formulas against dp-accounting, calibration there and back, wishes."""

import math
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
from scipy import optimize, stats

from clocks import PATIENCE
from sfsl.errors import ParameterError
from sfsl.privacy import deviation_for, epsilon_of, honest_survivors, plan_noise, rho_for, rho_of
from sfsl.privacy.accounting import (
    CORRECTION,
    LEAST_DEVIATION,
    LEAST_RHO,
    MOST_DRAWS,
    MOST_HONEST,
    multiplier,
    sum_correction,
)
from sfsl.privacy.noise import DISTANCE

RHOS = (1e-6, 1e-4, 0.01, 0.1, 0.5, 1.0, 4.0, 10.0)
DELTAS = (1e-12, 1e-9, 1e-6, 1e-5, 0.01)


def test_a_client_that_takes_part_once_spends_it_all_at_once() -> None:
    plan = plan_noise(1.0, 1e-6, 1, surveys=0)
    assert plan.rho_per_round("train") == plan.rho == rho_for(1.0, 1e-6)


def test_what_inexact_noise_takes_of_delta() -> None:
    """Delta pays for the distance of the noise from the exact one, once and e^epsilon times (spec 9)."""
    distance, rho = MOST_DRAWS * DISTANCE, 1e-12
    guess = simple(rho, 2.0**-170) + 1  # a little more than 1: what the first term is worth shows
    assert math.isfinite(epsilon_of(rho, distance * (1.01 + math.exp(guess))))
    assert epsilon_of(rho, distance * (0.99 + math.exp(1))) == math.inf


def simple(rho: float, delta: float) -> float:
    """Bun and Steinke, 2016."""
    return rho + 2 * math.sqrt(rho * math.log(1 / delta))


def best_order(rho: float, delta: float) -> float:
    """Canonne, Kamath and Steinke, 2020, over all orders."""

    def at(log_order: float) -> float:
        order = 1 + math.exp(log_order)
        return rho * order + math.log1p(-1 / order) - math.log(delta * order) / (order - 1)

    near = 0.5 * math.log(math.log(1 / delta) / rho)
    return max(
        0.0, float(optimize.minimize_scalar(at, bounds=(near - 2.5, near + 2.5), method="bounded").fun)
    )


def gaussian(rho: float, delta: float) -> float:
    """What continuous noise of this rho costs exactly (Balle and Wang, 2018): no accounting can say less."""
    scale = 1 / math.sqrt(2 * rho)

    def excess(epsilon: float) -> float:
        low = stats.norm.cdf(0.5 / scale - epsilon * scale)
        high = math.exp(epsilon + stats.norm.logcdf(-0.5 / scale - epsilon * scale))
        return float(low - high - delta)

    return 0.0 if excess(0) <= 0 else float(optimize.brentq(excess, 0, simple(rho, delta) + 1))


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("rho", RHOS)
def test_epsilon_is_that_of_our_own_formulas(rho: float, delta: float) -> None:
    epsilon = epsilon_of(rho, delta)
    assert epsilon <= simple(rho, delta)
    if epsilon:  # at 0 dp-accounting has a bound that knows more than any order
        assert epsilon == pytest.approx(best_order(rho, delta), rel=1e-4, abs=1e-9)
    assert epsilon >= gaussian(rho, delta) * (1 - 1e-9)


def test_figures_that_others_print() -> None:
    """The US census of 2020 published rho 2.56 as epsilon 17.14 at delta 1e-10. Ours for epsilon 8 by hand:
    sqrt(13.8 + 8) - sqrt(13.8) squared is 0.91, and the better conversion allows a little more."""
    assert epsilon_of(2.56, 1e-10) == pytest.approx(17.14, abs=0.03)
    assert 0.91 < rho_for(8, 1e-6) < 1.1


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("epsilon", [0.01, 0.5, 1.0, 2.0, 4.0, 8.0, 30.0])
def test_rho_is_the_largest_that_keeps_epsilon(epsilon: float, delta: float) -> None:
    rho = rho_for(epsilon, delta)
    assert epsilon_of(rho, delta) <= epsilon < epsilon_of(rho * (1 + 1e-9), delta)


def test_more_rho_never_costs_less() -> None:
    costs = [epsilon_of(float(rho), 1e-6) for rho in np.geomspace(1e-9, 50, 120)]
    assert costs == sorted(costs)


def test_no_noise_and_nothing_spent() -> None:
    assert (epsilon_of(0.0, 1e-6), rho_for(0.0, 1e-6)) == (0.0, 0.0)
    assert epsilon_of(math.inf, 1e-6) == rho_for(math.inf, 1e-6) == math.inf
    assert deviation_for(math.inf, 10.0, 50) == 0.0
    assert rho_of(10.0, 0.0, 50) == math.inf


def test_an_epsilon_that_the_sampler_cannot_vouch_for_is_infinite() -> None:
    """The distance of the noise from the exact one counts e^epsilon times."""
    assert epsilon_of(50.0, 1e-6) < 110
    assert epsilon_of(200.0, 1e-6) == math.inf


@pytest.mark.parametrize("rho", [1e-6, 0.01, 0.2, 3.0])
@pytest.mark.parametrize(("sensitivity", "honest"), [(1e4, 1), (3333.3, 850), (1e5, 4000)])
def test_noise_for_a_cost_costs_that(rho: float, sensitivity: float, honest: int) -> None:
    deviation = deviation_for(rho, sensitivity, honest)
    assert rho * (1 - 1e-9) < rho_of(sensitivity, deviation, honest) <= rho
    assert deviation * math.sqrt(honest) / sensitivity == pytest.approx(multiplier(rho))


def test_what_a_sum_of_discrete_gaussians_costs_by_hand() -> None:
    """Ten times, for each client but the last, e to the minus 2 pi squared sigma squared k / (k + 1)."""
    for deviation, honest, words in ((0.25, 2, 1), (0.5, 3, 7), (0.75, 4, 100)):
        parts = [math.exp(-2 * math.pi**2 * deviation**2 * k / (k + 1)) for k in range(1, honest)]
        assert sum_correction(deviation, honest, words) == pytest.approx(10 * words * sum(parts))
    assert sum_correction(0.5, 1, 7) == 0  # one client's is what it resembles
    assert sum_correction(0.5, 2, 1) == pytest.approx(0.848049, rel=1e-5)


def test_a_sum_of_discrete_gaussians_costs_no_more_than_is_charged() -> None:
    for honest in (2, 100, MOST_HONEST):
        assert sum_correction(LEAST_DEVIATION, honest, 2**40) < CORRECTION
    assert sum_correction(1.5, 2, 200_000) > CORRECTION  # so the least deviation is needed
    assert CORRECTION < LEAST_RHO / 100


def test_the_correction_covers_the_exact_divergence() -> None:
    """Renyi divergence of two shifted sums of coarse noise, counted out, against the bound for one word."""
    deviation, clients = 0.7, 3
    values = np.arange(-12, 13)
    one = np.exp(-(values**2) / (2 * deviation**2))
    total = np.array([1.0])
    for _ in range(clients):
        total = np.convolve(total, one / one.sum())
    variance = clients * deviation**2
    worst = 0.0
    for shift in (1, 2, 3):
        first, second = total[shift:], total[:-shift]
        kept = (first > 1e-200) & (second > 1e-200)
        for order in (1.01, 1.5, 2.0, 4.0):
            logs = order * np.log(first[kept]) + (1 - order) * np.log(second[kept])
            divergence = math.log(np.exp(logs).sum()) / (order - 1)
            assert divergence <= order * shift**2 / (2 * variance) + sum_correction(deviation, clients, 1)
            worst = max(worst, divergence - order * shift**2 / (2 * variance))
    assert worst > 0  # without the correction the claim would be false


@pytest.mark.parametrize(
    ("least", "clients", "corruption", "honest"),
    [(50, 100, 0.0, 50), (67, 100, 0.1, 57), (100, 100, 0.29, 71), (34, 50, 0.1, 29), (1, 1, 0.0, 1)],
)
def test_honest_survivors(least: int, clients: int, corruption: float, honest: int) -> None:
    assert honest_survivors(least, clients, corruption) == honest


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
@pytest.mark.parametrize("surveys", [0, 1, 3])
def test_a_plan_spends_the_whole_and_no_more(epsilon: float, surveys: int) -> None:
    plan = plan_noise(epsilon, 1e-6, 5, surveys)
    spent = 5 * plan.rho_per_round("train") + surveys * plan.rho_per_round("survey")
    assert spent == pytest.approx(plan.rho)
    assert epsilon * (1 - 1e-6) < epsilon_of(spent * (1 - 1e-12), 1e-6) <= epsilon
    if surveys:
        assert surveys * plan.rho_survey / plan.rho == pytest.approx(0.1)
    real = rho_of(3e4, plan.deviation("train", 3e4, 700), 700)
    assert real == pytest.approx(plan.rho_train)


def test_a_plan_without_noise() -> None:
    plan = plan_noise(math.inf, 1e-6, 5)
    assert plan.rho_train == plan.rho_survey == math.inf
    assert plan.deviation("survey", 7.0, 700) == 0.0


@pytest.mark.parametrize(
    ("wish", "says"),
    [
        (lambda: epsilon_of(-0.1, 1e-6), "rho is a number from 0 up"),
        (lambda: epsilon_of(math.nan, 1e-6), "rho is a number"),
        (lambda: epsilon_of(0.1, 0.0), "between 0 and 1"),
        (lambda: epsilon_of(0.1, 1.0), "between 0 and 1"),
        (lambda: epsilon_of(math.inf, math.nan), "between 0 and 1"),
        (lambda: rho_for(-1, 1e-6), "epsilon is a number"),
        (lambda: rho_for(math.nan, 1e-6), "epsilon is a number"),
        (lambda: rho_for(math.inf, 2), "between 0 and 1"),
        (lambda: multiplier(0.0), "costs more than"),
        (lambda: rho_of(10.0, 1.0, 5), "deviation from 2.5"),
        (lambda: rho_of(10.0, math.nan, 5), "deviation from 2.5"),
        (lambda: rho_of(math.inf, 10.0, 5), "sensitivity is above 0"),
        (lambda: rho_of(10.0, 10.0, 0), "honest clients"),
        (lambda: deviation_for(0.1, 7.0, 1000), r"units of at most 1/6 of"),
        (lambda: deviation_for(1e-6, 1e8, 1), r"at least 42\d\d times the present"),
        (lambda: honest_survivors(10, 100, 0.1), "at least 11 survivors"),
        (lambda: honest_survivors(101, 100, 0.1), "from 1 to all 100"),
        (lambda: honest_survivors(50, 100, 1.0), "share of corrupt"),
        (lambda: plan_noise(0.0, 1e-6, 5), "epsilon is above 0"),
        (lambda: plan_noise(1.0, 1e-6, 0), "at least once"),
        (lambda: plan_noise(1.0, 1e-6, 5, -1), "0 surveys or more"),
        (lambda: plan_noise(1.0, 1e-6, 5, 1, 1.0), "share between"),
    ],
)
def test_nonsense_is_refused(wish: Callable[[], object], says: str) -> None:
    with pytest.raises(ParameterError, match=says):
        wish()


def test_an_impossible_wish_is_told_what_is_possible() -> None:
    with pytest.raises(
        ParameterError, match=r"possible are epsilon ([\d.]+), or .* factor of ([\d,.]+)"
    ) as caught:
        plan_noise(0.05, 1e-9, 10**6, 0)
    words = str(caught.value).split()
    epsilon = float(words[words.index("possible") + 3].rstrip(","))
    assert plan_noise(epsilon * 1.01, 1e-9, 10**6, 0).rho_train >= LEAST_RHO
    fewer = int(10**6 / float(words[-1].replace(",", "")))
    assert plan_noise(0.05, 1e-9, fewer, 0).rho_train >= LEAST_RHO


def test_a_client_that_converts_nothing_does_not_load_dp_accounting() -> None:
    """It takes a second; in a process of its own, since other tests have loaded it here."""
    code = (
        "import sys, math\nfrom sfsl.privacy import DiscreteGaussian, deviation_for, rho_of, rho_for\n"
        "rho_of(100.0, deviation_for(0.1, 100.0, 50), 50)\nrho_for(math.inf, 1e-6)\n"
        "assert not {'dp_accounting', 'scipy'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE)  # noqa: S603
    assert done.returncode == 0, done.stderr
