"""The discrete Gaussian's draws against its exact distribution. Every test fails by chance less than once in
a million seeds."""

import math

import numpy as np
import pytest
from scipy import stats

from sfsl.privacy import DiscreteGaussian
from sfsl.privacy.noise import SEAM
from sfsl.testing import SeededRandomness

DRAWS = 400_000
CHANCE = 1e-8
LARGE = (SEAM - 0.5, SEAM, SEAM + 0.5, 200.0, 3000.0, 8290.0, 1e5, 1e7)


def exact(deviation: float) -> tuple[np.ndarray, np.ndarray]:
    reach = math.ceil(9 * deviation) + 3
    values = np.arange(-reach, reach + 1)
    weights = np.exp(-(values**2) / (2 * deviation**2))
    return values, weights / weights.sum()


def draw(deviation: float, seed: int = 0, count: int = DRAWS) -> np.ndarray:
    return DiscreteGaussian(deviation).draw(count, SeededRandomness(f"{deviation} {seed}"))


@pytest.mark.parametrize("deviation", [0.25, 0.3, 0.5, 1.0, 2.5, 10.0, SEAM, SEAM + 1, 300.0])
def test_values_come_as_often_as_they_should(deviation: float) -> None:
    values, chance = exact(deviation)
    often = chance * DRAWS >= 20
    drawn = draw(deviation)
    counts = np.bincount(np.clip(drawn - values[0], 0, len(values) - 1), minlength=len(values))
    seen = np.append(counts[often], DRAWS - counts[often].sum())
    expected = np.append(chance[often], 1 - chance[often].sum()) * DRAWS
    if expected[-1] < 5:  # too rare a rest for chi²; it is in the tails' test
        seen, expected = seen[:-1], expected[:-1] * seen[:-1].sum() / expected[:-1].sum()
    assert stats.chisquare(seen, expected).pvalue > CHANCE


@pytest.mark.parametrize("deviation", LARGE)
def test_the_distribution_function_of_large_deviations(deviation: float) -> None:
    drawn = np.sort(draw(deviation))
    if deviation > 1e6:  # the normal's own, at the middle between two values: off by less than 1e-14
        upto = stats.norm.cdf((drawn + 0.5) / deviation)
        below = stats.norm.cdf((drawn - 0.5) / deviation)
    else:
        values, chance = exact(deviation)
        function = np.cumsum(chance)
        upto = function[drawn - values[0]]
        below = upto - chance[drawn - values[0]]
    # Between two values of a discrete distribution nothing lies, so each side is compared at its end.
    last = np.searchsorted(drawn, drawn, side="right") / DRAWS
    first = np.searchsorted(drawn, drawn, side="left") / DRAWS
    gap = max(np.abs(last - upto).max(), np.abs(first - below).max())
    assert gap * math.sqrt(DRAWS) < stats.kstwobign.isf(CHANCE)


@pytest.mark.parametrize("deviation", LARGE)
def test_moments_and_tails(deviation: float) -> None:
    scaled = draw(deviation, 1) / deviation
    error = stats.norm.isf(CHANCE / 2) / math.sqrt(DRAWS)
    assert abs(scaled.mean()) < error
    assert abs((scaled**2).mean() - 1) < error * math.sqrt(2)
    assert abs((scaled**3).mean()) < error * math.sqrt(15)
    assert abs((scaled**4).mean() - 3) < error * math.sqrt(96)
    for reach in (2.0, 3.0, 4.0):
        chance = 2 * stats.norm.sf((math.ceil(reach * deviation) - 0.5) / deviation)
        beyond = int(np.count_nonzero(np.abs(scaled) >= reach))
        assert stats.binomtest(beyond, DRAWS, chance).pvalue > CHANCE
    assert np.abs(scaled).max() < 8


@pytest.mark.parametrize("deviation", [SEAM + 1, 200.0, 3000.0, 1e5])
def test_the_two_levels_leave_no_pattern(deviation: float) -> None:
    """Remainders by the step are uniform, whether the quotient is even or odd."""
    noise = DiscreteGaussian(deviation)
    for modulus in (noise._step, 2 * noise._step, 256):
        if modulus * 3 > deviation * 2:
            continue
        counts = np.bincount(draw(deviation, 2) % modulus, minlength=modulus)
        assert stats.chisquare(counts).pvalue > CHANCE


@pytest.mark.parametrize("deviation", [2.5, 3000.0])
def test_a_sum_of_draws_has_the_sum_of_variances(deviation: float) -> None:
    clients, words = 50, 20_000
    noise = DiscreteGaussian(deviation)
    total = sum(noise.draw(words, SeededRandomness(f"client {one}")) for one in range(clients))
    variance = float((np.asarray(total, np.float64) ** 2).mean()) / (clients * deviation**2)
    assert abs(variance - 1) < stats.norm.isf(CHANCE / 2) * math.sqrt(2 / words)
    halves = np.asarray(total, np.float64).reshape(2, -1)
    assert abs(np.corrcoef(halves)[0, 1]) < stats.norm.isf(CHANCE / 2) / math.sqrt(words / 2)
