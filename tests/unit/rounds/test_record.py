"""What a round's line says about its outcome."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from sfsl.rounds.record import WORST_AUC_ERROR, refused, secure_auc


def outcome(**given: Any) -> Any:
    applied = SimpleNamespace(refused={"goods": 2}, dense_refused=given.pop("dense_refused", False))
    return SimpleNamespace(applied=applied, **{"scores": None, **given})


def test_an_auc_that_could_be_anything_is_not_shown() -> None:
    together = np.array([0, 40, 0]), np.array([0, 60, 0])
    assert secure_auc(outcome(scores=together)) == (None, 0.5)
    apart = np.array([0, 10, 30]), np.array([60, 0, 0])
    assert secure_auc(outcome(scores=apart)) == (1.0, 0.0)
    auc, error = secure_auc(outcome(scores=(np.array([2, 5, 33]), np.array([33, 5, 2]))))
    assert auc is not None
    assert error is not None
    assert 0 < error <= WORST_AUC_ERROR


def test_without_scores_there_is_no_auc() -> None:
    nobody = np.zeros(3, int), np.zeros(3, int)
    for one in (None, outcome(), outcome(scores=nobody)):
        assert secure_auc(one) == (None, None)


def test_sums_that_were_refused_are_counted_also_the_dense_one() -> None:
    assert refused(None) == {}
    assert refused(outcome()) == {"goods": 2}
    assert refused(outcome(dense_refused=True)) == {"goods": 2, "dense": 1}
