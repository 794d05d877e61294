"""No vector of a round over hot rows is longer than the noise is for, whatever a client learned or owns."""

import math
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from cohort import DENSE, GOODS, WIDTH
from hot_cohort import BINS, HOT_CATEGORIES, HOT_GOODS, plan
from sfsl.crypto.ring import Z32
from sfsl.errors import InputError
from sfsl.rounds import Trained
from sfsl.rounds.hot import CUT_SHARE
from sfsl.rounds.hot_client import open_published, survey_vector, update_vector, with_noise
from sfsl.submodel import RowSet, TrainedRows
from sfsl.testing import SeededRandomness

TRAIN = plan()
assert TRAIN.published is not None
SETS = open_published(TRAIN.params, TRAIN.published).asked

numbers = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True),
    st.floats(-1, 1),
    st.sampled_from([0.0, 1e-320, 1e154, 1e308, -1.7e308, 1e-9]),
)


def norm(words: Any) -> float:
    return math.sqrt(sum(int(one) ** 2 for one in words))


@st.composite
def updates(draw: st.DrawFn) -> Trained:
    """Mostly of the right shapes."""
    size = st.sampled_from([0, 0, 0, 0, 0, 1])
    value, seed = draw(numbers), draw(st.integers(0, 100))
    rng, rows = np.random.default_rng(seed), {}
    for table, hot, width in (("goods", HOT_GOODS, WIDTH), ("category", HOT_CATEGORIES, 2)):
        own = hot[rng.random(len(hot)) < draw(st.sampled_from([0.0, 0.3, 1.0]))]
        deltas = value * rng.choice([-1.0, 0.3, 1.0], (len(own) + draw(size), width + draw(size)))
        rows[table] = TrainedRows(RowSet(own), deltas, np.ones(len(own), int))
    dense = draw(st.lists(numbers, min_size=DENSE, max_size=DENSE + draw(size)))
    scores = draw(
        st.none() | st.tuples(*[st.lists(numbers | st.integers(0, 9), min_size=BINS, max_size=BINS)] * 2)
    )
    return Trained(np.array(dense), 3, rows, scores)


@settings(max_examples=300, deadline=None)
@given(trained=updates(), levels=st.sampled_from([1, 2, 377, 2**20]), clip=st.sampled_from([1e-3, 1.0, 1e6]))
def test_updates(trained: Trained, levels: int, clip: float) -> None:
    params = replace(TRAIN.params, levels=levels, clip=clip)
    try:
        with np.errstate(all="raise", under="ignore"):
            words = update_vector(params, SETS, trained, SeededRandomness("update"))
    except InputError:
        return
    assert words.shape == (params.length,)
    assert norm(words) <= params.sensitivity


@settings(max_examples=50, deadline=None)
@given(own=st.sets(st.integers(0, GOODS - 1)), marks=st.integers(1, GOODS), levels=st.integers(1, 1000))
def test_surveys(own: set[int], marks: int, levels: int) -> None:
    params = replace(plan("survey").params, marks=marks, levels=levels)
    words = survey_vector(params, {"goods": np.array(sorted(own), np.int64)}, SeededRandomness("marks"))
    marked = np.flatnonzero(words)
    assert set(marked.tolist()) <= own
    assert len(marked) == min(len(own), marks)
    assert set(words[marked].tolist()) <= {levels}
    assert norm(words) <= params.sensitivity * (1 + 1e-12)


def trained(dense: Any, scores: Any = None) -> Trained:
    rows = {
        "goods": TrainedRows(RowSet.of([0, 3]), np.zeros((2, WIDTH)), [1, 1]),
        "category": TrainedRows(RowSet.of([0]), np.zeros((1, 2)), [1]),
    }
    return Trained(np.asarray(dense, float), 1, rows, scores)


def test_parts_of_a_vector() -> None:
    """Dense part, rows by table, clicks, others, and the word that says whether the update was cut."""
    params = replace(TRAIN.params, levels=10**6)
    rows = {
        "goods": TrainedRows(RowSet.of([3, 57]), np.full((2, WIDTH), 0.25), [1, 1]),
        "category": TrainedRows(RowSet.of([2]), np.full((1, 2), 0.125), [1]),
    }
    one = Trained(
        [0.5, 0, 0, -0.5], 1, rows, (np.eye(BINS, dtype=int)[1] * 2, np.eye(BINS, dtype=int)[6] * 3)
    )
    values = update_vector(params, SETS, one, SeededRandomness("parts")) / 10**6
    near = np.zeros(params.length)
    near[[0, 3]] = 0.5, -0.5
    near[4 + 3 : 4 + 6] = near[4 + 57 : 4 + 60] = 0.25
    near[64 + 4 : 64 + 6] = 0.125
    near[72 + 1], near[80 + 6] = 0.04, 0.06
    np.testing.assert_allclose(values, near, atol=3e-6)


def test_what_is_too_long_is_cut_in_its_direction_and_says_so() -> None:
    params = replace(TRAIN.params, levels=10**6)
    for factor in (1.0, 1e200):
        words = update_vector(params, SETS, trained(factor * np.array([3, 0, 4, 0])), SeededRandomness("cut"))
        share = math.sqrt(1 - 0.1**2 - 0.05**2)
        np.testing.assert_allclose(words[:4] / 10**6, share * np.array([0.6, 0, 0.8, 0]), atol=3e-6)
        assert abs(int(words[-1]) - CUT_SHARE * 10**6) <= 1
    inside = update_vector(params, SETS, trained([0.3, 0, 0, 0]), SeededRandomness("cut"))
    assert inside[-1] == 0


def test_histograms_have_a_share_of_their_own() -> None:
    """However many samples one client holds out, its update keeps its room."""
    params = replace(TRAIN.params, levels=10**6)
    many = np.full(BINS, 10**9)
    words = update_vector(params, SETS, trained([0.5, 0, 0, 0], (many, many)), SeededRandomness("many"))
    assert norm(words[72:88]) <= 0.1 * 10**6 + math.sqrt(16)
    assert abs(int(words[0]) - 500_000) <= 1


def test_rounding_is_fair() -> None:
    params = replace(TRAIN.params, levels=10)
    randomness, total = SeededRandomness("fair"), np.zeros(4)
    for _ in range(4000):
        total += update_vector(params, SETS, trained([0.123, 0.377, -0.25, 0]), randomness)[:4]
    np.testing.assert_allclose(total / 4000, [1.23, 3.77, -2.5, 0], atol=0.04)  # five deviations


def test_of_more_rows_than_marks_each_is_as_likely() -> None:
    params = replace(plan("survey").params, marks=5)
    own, randomness = np.array([0, 1, 7, 20, 30, 31, 58, 59]), SeededRandomness("choice")
    counts = np.zeros(GOODS)
    pairs = np.zeros((GOODS, GOODS))
    for _ in range(3000):
        words = survey_vector(params, {"goods": own}, randomness)
        counts += words
        pairs += np.outer(words, words)
    share = counts[own] / 3000
    assert np.abs(share - 5 / 8).max() < 5 * math.sqrt(5 / 8 * 3 / 8 / 3000)
    both = pairs[np.ix_(own, own)][np.triu_indices(8, 1)] / 3000
    likely = 5 * 4 / (8 * 7)
    assert np.abs(both - likely).max() < 5 * math.sqrt(likely * (1 - likely) / 3000)
    assert counts.sum() == counts[own].sum()


def test_noise_comes_to_every_word_or_to_none() -> None:
    vector = np.arange(-2000, 2000)
    params = replace(TRAIN.params, deviation=50.0)
    noisy = with_noise(params, vector, SeededRandomness("noise"))
    assert noisy.dtype == Z32.dtype
    noise = noisy.view(np.int32).astype(np.int64) - vector
    assert abs(noise.std() / 50 - 1) < 5 / math.sqrt(2 * 4000)
    assert abs(noise.mean()) < 5 * 50 / math.sqrt(4000)
    np.testing.assert_array_equal(
        with_noise(TRAIN.params, vector, SeededRandomness("")).view(np.int32), vector
    )
