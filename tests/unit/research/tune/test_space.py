"""Which arms a search draws: the settings as they are, and what is around them."""

import pytest

from sfsl.settings.run import RunConfig, from_sections
from sfsl_research.tune.space import SPACE, draw_arms, said_value, with_changes

BASE = RunConfig()


def test_the_settings_as_they_are_come_first_and_no_arm_twice() -> None:
    arms = draw_arms(BASE, 16, seed=0)
    assert arms[0] == {}
    assert len(arms) == 16
    assert len({repr(with_changes(BASE, one)) for one in arms}) == 16
    assert {key for one in arms for key in one} == {"model.kind", *SPACE}


@pytest.mark.parametrize(("own", "other"), [("din", "logistic"), ("bst", "logistic"), ("logistic", "din")])
def test_another_model_is_tried_alone(own: str, other: str) -> None:
    arms = draw_arms(from_sections({"model": {"kind": own}}), 1000, seed=3)
    assert arms[1] == {"model.kind": other}
    assert not [one for one in arms[2:] if "model.kind" in one]
    assert said_value(other) == other
    assert said_value(0.03) == "0.03"


def test_the_seed_draws_them() -> None:
    assert draw_arms(BASE, 16, seed=1) == draw_arms(BASE, 16, seed=1)
    assert draw_arms(BASE, 16, seed=1) != draw_arms(BASE, 16, seed=2)


def test_values_follow_what_the_run_has() -> None:
    base = from_sections(
        {
            "server": {"row_step": "adagrad", "row_rate": 0.6, "dense_step": "add", "dense_rate": 6.0},
            "training": {"learning_rate": 0.04, "rebuild": 0.7, "epochs": 5},
        }
    )
    arms = draw_arms(base, 1000, seed=0)
    tried = {key: {one[key] for one in arms if key in one} for key in SPACE}
    assert tried == {
        "server.row_rate": {0.2, 1.8},
        "server.row_prior": set(),  # only of heat
        "server.row_pull": set(),
        "server.dense_rate": {2.0, 18.0},
        "training.learning_rate": {0.02, 0.08},
        "training.rebuild": {0.0, BASE.training.rebuild},
        "training.epochs": {1, 2},
    }
    assert len(arms) == 3 * 3 * 3 * 3 * 3 + 1  # and another model


def test_rows_are_drawn_back_less_or_not_at_all() -> None:
    tried = {one["server.row_pull"] for one in draw_arms(BASE, 10_000, 0) if "server.row_pull" in one}
    assert tried == {0.0, 20.0}


def test_a_rate_of_auto_is_multiplied_as_what_it_stands_for() -> None:
    assert BASE.server.dense_rate == "auto"
    tried = {one["server.dense_rate"] for one in draw_arms(BASE, 1000, 0) if "server.dense_rate" in one}
    assert tried == {float(f"{BASE.dense_rate * factor:.3g}") for factor in (1 / 3, 3)}


def test_a_model_without_personal_rows_has_nothing_to_rebuild() -> None:
    assert not [one for one in draw_arms(BASE, 1000, 0, personal=False) if "training.rebuild" in one]


def test_values_beyond_the_bounds_of_a_setting_are_left_out() -> None:
    base = from_sections({"server": {"row_rate": 1e6}})
    assert {one.get("server.row_rate") for one in draw_arms(base, 1000, 0)} == {None, 333_000.0}


@pytest.mark.parametrize("seed", range(5))
def test_arms_share_their_local_training(seed: int) -> None:
    """Every second arm changes one setting alone; the others bring in few more ways of local training."""
    arms = draw_arms(BASE, 16, seed)
    assert sum(len(one) == 1 for one in arms) >= 7
    assert len({with_changes(BASE, one).training for one in arms}) <= 16 // 2 + 4
