"""What ``sfsl bench utility`` compares, on what data, and what it shows."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import msgspec

from sfsl.data.stored import load_stored
from sfsl.data.synthetic import WORLDS, SyntheticTaobao
from sfsl_research.bench.utility import make_data, train_one, utility_arms
from sfsl_research.bench.utility_run import draw, lines

USERS = 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("utility") / "data"
    make_data(made, "paper", USERS, 0.03, 0, 2)
    return made


def test_data_made_in_parts_are_those_made_at_once(folder: Path) -> None:
    found, whole = load_stored(folder), SyntheticTaobao(WORLDS["paper"].scaled(0.03, USERS), seed=0)
    expected = whole.interactions()
    for name in expected.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)


def test_everybody_has_one_survey_and_five_turns(folder: Path) -> None:
    data = {"source": "stored", "path": str(folder)}
    arms = utility_arms(
        data, users=USERS, cohorts=[20, 10], epsilons=[8, math.inf], paper_cohorts=[15], device="cpu"
    )
    hot = [one for one in arms.values() if one.round.scheme == "hot"]
    assert len(hot) == 4
    assert len(arms) == 6
    for one in hot:
        assert one.hot.surveys * one.round.clients == USERS
        assert (one.run.rounds - one.hot.surveys) * one.round.clients == 5 * USERS
        assert one.privacy.participations == 5


def test_an_arm_has_a_curve_and_what_bounds_it(folder: Path, tmp_path: Path) -> None:
    data = {"source": "stored", "path": str(folder)}
    arms = utility_arms(data, users=USERS, cohorts=[20], epsilons=[8], paper_cohorts=[], device="cpu")
    config = arms["hot 20 epsilon 8"]
    config = msgspec.structs.replace(config, run=msgspec.structs.replace(config.run, rounds=4))
    result: dict[str, Any] = {"arms": [json.loads(json.dumps(train_one("hot 20 epsilon 8", config)))]}
    (one,) = result["arms"]
    assert [point["round"] for point in one["points"]] == [1, 2, 3, 4]
    assert 0 < one["about"]["covered"]["item"] <= 1
    assert one["about"]["noise_of_sum_in_clips"] > 1
    assert [line[0] for line in lines(result)] == ["hot 20 epsilon 8", "item popularity"]
    pytest.importorskip("matplotlib")
    assert all(path.stat().st_size for path in draw(result, tmp_path))
