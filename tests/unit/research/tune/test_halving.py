"""Who goes on at a rung, in which order arms stand, and how costs add up."""

import pytest

from sfsl.scores import Evaluation
from sfsl_research.tune.halving import DEFAULT, ArmState, Cost, keep_half, ordered, plan_rungs, total


def arm(*losses: float | None) -> ArmState:
    found = ArmState()
    for number, loss in enumerate(losses, start=1):
        found = found.with_point(
            number, Evaluation(10, auc=None if loss is None else 1 - loss, log_loss=loss)
        )
    return found


@pytest.mark.parametrize(
    ("rounds", "arms", "rungs"),
    [
        (300, 16, [38, 75, 150, 300]),
        (300, 12, [75, 150, 300]),
        (100, 2, [50, 100]),
        (8, 18, [1, 2, 4, 8]),
        (2, 16, [1, 2]),
        (1, 4, [1]),
    ],
)
def test_rungs_double_up_to_all_rounds(rounds: int, arms: int, rungs: list[int]) -> None:
    assert plan_rungs(rounds, arms) == rungs


def test_the_better_half_goes_on_by_its_best_round() -> None:
    arms = {DEFAULT: arm(0.6, 0.55), "a": arm(0.5, 0.9), "b": arm(0.7, 0.7), "c": arm(0.8, 0.6)}
    assert ordered(arms, "log_loss") == ["a", DEFAULT, "c", "b"]
    assert keep_half(arms, "log_loss") == [DEFAULT, "a"]
    best = arms["a"].best("log_loss")
    assert best is not None
    assert best.round == 1


def test_the_default_survives_where_it_is_the_worst() -> None:
    arms = {DEFAULT: arm(0.9), "a": arm(0.5), "b": arm(0.6), "c": arm(0.7), "d": arm(0.8)}
    assert keep_half(arms, "log_loss") == [DEFAULT, "a", "b", "c"]
    assert keep_half(arms, "auc") == [DEFAULT, "a", "b", "c"]


def test_of_equals_the_default_is_chosen() -> None:
    assert ordered({"a": arm(0.5), DEFAULT: arm(0.5), "b": arm(0.5)}, "log_loss") == [DEFAULT, "a", "b"]


def test_an_arm_without_figures_is_the_worst() -> None:
    arms = {"a": arm(None), DEFAULT: arm(0.9), "b": arm(None, 0.8), "c": ArmState()}
    assert ordered(arms, "auc")[:2] == ["b", DEFAULT]


def test_costs_add_up() -> None:
    assert total([Cost(1, 10, 100, 0.5), Cost(2, 20, 50, 0.25), Cost(seconds=1.0)]) == Cost(3, 30, 150, 1.75)
