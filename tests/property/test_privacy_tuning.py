"""No parameters at all are cheaper than the tuned ones for the same epsilon and p5."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfsl.errors import ParameterError
from sfsl.privacy import PRESETS, IndexPrivacy, Workload, frontier, tune

PAPER = Workload()
rounds_or_ever = st.one_of(st.none(), st.integers(1, 1000))
probabilities = st.floats(0.001, 0.999)


@st.composite
def finite_privacies(draw: st.DrawFn) -> IndexPrivacy:
    p2, p1 = sorted((draw(probabilities), draw(probabilities)))
    p4, p3 = sorted((draw(probabilities), draw(probabilities)))
    return IndexPrivacy(p1, p2, p3, p4)


def epsilon(privacy: IndexPrivacy, rounds: int | None) -> float:
    return privacy.epsilon_infinity if rounds is None else privacy.epsilon(rounds)


@settings(deadline=None)
@given(finite_privacies(), rounds_or_ever)
def test_nothing_is_cheaper(other: IndexPrivacy, rounds: int | None) -> None:
    """Whatever someone comes up with, tuning for its epsilon and its p5 costs no more."""
    tuned = tune(epsilon(other, rounds), rounds, other.p5, PAPER)
    assert tuned.bytes_per_round <= PAPER.bytes_per_round(other) * (1 + 1e-9)
    assert tuned.epsilon <= epsilon(other, rounds) + 1e-9
    assert tuned.privacy.p5 >= other.p5 - 1e-9


@settings(deadline=None)
@given(st.floats(0, 20), rounds_or_ever, st.floats(0.05, 0.95), st.sampled_from([0.0, 0.001, 1 / 32, 0.05]))
def test_tuned_parameters_keep_the_wishes(wanted: float, rounds: int | None, p5: float, flip: float) -> None:
    tuned = tune(wanted, rounds, p5, PAPER, flip=flip)
    assert tuned.epsilon <= wanted + 1e-9
    assert tuned.epsilon == epsilon(tuned.privacy, rounds)
    assert tuned.privacy.p5 == pytest.approx(p5, abs=1e-9)
    assert (tuned.privacy.p3, tuned.privacy.p4) == (1 - flip, flip)
    # ... and a little less p2 would break them, unless none is needed.
    less = tuned.privacy.p2 - 1e-6
    if less > 0:
        cheaper = IndexPrivacy(tuned.privacy.p1, less, tuned.privacy.p3, tuned.privacy.p4)
        assert epsilon(cheaper, rounds) > wanted - 1e-12


def test_noise_in_each_round_costs_bytes_and_buys_no_epsilon() -> None:
    cpp2 = PRESETS["cpp2"]
    tuned = tune(cpp2.epsilon_infinity, None, cpp2.p5, PAPER)
    assert (tuned.privacy.p3, tuned.privacy.p4) == (1, 0)
    assert tuned.rows < 0.55 * PAPER.rows(cpp2)
    same = tune(cpp2.epsilon_infinity, None, cpp2.p5, PAPER, flip=1 / 16)
    assert same.privacy.p1 == pytest.approx(cpp2.p1)
    assert same.privacy.p2 == pytest.approx(cpp2.p2)


@pytest.mark.parametrize(
    ("wanted", "p5", "expected"),
    [
        (0.0, 0.9, IndexPrivacy(0.9, 0.9, 1, 0)),  # no information: everyone asks alike
        (1.0, 1.0, IndexPrivacy(1, 1, 1, 0)),  # every real row is asked for, so a no would say all
        (math.inf, 1.0, IndexPrivacy(1, 0, 1, 0)),
    ],
)
def test_extremes(wanted: float, p5: float, expected: IndexPrivacy) -> None:
    assert tune(wanted, None, p5, PAPER).privacy == expected


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"epsilon": -1.0}, "epsilon"),
        ({"epsilon": math.nan}, "epsilon"),
        ({"p5": 0.0}, "p5"),
        ({"p5": 1.1}, "p5"),
        ({"rounds": 0}, "rounds"),
        ({"flip": 0.5}, "flip"),
        ({"flip": 0.2, "p5": 0.9}, "between 0.2 and 0.8"),
    ],
)
def test_wishes_that_cannot_be(bad: dict[str, float], says: str) -> None:
    wishes = {"epsilon": 1.0, "rounds": None, "p5": 0.8, **bad}
    flip = wishes.pop("flip", 0.0)
    with pytest.raises(ParameterError, match=says):
        tune(**wishes, workload=PAPER, flip=flip)  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [{"cohort": 0}, {"set_size": 0}, {"row_width": 0}, {"mean_owners": 1.0}])
def test_workloads_that_cannot_be(bad: dict[str, float]) -> None:
    with pytest.raises(ParameterError):
        Workload(**bad)  # type: ignore[arg-type]


def test_bytes_are_counted_by_hand() -> None:
    """The paper's goods table: 25,726 rows in the union, 18 words down, 19 up."""
    everything = PAPER.bytes_per_round(PRESETS["cpp5"])
    union = 100 * 301 / 1.17
    assert PAPER.union_size == pytest.approx(union)
    assert everything == pytest.approx(union / 8 + union * 4 * (18 + 19))


def test_the_frontier_rises_with_p5_and_falls_with_epsilon() -> None:
    points = frontier([1.0, 2.0], None, [0.05, 0.5, 0.9], PAPER, flip=0.1)
    costs = [[point.bytes_per_round for point in points if point.epsilon <= e + 1e-9] for e in (1.0, 2.0)]
    assert len(points) == 4  # 0.05 is out of reach with answers flipped at 0.1
    assert points[0].bytes_per_round < points[1].bytes_per_round
    assert min(costs[1]) < min(costs[0])
