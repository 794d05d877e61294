"""AUC, exact and from histograms, and scores."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfsl.data import SyntheticSettings, SyntheticTaobao
from sfsl.data.catalogue import Catalogue
from sfsl.errors import InputError, ParameterError
from sfsl.models import logistic_regression
from sfsl.rounds import ScoreBins
from sfsl.training import auc, auc_error_bound, auc_from_histograms, score_histograms, score_samples


def auc_by_counting(scores: np.ndarray, labels: np.ndarray) -> float:
    clicks, others = scores[labels == 1], scores[labels == 0]
    wins = (clicks[:, None] > others).sum() + 0.5 * (clicks[:, None] == others).sum()
    return float(wins / (len(clicks) * len(others)))


@pytest.mark.parametrize("levels", [2, 7, 100, 10**9])
def test_auc_counts_pairs_and_half_of_ties(levels: int) -> None:
    rng = np.random.default_rng(levels)
    scores, labels = rng.integers(0, levels, 300), rng.integers(0, 2, 300)
    scores = scores + labels * (levels // 3)
    assert auc(scores, labels) == pytest.approx(auc_by_counting(scores, labels), abs=1e-12)


def test_auc_at_its_ends() -> None:
    assert auc([1.0, 2.0, 3.0], [0, 0, 1]) == 1
    assert auc([1.0, 2.0, 3.0], [1, 0, 0]) == 0
    assert auc([1.0, 1.0, 1.0], [1, 0, 0]) == 0.5
    assert np.isnan(auc([1.0, 2.0], [1, 1]))
    assert np.isnan(auc([], []))
    assert np.isnan(auc([1.0, np.nan], [1, 0]))
    with pytest.raises(InputError):
        auc([1.0], [1, 0])


# -- histograms ---------------------------------------------------------------------------------


def samples(seed: int, centre: float, spread: float) -> tuple[np.ndarray, np.ndarray]:
    """Scores and labels of 20,000 samples whose log-odds lie around ``centre``."""
    rng = np.random.default_rng(seed)
    labels = (rng.random(20_000) < 0.3).astype(int)
    log_odds = centre + spread * (rng.standard_normal(20_000) + 0.8 * labels)
    return 1 / (1 + np.exp(-log_odds)), labels


@pytest.mark.parametrize("spread", [0.005, 0.02, 0.05, 0.2, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("centre", [-4.0, -2.0, 0.0, 1.0, 2.0, 4.0])
def test_bins_find_the_scores_within_three_rounds(spread: float, centre: float) -> None:
    scores, labels = samples(1, centre, spread)
    bins = ScoreBins(bins=256)
    for _ in range(3):
        bins = bins.after(*score_histograms(scores, labels, bins.edges))
    clicks, others = score_histograms(scores, labels, bins.edges)
    assert len(clicks) == len(others) == 256
    assert (clicks.sum(), others.sum()) == (labels.sum(), 20_000 - labels.sum())
    assert auc_from_histograms(clicks, others) == pytest.approx(auc(scores, labels), abs=0.005)
    assert auc_error_bound(clicks, others) < 0.005


@pytest.mark.parametrize("step", [0.03, 0.045, 0.06, 0.08, 0.1])
def test_bins_follow_a_young_model_that_wanders(step: float) -> None:
    """Close together, and all of them moving many times their spread in a round: there, and back."""
    bins, centre = ScoreBins(bins=256), 0.0
    for number, move in enumerate([0.0] + 6 * [step] + 6 * [-step], start=1):
        centre += move
        scores, labels = samples(number, centre, spread=0.004)
        counts = score_histograms(scores, labels, bins.edges)
        error = abs(auc_from_histograms(*counts) - auc(scores, labels))
        assert error <= auc_error_bound(*counts)
        assert number < 3 or error < 0.005
        bins = bins.after(*counts)


@settings(deadline=None, derandomize=True, max_examples=300)
@given(
    st.lists(st.tuples(st.floats(0, 1) | st.sampled_from([0.4, 0.5]), st.booleans()), max_size=40),
    st.integers(1, 40),
    st.floats(-5, 5),
    st.floats(1e-6, 5),
)
def test_the_error_of_the_auc_is_within_its_bound(
    scored: list[tuple[float, bool]], bins: int, centre: float, scale: float
) -> None:
    scores, labels = [score for score, _ in scored], [int(label) for _, label in scored]
    edges = ScoreBins(bins=bins, centre=centre, scale=scale).edges
    counts = score_histograms(scores, labels, edges)
    exact, bound = auc(scores, labels), auc_error_bound(*counts)
    assert np.isnan(bound) == np.isnan(exact) == (len(set(labels)) < 2)
    assert np.isnan(exact) or abs(auc_from_histograms(*counts) - exact) <= bound + 1e-12


def test_the_bound_is_reached_and_not_wider() -> None:
    # One bin for all: the AUC is taken for 1/2, and may be 0 or 1.
    assert auc_error_bound([2], [3]) == 0.5
    assert auc_error_bound([1, 0], [0, 1]) == 0
    assert auc_error_bound([1, 1], [1, 1]) == 0.25


def test_first_bins_do_for_a_model_that_has_learned() -> None:
    rng = np.random.default_rng(2)
    labels = (rng.random(20_000) < 0.5).astype(int)
    scores = 1 / (1 + np.exp(-(rng.standard_normal(20_000) + labels)))
    found = auc_from_histograms(*score_histograms(scores, labels, ScoreBins(bins=256).edges))
    assert found == pytest.approx(auc(scores, labels), abs=0.001)


def test_histograms_add_up_over_clients() -> None:
    rng = np.random.default_rng(3)
    scores, labels = rng.random(1000), rng.integers(0, 2, 1000)
    edges = ScoreBins(bins=256).edges
    parts = [score_histograms(scores[i::7], labels[i::7], edges) for i in range(7)]
    clicks, others = np.sum(parts, axis=0)
    whole = score_histograms(scores, labels, edges)
    assert np.array_equal(clicks, whole[0])
    assert np.array_equal(others, whole[1])


def test_the_first_bins_are_equally_wide_in_scores() -> None:
    assert ScoreBins(bins=4).edges == pytest.approx([0.25, 0.5, 0.75])
    assert ScoreBins(bins=1).edges.tolist() == []


def test_scores_off_the_scale_and_not_finite() -> None:
    clicks, others = score_histograms(
        [-1.0, 0.0, 1.0, 2.0, np.nan, np.inf], [1, 1, 1, 0, 0, 1], ScoreBins(bins=4).edges
    )
    assert clicks.tolist() == [2, 0, 0, 1]
    assert others.tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize("centre", [-50.0, 50.0])
@pytest.mark.parametrize("scale", [1e-6, 50.0])
@pytest.mark.parametrize("bins", [1, 2, 3, 256, 4096])
def test_bins_at_their_limits_stay_bins(bins: int, centre: float, scale: float) -> None:
    here = ScoreBins(bins=bins, centre=centre, scale=scale)
    for scores in ([0.0, -1.0], [1.0, 2.0], [0.0, 1.0, np.nan]):
        finite = int(np.isfinite(scores).sum())
        clicks, others = score_histograms(scores, np.ones(len(scores)), here.edges)
        assert (np.diff(here.edges) >= 0).all()
        assert clicks[0] + clicks[-1] * (bins > 1) == finite
        assert np.isfinite(here.after(clicks, others).edges).all()


@pytest.mark.parametrize("bins", [1, 2, 256])
def test_an_empty_round_leaves_the_bins(bins: int) -> None:
    here = ScoreBins(bins=bins, centre=1.5, scale=0.1)
    assert here.after(np.zeros(bins, np.int64), np.zeros(bins, np.int64)) == here


@pytest.mark.parametrize("bins", [3, 4, 5, 6, 8, 16])
@pytest.mark.parametrize("centre", [-3.0, 0.0, 2.0, 3.0])
def test_few_bins_close_in_as_well(bins: int, centre: float) -> None:
    scores, labels = samples(1, centre, 0.05)
    here = ScoreBins(bins=bins)
    for _ in range(40):
        here = here.after(*score_histograms(scores, labels, here.edges))
    assert here.scale < 0.04


@pytest.mark.parametrize(
    "wrong",
    [
        {"bins": 0},
        {"bins": 4097},
        {"bins": 2.5},
        {"centre": 50.1},
        {"centre": -50.1},
        {"centre": float("nan")},
        {"scale": 0.0},
        {"scale": 9e-7},
        {"scale": 50.1},
        {"scale": float("nan")},
        {"scale": float("inf")},
    ],
    ids=repr,
)
def test_impossible_bins_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ParameterError):
        ScoreBins(**({"bins": 256} | wrong))


# -- scores --------------------------------------------------------------------------------------


def test_scores_on_a_submodel_are_those_on_the_full_model() -> None:
    synthetic = SyntheticSettings(users=3, items=200, categories=10, samples=30, interests=5)
    data = SyntheticTaobao(synthetic, seed=0).interactions()
    task = logistic_regression(Catalogue.of(data))
    rng = np.random.default_rng(0)
    model = {t.name: rng.standard_normal((t.rows, t.width)).astype(np.float32) for t in task.tables}
    client = data.client(1)
    rows, _ = task.needed_rows(client)
    values = {name: model[name][some] for name, some in rows.items()}
    local = score_samples(task, task.initial_dense(), rows, values, client)
    np.testing.assert_allclose(local, score_samples(task, task.initial_dense(), {}, model, client), rtol=1e-6)
    assert len(local) == len(client)
