"""What a round's line says about its outcome."""

import math
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

pytest.importorskip("torch")

from sfsl.rounds import ScoreBins
from sfsl.rounds.record import (
    WORST_AUC_ERROR,
    WORST_LOG_LOSS_ERROR,
    RoundRecord,
    RoundTally,
    refused,
    secure_auc,
    secure_log_loss,
)
from sfsl.scores import log_loss_from_histograms


def outcome(**given: Any) -> Any:
    applied = SimpleNamespace(refused={"goods": 2}, dense_refused=given.pop("dense_refused", False))
    return SimpleNamespace(applied=applied, **{"scores": None, "noise": 0.0, **given})


def test_an_auc_that_could_be_anything_is_not_shown() -> None:
    together = np.array([0, 40, 0]), np.array([0, 60, 0])
    assert secure_auc(outcome(scores=together)) == (None, 0.5)
    apart = np.array([0, 10, 30]), np.array([60, 0, 0])
    assert secure_auc(outcome(scores=apart)) == (1.0, 0.0)
    auc, error = secure_auc(outcome(scores=(np.array([2, 5, 33]), np.array([33, 5, 2]))))
    assert auc is not None
    assert error is not None
    assert 0 < error <= WORST_AUC_ERROR


def test_noise_makes_an_auc_less_certain_and_never_worse_than_anything() -> None:
    apart = np.array([0, 0, 40]), np.array([40, 0, 0])
    auc, error = secure_auc(outcome(scores=apart, noise=0.01))
    assert auc == 1.0
    assert error == pytest.approx(1.5 * 0.01 * math.sqrt(3) * math.hypot(1 / 40, 1 / 40))
    assert secure_auc(outcome(scores=apart, noise=1000.0)) == (None, 1.0)


def test_without_scores_there_is_no_auc() -> None:
    nobody = np.zeros(3, int), np.zeros(3, int)
    for one in (None, outcome(), outcome(scores=nobody)):
        assert secure_auc(one) == (None, None)


def test_the_log_loss_of_a_cohort_stands_beside_its_own_base_rate() -> None:
    bins = ScoreBins(bins=64)
    clicks, others = np.arange(64), np.arange(64)[::-1]
    found = secure_log_loss(outcome(scores=(clicks, others), bins=bins))
    loss, error = log_loss_from_histograms(clicks, others, *bins.log_odds)
    assert found == {
        "log_loss_secure": loss,
        "log_loss_secure_error": error,
        "base_log_loss_secure": pytest.approx(math.log(2)),
    }
    # Half of them in one bin, and anywhere in it: nothing can be said of the loss.
    lumped = np.zeros(64, int)
    lumped[[0, 63]] = 30
    found = secure_log_loss(outcome(scores=(lumped, lumped), bins=bins))
    assert found["log_loss_secure"] is None
    assert (found["log_loss_secure_error"] or 0) > WORST_LOG_LOSS_ERROR
    nobody = np.zeros(64, int), np.zeros(64, int)
    for one in (None, outcome(bins=None), outcome(scores=nobody, bins=bins)):
        assert secure_log_loss(one) == {}


def test_lines_from_before_there_was_a_log_loss_are_read() -> None:
    tally = RoundTally(cohort=3)
    record = tally.record(1, None)
    old = msgspec.json.decode(record.encode())
    for name in ("log_loss", "ndcg", "recall", "log_loss_secure", "log_loss_secure_error"):
        assert old.pop(name) is None
    assert old.pop("base_log_loss_secure") is None
    assert msgspec.json.decode(msgspec.json.encode(old), type=RoundRecord) == record


def test_sums_that_were_refused_are_counted_also_the_dense_one() -> None:
    assert refused(None) == {}
    assert refused(outcome()) == {"goods": 2}
    assert refused(outcome(dense_refused=True)) == {"goods": 2, "dense": 1}
