"""The audit: sound perturbers keep their claim, broken ones are caught, countermeasures do what we say."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from sfsl.errors import InputError, ParameterError
from sfsl.privacy import PRESETS, IndexPrivacy
from sfsl_research.audit.attacks import deduce, intersection, link_pseudonyms
from sfsl_research.audit.audit import audit
from sfsl_research.audit.countermeasures import AttackReport, Setting
from sfsl_research.audit.estimation import _bound, epsilon_bounds
from sfsl_research.audit.intervals import lower_bound, upper_bound
from sfsl_research.audit.simulation import SUBJECTS, Forgetful, SeenRound, Truthful, make_fleet

SMALL = Setting(fleet=60, cohort=20, domain=3000, set_size=30, rounds=10)
CHECKPOINTS = [1, 5, 10]


@pytest.mark.parametrize("name", ["cpp2", "cpp3", "cpp4", "cpp5"])
def test_a_sound_perturber_keeps_its_claim_and_the_bound_is_close(name: str) -> None:
    bounds = epsilon_bounds(
        PRESETS[name], [1, 3, 10], trials=100_000, confidence=0.999, rng=np.random.default_rng(1)
    )
    for bound in bounds:
        assert not bound.violated
        assert bound.lower > bound.claimed - 0.15


@pytest.mark.parametrize("subject", [Forgetful, Truthful])
@pytest.mark.parametrize("name", ["cpp2", "cpp3", "cpp4"])
def test_a_broken_perturber_is_caught(name: str, subject: type) -> None:
    bounds = epsilon_bounds(
        PRESETS[name], [10], trials=50_000, confidence=0.999, rng=np.random.default_rng(2), subject=subject
    )
    assert bounds[0].violated
    assert bounds[0].lower > 2 * bounds[0].claimed


def test_a_forgetful_perturber_cannot_be_told_in_one_round() -> None:
    bounds = epsilon_bounds(
        PRESETS["cpp2"], [1], trials=50_000, confidence=0.999, rng=np.random.default_rng(3), subject=Forgetful
    )
    assert not bounds[0].violated


def test_the_bound_is_wrong_no_more_often_than_it_says() -> None:
    """At 90 % confidence and few trials, over 100 audits of a sound perturber."""
    privacy = PRESETS["cpp4"]
    rng = np.random.default_rng(4)
    wrong = sum(
        epsilon_bounds(privacy, [2], trials=320, confidence=0.9, rng=rng)[0].violated for _ in range(100)
    )
    assert stats.binomtest(wrong, 100, 0.1, alternative="greater").pvalue > 1e-3


def test_the_bound_by_hand() -> None:
    """The event is chosen on the first half; the second half alone gives the figures."""
    choosing = np.array([[10, 90], [80, 20]])  # no and yes in one round: real rows, other rows
    testing = np.array([[150, 850], [700, 300]])
    lower, event = _bound(choosing, testing, 0.9)
    assert event == "at most 0 yes in 1, other rows"
    least = stats.beta.ppf(0.05, 700, 1000 - 700 + 1)
    most = stats.beta.ppf(0.95, 150 + 1, 1000 - 150)
    assert lower == pytest.approx(math.log(least / most))


def test_intervals_are_those_of_clopper_and_pearson() -> None:
    rng = np.random.default_rng(5)
    for trials in (1, 7, 100, 10_000, 10**6):
        for successes in {0, 1, trials // 3, trials - 1, trials, int(rng.integers(trials + 1))}:
            for confidence in (0.9, 0.999, 1 - 1e-9):
                low = stats.beta.ppf(1 - confidence, successes, trials - successes + 1) if successes else 0
                high = stats.beta.ppf(confidence, successes + 1, trials - successes)
                high = 1 if successes == trials else high
                assert lower_bound(successes, trials, confidence) == pytest.approx(low, rel=1e-7)
                assert upper_bound(successes, trials, confidence) == pytest.approx(high, rel=1e-7)
    for bad in ((-1, 5, 0.9), (6, 5, 0.9), (0, 0, 0.9), (1, 5, 1.0)):
        with pytest.raises(InputError):
            lower_bound(*bad)


@pytest.fixture(scope="module")
def reports() -> dict[str, list[AttackReport]]:
    found = audit(PRESETS["cpp2"], SMALL, rounds=CHECKPOINTS, trials=20_000, confidence=0.999, seed=6)
    assert not found.violated
    grouped: dict[str, list[AttackReport]] = {}
    for report in found.attacks:
        grouped.setdefault(report.countermeasure, []).append(report)
    return grouped


def test_proofs_are_proofs(reports: dict[str, list[AttackReport]]) -> None:
    """Whoever is proved an owner is one, under every countermeasure that leaves names alone."""
    for name, lines in reports.items():
        if name != "pseudonyms":
            assert all(line.proved.precision in (None, 1.0) for line in lines)


def test_what_each_countermeasure_is_worth(reports: dict[str, list[AttackReport]]) -> None:
    last = {name: lines[-1] for name, lines in reports.items()}
    none, once = last["none"], last["once per period"]
    assert none.named.recall > 0.8
    assert none.named.precision is not None
    assert none.named.precision > 0.98
    # One round per period: what is left is what one round gives away.
    assert (once.rounds, once.proved.recall) == (1, once.named.recall)
    assert once.named.recall < 0.15
    # ... and it helps only as far as data are new.
    assert last["once per period, same data"].named.recall > 0.8
    # Perturbed input hides some owners from unions, and counts still name many.
    assert 0.2 < last["perturbed union input"].named.recall < none.named.recall - 0.15
    assert last["perturbed union input"].intersection.recall < 0.98
    # A fixed group stops the intersection of unions, not the counts; with dropouts it stops neither.
    group = reports["fixed group"]
    assert group[0].intersection.claims == group[-1].intersection.claims
    assert group[-1].named.recall > 0.4
    assert last["fixed group, dropouts"].proved.recall > group[-1].proved.recall + 0.15
    # Pseudonyms are linked by the fingerprint of the permanent answers.
    assert last["pseudonyms"].linked == 1.0
    assert last["pseudonyms"].named.recall > 0.8


def test_attacks_only_get_better_with_rounds(reports: dict[str, list[AttackReport]]) -> None:
    for name in ("none", "fixed group", "fixed group, dropouts"):
        assert [line.rounds for line in reports[name]] == CHECKPOINTS
        found = [line.proved.recall for line in reports[name]]
        assert found == sorted(found)
        assert reports[name][0].possible > reports[name][-1].possible


def test_events_happen_as_often_as_theorem_two_says() -> None:
    for name in ("cpp1", "cpp2", "cpp4"):
        setting = replace(SMALL, domain=60_000, set_size=600, rounds=1)
        found = audit(PRESETS[name], setting, rounds=[1], trials=1600, confidence=0.999, seed=7)
        for event in found.events:
            assert event.lower <= event.predicted <= event.upper
            assert event.upper - event.lower < 0.04
    broken = audit(
        IndexPrivacy(0.6, 0.3, 1, 0),
        setting,
        rounds=[1],
        trials=1600,
        confidence=0.999,
        seed=7,
        subject=Truthful,
    )
    assert any(event.unexpected for event in broken.events)
    assert broken.violated


def test_an_audit_can_be_repeated() -> None:
    one, two, other = (
        audit(PRESETS["cpp3"], replace(SMALL, rounds=2), rounds=[2], trials=1600, confidence=0.99, seed=seed)
        for seed in (8, 8, 9)
    )
    assert one == two
    assert one != other


def test_the_default_setting_is_about_as_heterogeneous_as_the_papers() -> None:
    fleet = make_fleet(100, 143_534, 301, 0.6, np.random.default_rng(10))
    owners = fleet.owns.sum(axis=0)
    assert (owners == 1).mean() == pytest.approx(0.867, abs=0.01)
    assert owners.mean() == pytest.approx(1.17, abs=0.03)
    assert fleet.owns.sum(axis=1).tolist() == [301] * 100


def seen(members: list[int], union: str, asked: list[str], counts: list[int]) -> SeenRound:
    bits = np.array([[bit == "x" for bit in row] for row in [union, *asked]])
    return SeenRound(np.array(members), bits[0], bits[1:], np.array(counts))


def test_group_testing_by_hand() -> None:
    rounds = [
        #        rows: a  b  c      client 0 owns a, 1 owns b and c, 2 owns b
        seen([0, 1, 2], "xxx", ["xx.", ".xx", "xx."], [1, 2, 1]),
        seen([0, 2], "xx.", ["xx.", "x.."], [1, 0, 0]),
        seen([1, 2], ".xx", [".xx", "..."], [0, 1, 1]),
    ]
    claimed = intersection(rounds, 4)
    assert claimed.tolist() == [
        [True, True, False],  # b, too: it was in both unions of client 0
        [False, True, True],
        [False, True, False],
        [False, False, False],  # never took part
    ]
    deduction = deduce(rounds, 4, unions_exact=True)
    assert deduction.proved.tolist() == [
        [True, False, False],
        [False, True, True],
        [False, True, False],
        [False, False, False],
    ]
    assert np.array_equal(deduction.possible, deduction.proved)
    # Without trust in the unions, only counts speak: a is still either client's.
    doubtful = deduce(rounds, 4, unions_exact=False)
    assert not doubtful.proved[:, 0].any()
    assert doubtful.possible[:, 0].tolist() == [True, True, True, False]


def test_pseudonyms_are_numbered_by_first_appearance() -> None:
    rng = np.random.default_rng(11)
    prints = rng.random((3, 400)) < 0.3
    rounds = [
        SeenRound(np.array([7, 8, 9]), np.ones(400, bool), prints, np.zeros(400, int)),
        SeenRound(np.array([9, 7, 8]), np.ones(400, bool), prints[[2, 0, 1]], np.zeros(400, int)),
    ]
    assert [names.members.tolist() for names in link_pseudonyms(rounds)] == [[0, 1, 2], [2, 0, 1]]


@pytest.mark.parametrize(
    "bad", [{"cohort": 61}, {"cohort": 1}, {"rounds": 0}, {"dropout": 1.0}, {"dropout": -0.1}]
)
def test_settings_that_cannot_be(bad: dict[str, float]) -> None:
    with pytest.raises(ParameterError):
        replace(SMALL, **bad)


def test_audits_that_cannot_be() -> None:
    rng = np.random.default_rng(0)
    for rounds, trials in (([], 100), ([0], 100), ([1], 15)):
        with pytest.raises(ParameterError):
            epsilon_bounds(PRESETS["cpp2"], rounds, trials=trials, confidence=0.9, rng=rng)
    with pytest.raises(ParameterError, match="rows"):
        make_fleet(10, 100, 101, 0.5, rng)


def test_infinite_claims_are_never_violated() -> None:
    bounds = epsilon_bounds(
        PRESETS["cpp1"],
        [1],
        trials=16_000,
        confidence=0.99,
        rng=np.random.default_rng(1),
        subject=SUBJECTS["sound"],
    )
    assert bounds[0].claimed == math.inf
    assert bounds[0].lower > 5
