"""Log loss, rankings, calibration and baselines, against values computed by hand."""

import math

import numpy as np
import pytest

from sfsl.errors import InputError
from sfsl.scores import Baselines, Evaluation, Scored, calibrate, evaluate, log_loss, rank

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
