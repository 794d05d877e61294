"""The line through log-odds that validation devices fit."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from sfsl.correction import Correction, fit_correction
from sfsl.errors import InputError
from sfsl.scores import Scored, auc, correction_of, evaluate, log_loss


def drawn(
    samples: int, *, scale: float, shift: float, seed: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Draw scores of a model whose log-odds have to be taken times ``scale`` and plus ``shift``."""
    rng = np.random.default_rng(seed)
    odds = rng.normal(size=samples) * 2
    labels = rng.random(samples) < 1 / (1 + np.exp(-(scale * odds + shift)))
    return 1 / (1 + np.exp(-odds)), labels.astype(np.float64)


def test_many_samples_find_the_line() -> None:
    for scale, shift in ((0.4, -0.3), (1.0, 0.0), (1.7, 0.5)):
        found = fit_correction(*drawn(40_000, scale=scale, shift=shift))
        assert found is not None
        assert (found.scale, found.shift) == pytest.approx((scale, shift), abs=0.05)


def test_few_samples_move_it_little() -> None:
    scores, labels = drawn(6, scale=0.0, shift=0.0)
    found, free = fit_correction(scores, labels), fit_correction(*drawn(6000, scale=0.0, shift=0.0))
    assert found is not None
    assert free is not None
    assert found.scale > free.scale + 0.3
    one = fit_correction(np.array([0.5]), np.array([1.0]))
    assert one is not None
    assert one.scale == pytest.approx(1.0)
    assert 0 < one.shift < 0.1


def test_a_model_that_is_too_sure_is_worth_more_and_orders_alike() -> None:
    correction = fit_correction(*drawn(2000, scale=0.3, shift=-0.4, seed=1))
    scores, labels = drawn(5000, scale=0.3, shift=-0.4, seed=2)
    assert correction is not None
    corrected = correction.chances(scores)
    assert log_loss(corrected, labels) < log_loss(scores, labels) - 0.1
    assert auc(corrected, labels) == auc(scores, labels)


def test_the_order_stays_even_where_it_is_wrong() -> None:
    scores, labels = drawn(5000, scale=-1.0, shift=0.0)
    found = fit_correction(scores, labels)
    assert found is not None
    assert found.scale > 0
    assert auc(found.chances(scores), labels) == auc(scores, labels)


def test_scores_at_the_ends_are_as_sure_as_they_count() -> None:
    found = fit_correction(np.array([0.0, 1.0, 1.0, 0.0]), np.array([0.0, 1.0, 0.0, 1.0]))
    assert found is not None
    assert 0 < found.scale < 0.2
    ends = Correction(0.5, 0.0).chances(np.array([0.0, 1.0, np.nan]))
    assert ends[:2] == pytest.approx([1e-7**0.5, 1 - 1e-7**0.5], rel=1e-3)
    assert math.isnan(ends[2])


def test_nothing_is_fitted_where_nothing_can_be() -> None:
    nothing = np.zeros(0)
    assert fit_correction(nothing, nothing) is None
    assert fit_correction(np.array([0.5, np.nan]), np.array([1.0, 0.0])) is None
    no_chances = Scored(np.array([3.0, 1.0]), np.array([1.0, 0.0]), chances=False)
    assert correction_of(no_chances) is None


def test_an_evaluation_is_of_corrected_scores_and_says_so() -> None:
    scores, labels = drawn(3000, scale=0.4, shift=0.2)
    scored = Scored(scores, labels)
    correction = correction_of(scored)
    raw, found = evaluate(scored), evaluate(scored, correction=correction)
    assert (raw.correction, found.correction) == (None, correction)
    assert found.log_loss is not None
    assert raw.log_loss is not None
    assert found.log_loss < raw.log_loss
    assert found.auc == raw.auc
    for part in found.calibration:
        assert part.score == pytest.approx(part.rate, abs=0.1)


PARTS = ("tower", "user", "item", "match")


def drawn_parts(
    samples: int, weights: tuple[float, ...], *, shift: float = 0.0, seed: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.float64], dict[str, NDArray[np.float64]]]:
    """Draw scores whose log-odds have parts, each of which counts times one of ``weights`` in truth."""
    rng = np.random.default_rng(seed)
    parts = {name: rng.normal(size=samples) for name in PARTS}
    odds = sum(weight * part for weight, part in zip(weights, parts.values(), strict=True)) + shift
    labels = rng.random(samples) < 1 / (1 + np.exp(-odds))
    return 1 / (1 + np.exp(-np.asarray(sum(parts.values())))), labels.astype(np.float64), parts


def test_many_samples_find_what_each_part_counts() -> None:
    found = fit_correction(*drawn_parts(40_000, (0.0, 0.4, 0.8, 1.2), shift=-0.3))
    assert found is not None
    assert [found.scale * found.parts[name] for name in PARTS] == pytest.approx([0, 0.4, 0.8, 1.2], abs=0.05)
    assert np.mean(list(found.parts.values())) == pytest.approx(1.0)
    assert found.shift == pytest.approx(-0.3, abs=0.05)


def test_few_samples_leave_parts_alike() -> None:
    few = fit_correction(*drawn_parts(20, (0.0, 1.0, 1.0, 1.0), seed=3))
    many = fit_correction(*drawn_parts(4000, (0.0, 1.0, 1.0, 1.0), seed=3))
    assert few is not None
    assert many is not None
    assert many.parts["tower"] < 0.15
    assert few.parts["tower"] > 0.4


def test_a_part_that_is_wrong_counts_nothing_and_the_others_what_they_are_worth() -> None:
    found = fit_correction(*drawn_parts(20_000, (-0.5, 1.0, 1.0, 1.0)))
    assert found is not None
    assert found.parts["tower"] == 0
    assert [found.scale * found.parts[name] for name in PARTS[1:]] == pytest.approx([1, 1, 1], abs=0.1)


def test_scores_that_are_all_wrong_count_next_to_nothing() -> None:
    found = fit_correction(*drawn_parts(20_000, (-1.0, -1.0, -1.0, -1.0)))
    assert found is not None
    assert (found.scale, found.parts) == (0.05, {})


def test_what_a_part_memorized_is_taken_out_of_the_order() -> None:
    weights = (0.0, 1.0, 1.0, 0.2)
    correction = fit_correction(*drawn_parts(1000, weights, seed=1))
    scores, labels, parts = drawn_parts(5000, weights, seed=2)
    assert correction is not None
    scored = Scored(scores, labels, parts=parts)
    raw, found = evaluate(scored), evaluate(scored, correction=correction)
    assert found.auc is not None
    assert raw.auc is not None
    assert found.auc > raw.auc + 0.03
    assert found.log_loss == pytest.approx(log_loss(correction.chances(scores, parts), labels))


def test_parts_that_are_not_finite_stay_so_and_fit_nothing() -> None:
    scores, labels, parts = drawn_parts(50, (1.0, 1.0, 1.0, 1.0))
    parts["user"][7] = scores[7] = np.nan
    assert fit_correction(scores, labels, parts) is None
    chances = Correction(1.0, 0.0, dict.fromkeys(PARTS, 1.0)).chances(scores, parts)
    assert np.flatnonzero(np.isnan(chances)).tolist() == [7]


def test_parts_that_all_count_alike_are_the_line() -> None:
    scores, _, parts = drawn_parts(50, (1.0, 1.0, 1.0, 1.0))
    alike = Correction(0.4, -0.1, dict.fromkeys(PARTS, 1.0))
    assert alike.chances(scores, parts) == pytest.approx(Correction(0.4, -0.1).chances(scores))


def test_scores_of_a_model_with_other_parts_are_refused() -> None:
    scores, labels, parts = drawn_parts(50, (1.0, 1.0, 1.0, 1.0))
    correction = Correction(0.4, -0.1, {"tower": 1.2, "bias": 0.8})
    for other, said in ((parts, "has tower, user, item, match"), ({}, "has none")):
        with pytest.raises(InputError, match=f"tower, bias.*{said}"):
            evaluate(Scored(scores, labels, parts=other), correction=correction)
