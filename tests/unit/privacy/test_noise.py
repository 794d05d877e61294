"""The discrete Gaussian: its exact distance from the true one, its bytes, its limits. Its draws are counted
in tests/statistical."""

import math
from itertools import pairwise
from typing import Any

import mpmath
import numpy as np
import pytest

from sfsl.errors import ParameterError
from sfsl.privacy import DiscreteGaussian
from sfsl.privacy.noise import DISTANCE, SEAM, _table
from sfsl.testing import SeededRandomness

ONE = 1 << 256


def chances(noise: DiscreteGaussian) -> dict[int, int]:
    """How many of the 2^256 (or of the pairs) of uniform numbers stand for each value."""
    thresholds = [0, *noise._table._thresholds, ONE]
    single = {
        place - noise._table._last: high - low for place, (low, high) in enumerate(pairwise(thresholds))
    }
    if not noise._step:
        return single
    both: dict[int, int] = {}
    for many, share in single.items():
        for few, other in single.items():
            value = few + noise._step * many
            both[value] = both.get(value, 0) + share * other
    return both


def statistical_distance(given: dict[int, int], deviation: float) -> Any:
    total = sum(given.values())
    with mpmath.workprec(400):
        reach = max(given) + math.ceil(10 * deviation)
        exact = {
            k: mpmath.exp(-(mpmath.mpf(k) ** 2) / (2 * mpmath.mpf(deviation) ** 2))
            for k in range(-reach, reach + 1)
        }
        norm = mpmath.fsum(exact.values())
        return (
            mpmath.fsum(
                abs(mpmath.mpf(given.get(k, 0)) / total - weight / norm) for k, weight in exact.items()
            )
            / 2
        )


@pytest.mark.parametrize("deviation", [0.25, 0.3, 1.0, 7.3, 128.0])
def test_the_distance_of_a_table_is_below_the_bound(deviation: float) -> None:
    assert statistical_distance(chances(DiscreteGaussian(deviation)), deviation) < DISTANCE


def test_the_distance_of_two_levels_is_below_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The seam is moved down so that all pairs can be counted; b is 2 here."""
    monkeypatch.setattr("sfsl.privacy.noise.SEAM", 15.0)
    noise = DiscreteGaussian(17.3)
    assert noise._step == 2
    assert statistical_distance(chances(noise), 17.3) < DISTANCE


def test_a_step_too_wide_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above can fail: with a step of 3 the sum shows its seams."""
    monkeypatch.setattr("sfsl.privacy.noise.SEAM", 15.0)
    noise = DiscreteGaussian(17.3)
    noise._step, noise._table = 3, _table(17.3, 3)
    assert statistical_distance(chances(noise), 17.3) > DISTANCE


class Key:
    """The bytes 00 01 02 … 1f, as in spec privacy 9.4."""

    def bytes(self, count: int, /) -> bytes:
        return bytes(range(count))


def test_known_answers() -> None:
    expected = {
        0.5: [0, 0, 1, 0, 0, 0, 0, 0, -1, 0],
        100.0: [90, 0, 126, -71, 64, 25, -90, -42, -194, -51],
        3000.0: [1203, 3720, 3718, 675, -1922, 1512, 1184, -1064, 649, 13],
    }
    for deviation, values in expected.items():
        assert DiscreteGaussian(deviation).draw(10, Key()).tolist() == values
    assert DiscreteGaussian(3000.0)._step == 31


def test_the_same_key_gives_the_same_noise_and_another_gives_other_noise() -> None:
    noise = DiscreteGaussian(500.0)
    first = noise.draw(1000, SeededRandomness(1))
    assert np.array_equal(first, DiscreteGaussian(500.0).draw(1000, SeededRandomness(1)))
    assert np.count_nonzero(first == noise.draw(1000, SeededRandomness(2))) < 20
    source = SeededRandomness(1)
    noise.draw(1000, source)
    assert np.count_nonzero(first == noise.draw(1000, source)) < 20
    assert first.dtype == np.int64


@pytest.mark.parametrize("deviation", [3.0, 500.0])
def test_one_key_is_drawn_whatever_the_count(deviation: float) -> None:
    class Counted:
        asked: list[int] = []  # noqa: RUF012

        def bytes(self, count: int, /) -> bytes:
            self.asked.append(count)
            return bytes(count)

    randomness = Counted()
    randomness.asked = []
    for count in (0, 1, 100_000):
        assert len(DiscreteGaussian(deviation).draw(count, randomness)) == count
    assert randomness.asked == [32, 32, 32]


class Words:
    """Stands in for a stream: the words that a test wants."""

    def __init__(self, *words: int) -> None:
        self._left = list(words)

    def fill(self, out: np.ndarray) -> None:
        out[:] = self._left[: len(out)]
        del self._left[: len(out)]


@pytest.mark.parametrize("place", [0, 3, 57, 113])
def test_where_the_high_word_does_not_decide_the_low_ones_do(place: int) -> None:
    table = _table(3.0, 0)
    threshold = table._thresholds[place]
    for number, value in ((threshold - 1, place), (threshold, place + 1), (threshold + 1, place + 1)):
        if number < 0:
            continue
        words = [number >> shift & (2**64 - 1) for shift in (192, 128, 64, 0)]
        if place in (0, 113):  # in the tails many thresholds share a high word
            value = sum(one <= number for one in table._thresholds)
        assert table.draw(1, Words(*words)).tolist() == [value - table._last]  # type: ignore[arg-type]


def test_all_words_find_their_place() -> None:
    """The guide and the search agree with counting."""
    table = _table(40.0, 0)
    rng = np.random.default_rng(5)
    words = np.concatenate([rng.integers(0, 2**64, 3000, np.uint64), table._high[460:1060] + np.uint64(1)])
    expected = [
        sum(one <= int(word) << 192 for one in table._thresholds) - table._last for word in words[:200]
    ]
    assert table.draw(200, Words(*words[:200].tolist())).tolist() == expected  # type: ignore[arg-type]
    high = np.searchsorted(table._high, words, side="left") - table._last
    assert np.array_equal(table.draw(len(words), Words(*words.tolist())), high)  # type: ignore[arg-type]


@pytest.mark.parametrize("deviation", [0.0, -1.0, 0.2, math.nan, math.inf, 2.0**25])
def test_a_deviation_that_cannot_be_drawn(deviation: float) -> None:
    with pytest.raises(ParameterError, match="deviation from"):
        DiscreteGaussian(deviation)


def test_the_step_keeps_to_its_condition() -> None:
    for deviation in (SEAM + 0.01, 150.0, 3000.0, 8290.0, 1e5, 2.0**24):
        step = DiscreteGaussian(deviation)._step
        assert deviation / (1 + step * step) >= 3 > deviation / (1 + (step + 1) ** 2)
