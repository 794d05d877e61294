"""AUC, exact and from histograms, and scores."""

import numpy as np
import pytest

from sfsl.data import SyntheticSettings, SyntheticTaobao
from sfsl.errors import InputError
from sfsl.models import logistic_regression
from sfsl.training import (
    auc,
    auc_from_histograms,
    even_edges,
    refined_edges,
    score_histograms,
    score_samples,
)


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


@pytest.mark.parametrize("spread", [0.05, 0.5, 3.0])
@pytest.mark.parametrize("centre", [-4.0, 0.0, 2.0])
def test_histograms_come_within_five_thousandths(spread: float, centre: float) -> None:
    rng = np.random.default_rng(1)
    labels = (rng.random(20_000) < 0.3).astype(int)
    logit = centre + spread * (rng.standard_normal(20_000) + 0.8 * labels)
    scores = 1 / (1 + np.exp(-logit))
    edges = even_edges()
    for _ in range(2):
        edges = refined_edges(*score_histograms(scores, labels, edges), edges)
    clicks, others = score_histograms(scores, labels, edges)
    assert len(clicks) == len(others) == 256
    assert clicks.sum() == labels.sum()
    assert auc_from_histograms(clicks, others) == pytest.approx(auc(scores, labels), abs=0.005)


def test_even_bins_do_for_a_model_that_has_learned() -> None:
    rng = np.random.default_rng(2)
    labels = (rng.random(20_000) < 0.5).astype(int)
    scores = 1 / (1 + np.exp(-(rng.standard_normal(20_000) + labels)))
    found = auc_from_histograms(*score_histograms(scores, labels, even_edges()))
    assert found == pytest.approx(auc(scores, labels), abs=0.001)


def test_histograms_add_up_over_clients() -> None:
    rng = np.random.default_rng(3)
    scores, labels = rng.random(1000), rng.integers(0, 2, 1000)
    parts = [score_histograms(scores[i::7], labels[i::7], even_edges()) for i in range(7)]
    clicks, others = np.sum(parts, axis=0)
    whole = score_histograms(scores, labels, even_edges())
    assert np.array_equal(clicks, whole[0])
    assert np.array_equal(others, whole[1])


def test_scores_off_the_scale_and_not_finite() -> None:
    clicks, others = score_histograms([-1.0, 0.0, 1.0, 2.0, np.nan], [1, 1, 1, 0, 0], even_edges(4))
    assert clicks.tolist() == [2, 0, 0, 1]
    assert others.tolist() == [0, 0, 0, 1]


def test_refined_edges_rise_and_survive_an_empty_round() -> None:
    edges = even_edges()
    nothing = np.zeros(256, dtype=np.int64)
    assert np.array_equal(refined_edges(nothing, nothing, edges), edges)
    one_bin = nothing.copy()
    one_bin[17] = 1000
    fine = refined_edges(one_bin, nothing, edges)
    assert (np.diff(fine) > 0).all()
    assert ((fine > 17 / 256) & (fine < 18 / 256)).sum() > 200


def test_scores_on_a_submodel_are_those_on_the_full_model() -> None:
    settings = SyntheticSettings(users=3, items=200, categories=10, samples=30, interests=5)
    data = SyntheticTaobao(settings, seed=0).interactions()
    task = logistic_regression(data)
    rng = np.random.default_rng(0)
    model = {t.name: rng.standard_normal((t.rows, t.width)).astype(np.float32) for t in task.tables}
    client = data.client(1)
    rows, _ = task.needed_rows(client)
    values = {name: model[name][some] for name, some in rows.items()}
    local = score_samples(task, task.initial_dense(), rows, values, client)
    np.testing.assert_allclose(local, score_samples(task, task.initial_dense(), {}, model, client), rtol=1e-6)
    assert len(local) == len(client)
