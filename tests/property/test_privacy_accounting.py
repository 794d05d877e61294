"""Exact epsilon against brute force over every sequence of answers, and events against enumeration."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sfsl.privacy import IndexPrivacy, Ledger, cohort_events
from sfsl.privacy.parameters import LEAST

chances = st.one_of(st.sampled_from([0.0, 1.0, 0.5, 1 / 16]), st.floats(LEAST, 1 - LEAST))


@st.composite
def privacies(draw: st.DrawFn) -> IndexPrivacy:
    p2, p1 = sorted((draw(chances), draw(chances)))
    p4, p3 = sorted((draw(chances), draw(chances)))
    return IndexPrivacy(p1, p2, p3, p4)


def largest_log_ratio(real: np.ndarray, other: np.ndarray) -> float:
    """max |ln(real / other)| over outcomes; those impossible under both say nothing."""
    possible = (real > 0) | (other > 0)
    with np.errstate(divide="ignore"):
        return float(np.abs(np.log(real[possible]) - np.log(other[possible])).max())


def brute_force(p1: float, p2: float, layers: list[tuple[float, float]]) -> float:
    """Over all 2^k answer sequences; round i has its own p3 and p4."""
    sequences = np.array(list(itertools.product((0, 1), repeat=len(layers))))
    p3, p4 = np.array(layers).T
    if_yes = np.where(sequences == 1, p3, 1 - p3).prod(axis=1)
    if_no = np.where(sequences == 1, p4, 1 - p4).prod(axis=1)
    return largest_log_ratio(p1 * if_yes + (1 - p1) * if_no, p2 * if_yes + (1 - p2) * if_no)


@settings(max_examples=150, deadline=None)
@given(privacies(), st.integers(1, 12))
def test_epsilon_is_the_largest_log_ratio(privacy: IndexPrivacy, rounds: int) -> None:
    expected = brute_force(privacy.p1, privacy.p2, [(privacy.p3, privacy.p4)] * rounds)
    assert privacy.epsilon(rounds) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(privacies(), st.lists(privacies(), min_size=1, max_size=8))
def test_the_ledger_is_exact_when_p3_and_p4_change_between_rounds(
    first: IndexPrivacy, others: list[IndexPrivacy]
) -> None:
    ledger = Ledger()
    for other in others:
        ledger = ledger.after_answer(IndexPrivacy(first.p1, first.p2, other.p3, other.p4))
    expected = brute_force(first.p1, first.p2, [(other.p3, other.p4) for other in others])
    assert ledger.epsilon(first.p1, first.p2) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@given(privacies(), st.integers(0, 10**6), st.integers(1, 10**6))
def test_epsilon_never_falls_and_never_passes_infinity(privacy: IndexPrivacy, rounds: int, more: int) -> None:
    now, later = privacy.epsilon(rounds), privacy.epsilon(rounds + more)
    assert not math.isnan(later)
    assert now <= later + 1e-9
    assert later <= privacy.epsilon_infinity + 1e-9


@given(privacies())
def test_epsilon_starts_at_lemma_two(privacy: IndexPrivacy) -> None:
    real = np.array([privacy.p5, 1 - privacy.p5])
    other = np.array([privacy.p6, 1 - privacy.p6])
    # p5 and p6 themselves are rounded; where one is next to 1 its complement has few digits left.
    assume(all(p in (0, 1) or 1e-6 < p < 1 - 1e-6 for p in (privacy.p5, privacy.p6)))
    assert privacy.epsilon_one == privacy.epsilon(1)
    assert privacy.epsilon_one == pytest.approx(largest_log_ratio(real, other), rel=1e-6, abs=1e-6)


@given(privacies())
def test_epsilon_tends_to_lemma_one(privacy: IndexPrivacy) -> None:
    real = np.array([privacy.p1, 1 - privacy.p1])
    other = np.array([privacy.p2, 1 - privacy.p2])
    assert privacy.epsilon_infinity == pytest.approx(largest_log_ratio(real, other), rel=1e-9, abs=1e-9)
    assume(privacy.p3 - privacy.p4 > 0.01 and privacy.epsilon_infinity < 30)
    assert privacy.epsilon(10**6) == pytest.approx(privacy.epsilon_infinity, abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(st.lists(privacies(), min_size=1, max_size=5), st.data())
def test_events_of_a_mixed_cohort_by_enumeration(cohort: list[IndexPrivacy], data: st.DataObject) -> None:
    """Every placement of the owners, every pattern of who asks."""
    count = data.draw(st.integers(0, len(cohort)))
    placements = list(itertools.combinations(range(len(cohort)), count))
    alone = nobody_owns_it = 0.0
    for owners in placements:
        rates = [p.p5 if i in owners else p.p6 for i, p in enumerate(cohort)]
        for asked in itertools.product((0, 1), repeat=len(cohort)):
            chance = math.prod(r if a else 1 - r for r, a in zip(rates, asked, strict=True)) / len(placements)
            asking_owners = sum(asked[i] for i in owners)
            alone += chance * (sum(asked) == 1 and asking_owners == 1)
            nobody_owns_it += chance * (sum(asked) > 0 and asking_owners == 0)
    events = cohort_events(cohort, count)
    assert events.p7_any == pytest.approx(alone, abs=1e-12)
    assert events.p8 == pytest.approx(nobody_owns_it, abs=1e-12)
    assert events.p7 == pytest.approx(alone / count if count else 0, abs=1e-12)
