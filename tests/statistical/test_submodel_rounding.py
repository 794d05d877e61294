"""Rounding is unbiased and its error is what the specification says. All seeds are fixed."""

import numpy as np
import pytest
from scipy import stats

from sfsl.submodel import PAPER, Quantization, Table
from sfsl.submodel.quantize import round_stochastic
from sfsl.submodel.store import initial_rows
from sfsl.testing import SeededRandomness

DRAWS = 200_000
# With some 20 comparisons in this file, a correct build fails one in 10^4 choices of the fixed seeds.
SIGMAS = 4.5
LEAST_P = 1e-5


@pytest.mark.parametrize("value", [0.5, -0.5, 0.1, -0.1, 1e-3, 7.999, -123.25, 1e6 + 0.3, 2.0**40 + 0.5])
def test_the_mean_of_rounded_values_is_the_value(value: float) -> None:
    rounded = round_stochastic(np.full(DRAWS, value), SeededRandomness(f"rounding {value}"))
    fraction = value - np.floor(value)
    error = (rounded - np.floor(value)).mean() - fraction
    assert abs(error) < SIGMAS * np.sqrt(fraction * (1 - fraction) / DRAWS)


def test_neighbouring_values_are_rounded_independently() -> None:
    rounded = round_stochastic(np.full((DRAWS, 2), 0.5), SeededRandomness("independent"))
    assert abs(np.corrcoef(rounded.T)[0, 1]) < SIGMAS / np.sqrt(DRAWS)


def test_the_average_of_a_cohort_is_unbiased() -> None:
    """The whole way: many rounds of three clients on one row, with few levels so that errors are large."""
    quantization = Quantization(ring="z32", cohort=3, clip=1.0, levels=4, max_weight=9)
    deltas, weights = np.array([0.83, -0.37, 0.11]), np.array([2, 9, 5])
    randomness = SeededRandomness("cohort")
    total = np.zeros((DRAWS, 2), np.uint32)
    for delta, weight in zip(deltas, weights, strict=True):
        total += quantization.encode(np.full((DRAWS, 1), delta), np.full(DRAWS, weight), randomness)
    moves = PAPER.moves(quantization.decode(total))[:, 0]
    exact = (deltas * weights).sum() / weights.sum()
    assert abs(moves.mean() - exact) < SIGMAS * moves.std() / np.sqrt(DRAWS)


def test_weighting_before_rounding_has_less_variance_than_after() -> None:
    """The paper rounds first and multiplies the rounding error by the count (App. B)."""
    quantization = Quantization(ring="z32", cohort=1, clip=1.0, levels=4, max_weight=50)
    randomness = SeededRandomness("variance")
    ours = quantization.decode(
        quantization.encode(np.full((DRAWS, 1), 0.1), np.full(DRAWS, 7), randomness)
    ).values
    papers = 7 * round_stochastic(np.full(DRAWS, 0.1 * 4), randomness) / 4
    assert papers.mean() == pytest.approx(ours.mean(), rel=0.02)
    assert ours.var() < papers.var() / 30


def test_initial_rows_are_uniform_and_uncorrelated() -> None:
    table = Table(name="goods", rows=2**63, width=18, initial=0.25)
    values = initial_rows(bytes(32), table, np.arange(10_000)).astype(np.float64)
    assert stats.kstest(values.ravel(), stats.uniform(-0.25, 0.5).cdf).pvalue > LEAST_P
    between_columns = np.corrcoef(values.T)[np.triu_indices(18, 1)]
    between_rows = np.corrcoef(values[:-1].ravel(), values[1:].ravel())[0, 1]
    assert np.abs(between_columns).max() < 5.5 / np.sqrt(10_000)
    assert abs(between_rows) < SIGMAS / np.sqrt(values.size)
