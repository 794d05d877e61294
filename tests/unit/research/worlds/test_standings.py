"""Regrets are what an arm lacks to centralized training, and a default is chosen by the worst of them."""

import pytest

from sfsl.errors import InputError
from sfsl_research.worlds.standings import LeftOut, Standing, leave_one_out, shortcomings, standings_of
from sfsl_research.worlds.trial import Outcome, Point


def outcome(world: str, arm: str, *aucs: float | None, seed: int = 0, failed: str | None = None) -> Outcome:
    points = tuple(Point(number + 1, auc, 0.6 + number / 100) for number, auc in enumerate(aucs))
    return Outcome(
        world=world, seed=seed, arm=arm, settings="", rounds=len(aucs), clients=2, seconds=1.0,
        points=points, failed=failed, base_log_loss=0.69, popularity_log_loss=0.65, popularity_auc=0.6,
    )  # fmt: skip


def by_arm(standings: list[Standing]) -> dict[str, Standing]:
    return {one.arm: one for one in standings}


def test_regret_is_against_the_best_rate_and_moment_of_each_seed() -> None:
    found = by_arm(
        standings_of(
            [
                outcome("a", "centralized 0.001", 0.70, 0.72),
                outcome("a", "centralized 0.01", 0.75, 0.60),
                outcome("a", "centralized 0.001", 0.80, 0.78, seed=1),
                outcome("a", "default", 0.71, 0.74, 0.73),
                outcome("a", "default", 0.76, seed=1),
                outcome("a", "fl 0.3", 0.60),
                outcome("a", "fl 3", 0.65, 0.66),
                outcome("a", "fl 3", 0.70, seed=1),
                outcome("a", "default", 0.99, seed=2),  # a seed without centralized training
            ]
        )
    )
    assert found.keys() == {"centralized", "default", "fl"}
    default = found["default"]
    assert default.seeds == 2
    assert default.regret == pytest.approx((0.01 + 0.04) / 2)
    assert default.worst_regret == pytest.approx(0.04)
    assert (default.auc, default.last_auc) == (pytest.approx(0.75), pytest.approx(0.745))
    assert default.log_loss == pytest.approx((0.61 + 0.60) / 2)  # of the best moment
    assert default.last_log_loss == pytest.approx((0.62 + 0.60) / 2)
    assert found["fl"].regret == pytest.approx((0.09 + 0.10) / 2)
    assert found["centralized"].regret == 0
    assert found["centralized"].last_regret == pytest.approx((0.15 + 0.02) / 2)


def test_what_is_not_finite_is_worth_a_toss() -> None:
    found = by_arm(
        standings_of(
            [
                outcome("a", "centralized 0.01", 0.75),
                outcome("a", "default", None),
                outcome("a", "paper", 0.7, failed="round 2 made numbers that are not finite"),
                outcome("a", "fl 1", failed="round 1"),
            ]
        )
    )
    assert found["default"].regret == pytest.approx(0.25)
    assert (found["paper"].auc, found["paper"].last_auc, found["paper"].failed) == (0.7, 0.5, 1)
    assert (found["fl"].auc, found["fl"].log_loss) == (0.5, None)


def test_what_a_default_lacks() -> None:
    standings = standings_of(
        [
            outcome("good", "centralized 1", 0.75),
            outcome("good", "fl 1", 0.73),
            outcome("good", "default", 0.735),
            outcome("bad", "centralized 1", 0.75),
            outcome("bad", "fl 1", 0.73),
            outcome("bad", "default", 0.6, 0.6, 0.6, 0.6, 0.6, 0.72),  # its log loss has risen by then
        ]
    )
    lacks = shortcomings(standings)
    assert lacks["good"] == []
    assert lacks["bad"] == [
        "0.030 below centralized", "0.010 below fl", "log loss not below that of the popularity",
    ]  # fmt: skip


def test_each_world_is_left_out_in_turn() -> None:
    regret = {
        "default": {"a": 0.05, "b": 0.01, "c": 0.02},
        "bold": {"a": 0.00, "b": 0.03, "c": 0.03},
    }
    outcomes = [
        outcome(world, arm, 0.8 - some) for arm, of in regret.items() for world, some in of.items()
    ] + [outcome(world, "centralized 1", 0.8) for world in "abc"]
    standings = standings_of(outcomes)
    found = leave_one_out(standings, ["default", "bold"])
    # Without a, the default is worst at 0.02; with it, at 0.05.
    assert [(one.world, one.chosen) for one in found] == [("a", "default"), ("b", "bold"), ("c", "bold")]
    assert found[0] == LeftOut("a", "default", pytest.approx(0.02), pytest.approx(0.05))
    assert found[1].regret == pytest.approx(0.03)
    with pytest.raises(InputError, match="other was not trained in a"):
        leave_one_out(standings, ["default", "other"])
    with pytest.raises(InputError, match="two worlds"):
        leave_one_out([one for one in standings if one.world == "a"], ["default"])
