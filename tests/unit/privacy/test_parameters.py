"""The paper's table to its printed digits, and parameters that cannot be meant."""

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest

from sfsl.errors import ParameterError
from sfsl.privacy import PAPER_OWNERS, PRESETS, IndexPrivacy, cohort_events, owner_distribution
from sfsl.privacy.parameters import Workload

INF = math.inf

# Table "Choices of probability parameters", as printed: p5, p6 in %, the two epsilons, p7, p8 in %.
PAPER_TABLE = {
    "cpp1": (100.0, 0.0, INF, INF, 86.7, 0.0),
    "cpp2": (88.3, 11.7, 2.02, 2.71, 0.0, 10.3),
    "cpp3": (78.1, 21.9, 1.27, 1.95, 0.0, 19.5),
    "cpp4": (62.5, 37.5, 0.51, 1.10, 0.0, 34.2),
    "cpp5": (100.0, 100.0, 0.0, 0.0, 0.0, 0.0),
}


@pytest.mark.parametrize("name", PAPER_TABLE)
def test_the_papers_table(name: str) -> None:
    privacy = IndexPrivacy.preset(name)
    events = privacy.events(PAPER_OWNERS, 100)
    printed = (
        round(100 * privacy.p5, 1),
        round(100 * privacy.p6, 1),
        round(privacy.epsilon_one, 2),
        round(privacy.epsilon_infinity, 2),
        round(100 * events.p7, 1),
        round(100 * events.p8, 1),
    )
    assert printed == PAPER_TABLE[name]


def test_the_papers_owners_are_what_it_prints() -> None:
    assert round(100 * PAPER_OWNERS[1], 1) == 86.7
    assert round(sum(count * share for count, share in PAPER_OWNERS.items()), 2) == 1.17
    assert sum(PAPER_OWNERS.values()) == pytest.approx(1)


def test_p8_at_the_mean_number_of_owners_is_not_the_mean_p8() -> None:
    """The trap behind the paper's 10.3 %: its formula at 1.17 owners gives 8.1 %, so we refuse that."""
    cpp2 = PRESETS["cpp2"]
    at_the_mean = (1 - cpp2.p5) ** 1.17 * (1 - (1 - cpp2.p6) ** 98.83)
    assert round(100 * at_the_mean, 1) == 8.1
    with pytest.raises(ParameterError, match="distribution"):
        cpp2.events(1.17, 100)  # type: ignore[arg-type]


@pytest.mark.parametrize("owners", [1, 2, 5, 100])
def test_events_are_theorem_two(owners: int) -> None:
    p = IndexPrivacy(0.8, 0.1, 0.9, 0.05)
    events = p.events(owners, 100)
    p7 = p.p5 * (1 - p.p5) ** (owners - 1) * (1 - p.p6) ** (100 - owners)
    p8 = (1 - p.p5) ** owners * (1 - (1 - p.p6) ** (100 - owners))
    assert events.p7 == pytest.approx(p7, rel=1e-9)
    assert events.p7_any == pytest.approx(owners * p7, rel=1e-9)
    assert events.p8 == pytest.approx(p8, rel=1e-9, abs=1e-15)


def test_a_row_that_nobody_owns_can_only_betray_that() -> None:
    p = PRESETS["cpp2"]
    events = p.events(0, 3)
    assert (events.p7, events.p7_any) == (0, 0)
    assert events.p8 == pytest.approx(1 - (1 - p.p6) ** 3)


def test_per_client_parameters_that_are_equal_change_nothing() -> None:
    p = PRESETS["cpp3"]
    assert cohort_events([p] * 40, {1: 0.5, 3: 0.5}) == p.events({1: 0.5, 3: 0.5}, 40)


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ((1.1, 0, 1, 0), "p1 = 1.1"),
        ((0.5, -0.1, 1, 0), "p2 = -0.1"),
        ((0.5, 0.1, math.nan, 0), "p3 = nan"),
        ((0.5, 0.1, 1, INF), "p4 = inf"),
        ((0.1, 0.9, 1, 0), "p1 = 0.1 is below p2 = 0.9.*mixed up"),
        ((0.9, 0.1, 0.1, 0.9), "p3 = 0.1 is below p4 = 0.9.*mixed up"),
        (("0.9", 0.1, 1, 0), "p1 must be a number"),
        ((True, 0.1, 1, 0), "p1 must be a number"),
        ((0.5, 1e-12, 1, 0), "p2 = 1e-12.*write 0 or 1"),
        ((1 - 1e-12, 0, 1, 0), "write 0 or 1"),
    ],
)
def test_parameters_that_cannot_be_meant(bad: tuple[float, float, float, float], says: str) -> None:
    with pytest.raises(ParameterError, match=says):
        IndexPrivacy(*bad)


def test_an_unknown_preset_names_the_known_ones() -> None:
    with pytest.raises(ParameterError, match="cpp1, cpp2"):
        IndexPrivacy.preset("cpp6")


@pytest.mark.parametrize("rounds", [-1, 1.5, True, "3"])
def test_rounds_are_counted(rounds: int) -> None:
    with pytest.raises(ParameterError, match="rounds"):
        PRESETS["cpp2"].epsilon(rounds)


@pytest.mark.parametrize(
    ("privacy", "rounds", "epsilon"),
    [
        (IndexPrivacy(1, 0, 1, 0), 1, INF),
        (IndexPrivacy(1, 0, 1, 0), 0, 0.0),
        (IndexPrivacy(1, 1, 1, 1), 10**6, 0.0),
        (IndexPrivacy(0, 0, 1, 0), 7, 0.0),
        (IndexPrivacy(1, 0, 0.5, 0.5), 10**6, 0.0),  # answers that say nothing, whatever the permanent one
        (IndexPrivacy(0.9, 0, 1, 0), 1, INF),  # a yes proves it
        (IndexPrivacy(1, 0.1, 1, 0), 1, INF),  # a no disproves it
        (IndexPrivacy(0.5, 0.25, 1, 0), 3, math.log(2)),
        (IndexPrivacy(0.5, 0.25, 1, 1), 3, 0.0),
        (IndexPrivacy(0.5, 0.25, 0, 0), 3, 0.0),
        (IndexPrivacy(0, 0, 0, 0), 3, 0.0),
        # Finite, though far below what a float's exponent holds: 1 - p3 and p4 to the millionth power.
        (IndexPrivacy(1, 0.5, 0.9, 0.0), 10**6, 10**6 * math.log(10) + math.log(0.5)),
        (IndexPrivacy(1, 0, 0.75, 0.25), 10**6, 10**6 * math.log(3)),
    ],
)
def test_infinite_zero_and_huge_cases(privacy: IndexPrivacy, rounds: int, epsilon: float) -> None:
    assert privacy.epsilon(rounds) == pytest.approx(epsilon, rel=1e-12)


@pytest.mark.parametrize(
    "owners", [{1: 0.5}, {1: 1.5, 2: -0.5}, {101: 1.0}, {-1: 1.0}, {1.5: 1.0}, -1, 101, True]
)
def test_owners_that_cannot_be(owners: int | Mapping[int, float]) -> None:
    with pytest.raises(ParameterError):
        PRESETS["cpp2"].events(owners, 100)


@pytest.mark.parametrize(("single", "mean"), [(0.867, 1.1), (0.5, 60.0), (1.2, 1.3), (1.0, 1.5), (-0.1, 3.0)])
def test_impossible_owner_figures(single: float, mean: float) -> None:
    with pytest.raises(ParameterError):
        owner_distribution(single, mean, 100)


@pytest.mark.parametrize(
    ("single", "mean", "cohort"), [(0.867, 1.17, 100), (0, 30, 50), (0.2, 1.8, 3), (1, 1, 9)]
)
def test_owner_distribution_meets_its_two_figures(single: float, mean: float, cohort: int) -> None:
    shares = owner_distribution(single, mean, cohort)
    assert shares[1] == single
    assert sum(shares.values()) == pytest.approx(1)
    assert sum(count * share for count, share in shares.items()) == pytest.approx(mean)


def test_events_are_for_the_papers_cohort_unless_said_otherwise() -> None:
    privacy = PRESETS["cpp2"]
    assert privacy.events(2) == privacy.events(2, 100)
    assert privacy.events(2) != privacy.events(2, 50)


def test_rows_and_bytes_of_a_workload() -> None:
    """Ten rows of its own and ten others of the union: of each kind as many as randomness lets through."""
    work = Workload(cohort=4, set_size=10, row_width=3, single_owner=0.5, mean_owners=2.0)
    privacy = PRESETS["cpp2"]
    assert work.union_size == 20
    assert work.rows(privacy) == pytest.approx(10 * privacy.p5 + 10 * privacy.p6)
    assert work.bytes_per_round(privacy) == pytest.approx(20 / 8 + work.rows(privacy) * 4 * 7)


def test_a_workload_may_be_of_one_client() -> None:
    alone = Workload(cohort=1, set_size=1, row_width=1, single_owner=1.0, mean_owners=1.0)
    assert alone.owners == {1: 1.0}
    assert alone.union_size == 1
    for wrong in ({"cohort": 0}, {"set_size": 0}, {"row_width": 0}):
        with pytest.raises(ParameterError):
            replace(alone, **wrong)
