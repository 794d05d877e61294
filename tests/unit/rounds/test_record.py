"""What a round's line says about its outcome."""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

pytest.importorskip("torch")

from cohort import Cohort, Stepper
from sfsl.rounds import ScoreBins
from sfsl.rounds.record import (
    WORST_AUC_ERROR,
    WORST_LOG_LOSS_ERROR,
    Learned,
    RoundRecord,
    RoundTally,
    read_sums,
    refused,
    secure_auc,
    secure_log_loss,
)
from sfsl.scores import log_loss_from_histograms
from sfsl.submodel import RowSet


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


# -- figures by hand -----------------------------------------------------------------------------------


def test_an_auc_is_shown_up_to_the_worst_error() -> None:
    """Clicks and others share one bin: half of that share of the pairs is not known."""
    assert (WORST_AUC_ERROR, WORST_LOG_LOSS_ERROR) == (0.1, 0.05)
    apart = np.array([0, 10]), np.array([10, 0])
    exactly = 0.1 / (1.5 * math.sqrt(2) * math.hypot(0.1, 0.1))
    auc, error = secure_auc(outcome(scores=apart, noise=exactly * (1 - 1e-9)))
    assert (auc, error) == (1.0, pytest.approx(0.1))
    assert secure_auc(outcome(scores=apart, noise=exactly * (1 + 1e-9)))[0] is None
    few = np.array([0, 1]), np.array([1, 0])
    assert secure_auc(outcome(scores=few, noise=0.1))[1] == pytest.approx(0.15 * 2)


def test_noise_makes_a_log_loss_less_certain() -> None:
    bins = ScoreBins(bins=64)
    clicks, others = np.arange(64), np.arange(64)[::-1]
    plain = secure_log_loss(outcome(scores=(clicks, others), bins=bins))["log_loss_secure_error"]
    noisy = secure_log_loss(outcome(scores=(clicks, others), bins=bins, noise=0.5))["log_loss_secure_error"]
    assert plain is not None
    assert noisy == pytest.approx(plain + 3 * 0.5 * math.sqrt(2 * 64) / (2 * 63 * 32))


def test_noise_in_the_log_loss_of_two_samples() -> None:
    bins, click, other = ScoreBins(bins=64), np.zeros(64), np.zeros(64)
    click[40] = other[20] = 1
    exact, noisy = (
        secure_log_loss(outcome(scores=(click, other), bins=bins, noise=noise))["log_loss_secure_error"]
        for noise in (0.0, 0.01)
    )
    assert exact is not None
    assert noisy == pytest.approx(exact + 3 * 0.01 * math.sqrt(2 * 64) / 2)


def learned(samples: int, loss: float, **fields: Any) -> Learned:
    return Learned(
        **{"samples": samples, "loss": loss, "diverged": False, "unknown": 0, "personal": {}} | fields
    )


def test_a_tally_adds_up_what_clients_say() -> None:
    tally = RoundTally(cohort=3)
    tally.learn([learned(2, 0.5, unknown=1), learned(0, math.nan), learned(6, 1.5, diverged=True)], 2.5)
    tally.learn([], 0.5)
    for _ in range(2):
        tally.up("a", 10)
        tally.down("b", 6)
        tally.drop("c")
    tally.drop("c", 3)
    tally.decline("Decline")
    tally.decline(ValueError("why"))
    tally.answered = {"a": 4}
    line = tally.record(7, None, aborted="for a reason", seconds=9.0)
    assert (line.round, line.aborted, line.wall_seconds, line.cohort) == (7, "for a reason", 9.0, 3)
    assert (line.samples, line.unknown_rows, line.diverged, line.training_seconds) == (8, 1, 1, 3.0)
    assert line.loss == pytest.approx((2 * 0.5 + 6 * 1.5) / 8)
    assert (line.bytes_up, line.bytes_down) == ({"a": 5.0}, {"b": 12.0})  # of each that answered, or of one
    assert (line.dropped, line.declined) == ({"c": 5}, {"Decline": 1, "ValueError": 1})
    assert (line.survivors, line.union, line.opened, line.moved, line.refused) == (0, {}, {}, {}, {})
    assert (line.auc, line.auc_secure, line.lost, line.late) == (None, None, False, 0)
    assert RoundTally().record(1, None).loss is None
    diverged = RoundTally()
    diverged.learn([learned(1, math.inf)], 0.0)
    assert diverged.record(1, None).loss is None


def test_tallies_of_two_cohorts() -> None:
    one, two = RoundTally(cohort=2, late=1, loss=0.5), RoundTally(cohort=3, cohorts_aborted=1, workers_lost=2)
    one.up("a", 1)
    two.up("a", 2)
    two.up("b", 5)
    one.add(two)
    assert (one.cohort, one.late, one.loss, one.cohorts_aborted, one.workers_lost) == (5, 1, 0.5, 1, 2)
    assert one.bytes_up == {"a": 3, "b": 5}
    assert two.bytes_up == {"a": 2, "b": 5}


def test_what_is_drawn_of_a_line() -> None:
    tally = RoundTally(cohort=4, dropped={"a": 1, "b": 2}, declined={"x": 1}, late=2)
    tally.up("a", 3)
    tally.up("b", 4)
    line = msgspec.structs.replace(tally.record(1, None, aborted="so", seconds=2.0), auc=0.75)
    assert line.scalars() == {
        "quality/auc": 0.75,
        "cost/bytes_up": 7.0,
        "cost/wall_seconds": 2.0,
        "clients/cohort": 4.0,
        "clients/survivors": 0.0,
        "clients/dropped": 3.0,
        "clients/late": 2.0,
        "clients/declined": 1.0,
        "clients/aborted": 1.0,
    }
    assert tally.record(1, None).scalars()["clients/aborted"] == 0.0


def test_which_figure_chooses_a_model() -> None:
    line = RoundTally().record(1, None)
    assert line.validation("auc") is line.validation("log_loss") is None
    measured = msgspec.structs.replace(line, auc_valid=0.8, log_loss_valid=0.4)
    assert (measured.validation("auc"), measured.validation("log_loss")) == (-0.8, 0.4)
    assert msgspec.structs.replace(line, auc_valid=0.8).validation("log_loss") == -0.8


def test_a_lost_line_says_nothing_but_that() -> None:
    lost = RoundRecord.of_lost(3)
    assert (lost.round, lost.lost, lost.aborted, lost.survivors) == (3, True, None, 0)


def test_a_line_counts_what_was_opened_and_moved() -> None:
    rows = {"goods": RowSet.of([1, 4, 9])}
    applied = SimpleNamespace(refused={}, dense_refused=False, moved={"goods": 2})
    made: Any = SimpleNamespace(
        applied=applied, survivors=("a", "b"), union=rows, contributors={"goods": np.array([0, 2, 1])},
        scores=None, noise=0.0, bins=None,
    )  # fmt: skip
    line = RoundTally().record(1, made)
    assert (line.survivors, line.union, line.opened, line.moved) == (
        2,
        {"goods": 3},
        {"goods": 2},
        {"goods": 2},
    )


@pytest.mark.parametrize(("count", "sound"), [(0, True), (2**40 - 1, True), (2**40, False), (-1, False)])
def test_histograms_that_count_below_nothing_or_too_much_are_not_read(count: int, sound: bool) -> None:
    params = Cohort(3).params
    end, unions = params.model.dense_words, {"goods": RowSet.of([]), "category": RowSet.of([])}
    dense = np.zeros(end + 16, np.int64)
    dense[end + 15] = count
    tables = [np.zeros((0, width), np.uint32) for width in (4, 3)]
    found = read_sums(params, unions, dense, tables, [np.zeros(0, np.int64)] * 2, ("a",))
    assert (found.scores is not None) == sound
    if found.scores is not None:
        assert (found.scores[0].tolist(), found.scores[1].tolist()) == ([0] * 8, [0] * 7 + [count])
    bare = msgspec.structs.replace(params, scores=None)
    assert read_sums(bare, unions, dense[:end], tables, [np.zeros(0, np.int64)] * 2, ()).scores is None


def test_cohorts_of_one_round_add_up() -> None:
    one, two = Stepper(Cohort(4)), Stepper(Cohort(3))
    one.finish()
    two.finish()
    both = one.server.sums + two.server.sums
    assert both.survivors == one.server.sums.survivors + two.server.sums.survivors
    assert both.scores is not None
    assert both.scores[0].tolist() == [7 * n for n in range(8)]
    assert both.scores[1].tolist() == [7] * 8
    whole = sum(int(part.server.sums.contributors["goods"].sum()) for part in (one, two))
    assert int(both.contributors["goods"].sum()) == whole
    half = replace(two.server.sums, scores=None)
    assert (one.server.sums + half).scores is one.server.sums.scores
    assert (half + one.server.sums).scores is one.server.sums.scores
    assert (half + half).scores is None
