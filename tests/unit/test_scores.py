"""Log loss, rankings, calibration and baselines, against values computed by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest

from sfsl.errors import InputError
from sfsl.rounds import ScoreBins
from sfsl.scores import (
    Baselines,
    Evaluation,
    Scored,
    calibrate,
    evaluate,
    log_loss,
    log_loss_from_histograms,
    rank,
    rate_log_loss,
    score_histograms,
    unbeaten,
    verdict,
)

LN2 = math.log(2)


def test_the_log_loss_of_chances() -> None:
    assert log_loss([0.5, 0.5], [1, 0]) == pytest.approx(LN2)
    assert log_loss([0.8, 0.4, 0.9], [1, 0, 0]) == pytest.approx(
        -(math.log(0.8) + math.log(0.6) + math.log(0.1)) / 3
    )
    assert log_loss([1.0], [0]) == pytest.approx(-math.log(1e-7))  # sure and wrong, yet a number
    assert log_loss([1.0, 0.0], [1, 0]) == pytest.approx(1e-7)
    assert math.isnan(log_loss([], []))
    assert math.isnan(log_loss([np.nan, 0.5], [1, 0]))
    assert math.isnan(log_loss([np.inf, 0.5], [1, 0]))
    with pytest.raises(InputError):
        log_loss([0.5], [1, 0])


def test_rankings_of_two_users() -> None:
    # User 7 ranks click, no, click; user 3 ranks no, click. Their samples stand mixed up.
    scores = [0.2, 0.9, 0.5, 0.8, 0.1]
    labels = [1, 1, 0, 0, 1]
    users = np.array([7, 7, 7, 3, 3])
    first = (1 + 1 / math.log2(4)) / (1 + 1 / math.log2(3))
    second = (1 / math.log2(3)) / 1
    assert rank(scores, labels, users) == pytest.approx(((first + second) / 2, 1.0, 2))
    ndcg, recall, counted = rank(scores, labels, users, top=1)
    assert (ndcg, recall, counted) == pytest.approx((0.5, 0.25, 2))  # of two clicks one, of one none
    mixed = [3, 0, 4, 1, 2]
    assert rank(np.array(scores)[mixed], np.array(labels)[mixed], users[mixed], top=1) == (
        ndcg,
        recall,
        counted,
    )


def test_only_the_first_ten_count() -> None:
    scores, labels = np.arange(12, 0, -1) / 12, np.zeros(12)
    labels[[0, 10, 11]] = 1
    best = 1 + 1 / math.log2(3) + 1 / math.log2(4)
    assert rank(scores, labels, np.zeros(12, np.int64)) == pytest.approx((1 / best, 1 / 3, 1))


def test_equal_scores_are_worth_the_mean_over_their_orders() -> None:
    # The click stands first in the file, which must not help.
    discounts = [1 / math.log2(place + 2) for place in range(4)]
    ndcg, recall, _ = rank([0.5] * 4, [1, 0, 0, 0], np.zeros(4, np.int64))
    assert (ndcg, recall) == pytest.approx((sum(discounts) / 4, 1.0))
    assert rank([0.5] * 4, [1, 0, 0, 0], np.zeros(4, np.int64), top=1)[:2] == pytest.approx((0.25, 0.25))
    # Equal scores of two users have nothing to do with each other.
    assert rank([0.5, 0.5, 0.5, 0.1], [1, 0, 1, 0], np.array([0, 0, 1, 1]), top=1)[0] == pytest.approx(0.75)


def test_rankings_are_shares_to_the_last_bit() -> None:
    # All clicks above all others, in ties of every size: the best that there is.
    for clicks in range(1, 40):
        for others in (1, 3):
            scores, labels = np.repeat([0.9, 0.1], [clicks, others]), np.repeat([1, 0], [clicks, others])
            ndcg, recall, _ = rank(scores, labels, np.zeros(clicks + others, np.int64), top=7)
            assert ndcg == pytest.approx(1)
            assert ndcg <= 1
            assert recall <= 1


def test_users_with_one_kind_of_label_do_not_count() -> None:
    users = np.array([0, 0, 1, 1, 2, 2])
    assert rank([0.9, 0.1] * 3, [1, 1, 0, 0, 0, 1], users, top=1) == (0.0, 0.0, 1)
    ndcg, recall, counted = rank([0.9, 0.1], [1, 1], np.zeros(2, np.int64))
    assert counted == 0
    assert math.isnan(ndcg)
    assert math.isnan(recall)
    assert rank([0.9, 0.1], [1, 0], None)[2] == 0
    assert rank([], [], np.zeros(0, np.int64))[2] == 0


def test_calibration_has_what_was_said_and_what_came() -> None:
    scores = np.repeat([0.1, 0.3, 0.8], 10)
    labels = np.zeros(30)
    labels[[0, 10, 11, 12, *range(20, 30)]] = 1
    found = calibrate(scores, labels)
    assert [one.samples for one in found] == [10, 10, 10]
    assert [one.score for one in found] == pytest.approx([0.1, 0.3, 0.8])
    assert [one.rate for one in found] == pytest.approx([0.1, 0.3, 1.0])
    spread = calibrate(np.arange(1500) / 1500, np.zeros(1500))
    assert [one.samples for one in spread] == [100] * 15
    assert calibrate([], []) == ()
    assert calibrate([np.nan], [1]) == ()


def test_baselines_are_the_click_rate_and_that_of_items_smoothed() -> None:
    # Item 0: 3 clicks of 4. Item 2: none of 6. Item 1 was not seen.
    baselines = Baselines.of([1, 1, 1, 0, 0, 0, 0, 0, 0, 0], np.array([0, 0, 0, 0, 2, 2, 2, 2, 2, 2]))
    assert baselines.base == pytest.approx(0.3)
    popular = baselines.popularity(np.array([2, 0, 1, 99]))
    assert popular == pytest.approx([3 / 16, 6 / 14, 0.3, 0.3])
    assert Baselines.of([1, 0]).popularity(np.array([0])) is None
    assert baselines.popularity(None) is None
    # Rows of a table with billions, and a filler where there is no row.
    far = Baselines.of([1, 0, 1], np.array([2_000_000_000, -1, 2_000_000_000]))
    assert far.popularity(np.array([2_000_000_000, -1, 5])) == pytest.approx([26 / 36, 20 / 33, 2 / 3])
    nothing = Baselines.of([], np.zeros(0, np.int64)).popularity(np.array([3]))
    assert nothing is not None
    assert np.isnan(nothing).all()


def test_an_evaluation_has_all_of_it_on_the_same_samples() -> None:
    baselines = Baselines.of([1, 1, 1, 0, 0, 0, 0, 0, 0, 0], np.array([0, 0, 0, 0, 2, 2, 2, 2, 2, 2]))
    scored = Scored(
        np.array([0.9, 0.2, 0.6]), np.array([1.0, 0.0, 0.0]), np.array([5, 5, 6]), np.array([2, 0, 1])
    )
    found = evaluate(scored, baselines)
    assert (found.samples, found.users_ranked, found.auc, found.ndcg, found.recall) == (3, 1, 1.0, 1.0, 1.0)
    assert found.log_loss == pytest.approx(-(math.log(0.9) + math.log(0.8) + math.log(0.4)) / 3)
    assert found.base_rate == pytest.approx(0.3)
    assert found.base_log_loss == pytest.approx(-(math.log(0.3) + 2 * math.log(0.7)) / 3)
    assert found.popularity_auc == 0  # the click is of the item with the fewest
    assert found.popularity_log_loss == pytest.approx(
        -(math.log(3 / 16) + math.log(8 / 14) + math.log(0.7)) / 3
    )
    assert found.popularity_ndcg == pytest.approx(1 / math.log2(3))
    assert sum(one.samples for one in found.calibration) == 3


def test_what_is_not_defined_is_none() -> None:
    nothing = evaluate(Scored(np.zeros(0), np.zeros(0)), Baselines.of([]))
    assert nothing == Evaluation(0)
    apart = evaluate(Scored(np.array([0.2, 0.4]), np.array([0.0, 1.0]), chances=False), Baselines.of([1, 0]))
    assert apart == Evaluation(2, auc=1.0)
    lost = evaluate(Scored(np.array([np.nan, 0.4]), np.array([0.0, 1.0])), Baselines.of([1, 0]))
    assert lost == Evaluation(2, base_rate=0.5, base_log_loss=pytest.approx(LN2))


# -- log loss from histograms -------------------------------------------------------------------


def softplus(value: float) -> float:
    return math.log1p(math.exp(value))


def test_the_log_loss_of_two_bins() -> None:
    edges, middles = np.array([-np.inf, 0.0, np.inf]), np.array([-1.0, 1.0])
    found, error = log_loss_from_histograms([1, 3], [3, 1], edges, middles)
    assert found == pytest.approx((6 * softplus(-1) + 2 * softplus(1)) / 8)  # it is even: no shift is best
    farthest = -math.log(1e-7)
    assert error == pytest.approx((2 * softplus(farthest) + 6 * softplus(0)) / 8 - found)
    # Moved as a whole, the scores are worth the same.
    moved = log_loss_from_histograms([1, 3], [3, 1], edges + 2, middles + 2)
    assert moved[0] == pytest.approx(found)
    assert math.isnan(log_loss_from_histograms([1, 3], [0, 0], edges, middles)[0])


def test_scores_that_say_nothing_are_worth_the_base_rate() -> None:
    edges, middles = np.array([-np.inf, 0.0, np.inf]), np.array([-1.0, 1.0])
    found, _ = log_loss_from_histograms([0, 3], [0, 1], edges, middles)
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert found == pytest.approx(entropy)
    assert rate_log_loss(3, 1) == pytest.approx(entropy)
    assert math.isnan(rate_log_loss(0, 0))


@pytest.mark.parametrize(("spread", "bins"), [(0.1, 16), (1.0, 16), (1.0, 256), (3.0, 64)])
def test_the_log_loss_of_histograms_is_within_its_bound(spread: float, bins: int) -> None:
    rng = np.random.default_rng(bins)
    labels = (rng.random(5000) < 0.3).astype(int)
    log_odds = spread * (rng.standard_normal(5000) + 0.8 * labels)
    scale = ScoreBins(bins=bins, centre=float(log_odds.mean()), scale=0.6 * spread)
    histograms = score_histograms(1 / (1 + np.exp(-log_odds)), labels, scale.edges)
    found, error = log_loss_from_histograms(*histograms, *scale.log_odds)
    shifts = np.linspace(-4, 2, 6001)
    exact = min(
        log_loss(1 / (1 + np.exp(-log_odds - shift)), labels) for shift in shifts[:: 10 if bins > 99 else 20]
    )
    assert abs(found - exact) <= error
    assert bins < 256 or (abs(found - exact) < 1e-3 and error < 0.05)


# -- what is said about it ----------------------------------------------------------------------

GOOD = Evaluation(9, auc=0.7, log_loss=0.5, base_log_loss=0.6, popularity_auc=0.65, popularity_log_loss=0.55)


def test_a_model_that_beats_its_baselines_is_said_to() -> None:
    assert unbeaten(GOOD) == []
    assert verdict(GOOD, 1200) == (
        "After 1,200 rounds the model reaches AUC 0.7000 (item popularity: 0.6500) and log loss 0.5000 "
        "(base rate: 0.6000, item popularity: 0.5500): better than both."
    )


def test_a_model_that_does_not_is_said_not_to_and_by_what() -> None:
    assert unbeaten(replace(GOOD, log_loss=0.58)) == ["item popularity (log loss)"]
    assert unbeaten(replace(GOOD, auc=0.65)) == ["item popularity (AUC)"]  # as good as is not better
    worst = replace(GOOD, auc=0.5, log_loss=0.6)
    assert unbeaten(worst) == ["item popularity (AUC and log loss)", "the base rate"]
    assert verdict(worst, 1).endswith(
        "0.5500): no better than item popularity (AUC and log loss) and the base rate."
    )


def test_a_verdict_is_about_what_is_known() -> None:
    assert verdict(Evaluation(9), 3) == ""
    assert verdict(Evaluation(9, auc=0.7), 1) == "After 1 round the model reaches AUC 0.7000."
    only = Evaluation(9, auc=0.7, log_loss=0.5, base_log_loss=0.6)
    assert verdict(only, 3).endswith("log loss 0.5000 (base rate: 0.6000): better than it.")
    assert unbeaten(Evaluation(9, auc=0.1)) == []
