"""The drift of clients: what is scored with which part, and that the figures are those of the round."""

import json
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from sfsl.cli import app
from sfsl.errors import InputError
from sfsl.settings.paper import as_in_paper
from sfsl.settings.run import RunConfig, from_sections
from sfsl_research.experiments.diagnose import measure_drift
from sfsl_research.experiments.scenes import LOOKS, _correlation, _fitted, _mean_cosine

TINY: dict[str, dict[str, Any]] = {
    "data": {"users": 8, "scale": 0.1},
    "round": {"clients": 6, "min_contributors": 1},
    "privacy": {"preset": "cpp1"},
    "run": {"rounds": 2},
}


def settings(**sections: dict[str, Any]) -> RunConfig:
    given = {name: TINY.get(name, {}) | sections.get(name, {}) for name in {**TINY, **sections}}
    return from_sections(as_in_paper(given))


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return measure_drift(settings())


def losses(one: dict[str, Any], pool: str) -> dict[str, float]:
    return {name: look[pool]["log_loss"] for name, look in one["looks"].items()}


def test_every_part_is_scored_in_the_first_and_the_last_round(found: dict[str, Any]) -> None:
    assert [one["round"] for one in found["rounds"]] == [1, 2]
    for one in found["rounds"]:
        assert 3 <= one["clients"] <= 6  # one may have no sample with a history
        assert one["looks"].keys() == LOOKS.keys()
        lengths = one["by_history"]["train"].values()
        assert one["samples"] == sum(each["samples"] for each in lengths)
        weighed = sum(each["samples"] * each["log_loss"] for each in lengths) / one["samples"]
        assert weighed == pytest.approx(losses(one, "train")["before"])
        for pool in ("train", "held_out"):
            assert np.isfinite(list(losses(one, pool).values())).all()
            assert len({*losses(one, pool).values()}) == len(LOOKS)  # no part stands for another


def test_training_fits_the_samples_it_saw(found: dict[str, Any]) -> None:
    first = found["rounds"][0]
    assert losses(first, "train")["after"] < losses(first, "train")["before"]
    before = losses(first, "train")["before"]
    assert before == pytest.approx(np.log(2), abs=0.02)  # a model that knows nothing yet


def test_what_does_not_move_changes_nothing() -> None:
    one = measure_drift(settings(training={"learning_rate": 1e-6}, run={"rounds": 1}))["rounds"][0]
    for pool in ("train", "held_out"):
        assert losses(one, pool) == pytest.approx(dict.fromkeys(LOOKS, losses(one, pool)["before"]), abs=1e-5)
    assert one["loss_during"] == pytest.approx(losses(one, "train")["before"], abs=1e-5)


def test_sums_of_histories_grow_with_them(found: dict[str, Any]) -> None:
    sizes = [each["entry_norm"] for each in found["rounds"][0]["by_history"]["train"].values()]
    assert sizes == sorted(sizes)
    assert sizes[-1] > 1.3 * sizes[0]


def test_inputs_of_other_models() -> None:
    one = measure_drift(settings(model={"kind": "logistic"}, run={"rounds": 1}))["rounds"][0]
    assert all("entry_norm" not in each for each in one["by_history"]["train"].values())


def test_what_has_no_drift_is_refused() -> None:
    with pytest.raises(InputError, match="no clients"):
        measure_drift(settings(round={"scheme": "centralized"}))


def test_the_fit_of_log_odds() -> None:
    rng = np.random.default_rng(0)
    odds = rng.normal(size=20_000)
    labels = (rng.random(20_000) < 1 / (1 + np.exp(-odds))).astype(float)
    best = _fitted(odds, labels)
    assert _fitted(5 * odds + 3, labels) == pytest.approx(best, abs=1e-6)  # neither scale nor constant counts
    assert best == pytest.approx(0.605, abs=0.01)
    assert _fitted(np.zeros(10), np.array([0.0, 1.0] * 5)) == pytest.approx(np.log(2), abs=1e-6)


def test_cosines_and_correlations() -> None:
    assert _mean_cosine(np.eye(3, dtype=np.float32)) == pytest.approx(0)
    assert _mean_cosine(np.ones((3, 4), np.float32)) == pytest.approx(1)
    assert _correlation([1, 2, 3], [2, 4, 6]) == pytest.approx(1)
    assert _correlation([1, 2, 3], [5, 5, 5]) is None


def test_the_command_prints_tables_or_one_object() -> None:
    arguments = ["bench", "drift", "--paper", "--clients", "6", "--rounds", "1"]
    sets = ["data.users=8", "data.scale=0.1", "round.min_contributors=1", "privacy.preset=cpp1"]
    arguments += [part for one in sets for part in ("--set", one)]
    shown = CliRunner().invoke(app, arguments)
    assert shown.exit_code == 0, shown.output
    assert "another's dense" in shown.stdout
    result = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
    assert result["data"]["users"] == 8
    assert [one["round"] for one in result["rounds"]] == [1]
