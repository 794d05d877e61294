"""Rounds over hot rows of a simulated fleet: masked and plain sums, noise, budgets, resuming, the command."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from sfsl.cli import app
from sfsl.errors import InputError
from sfsl.privacy.accounting import epsilon_of, plan_noise
from sfsl.rounds.record import RoundRecord
from sfsl.run.start import begin, resume
from sfsl.settings.run import RunConfig, from_sections

FEW = {
    "data": {"users": 60, "scale": 0.02, "world": "films"},
    "model": {"kind": "logistic"},
    "round": {"scheme": "hot", "clients": 12},
    "privacy": {"epsilon": math.inf},
    "run": {"rounds": 4, "evaluate_every": 4},
    "hot": {"surveys": 1},
}


def settings(**changes: dict[str, object]) -> RunConfig:
    return from_sections({name: {**FEW.get(name, {}), **changes.get(name, {})} for name in FEW | changes})


def run(path: Path, config: RunConfig) -> list[RoundRecord]:
    with begin(path, config) as runner:
        runner.run(stop=lambda: False, seen=lambda line: None)
        return list(runner.lines)


def dense(path: Path, config: RunConfig) -> np.ndarray:
    with resume(path, config) as runner:
        return np.array(runner.store.read_dense().values)


def test_masked_and_plain_sums_make_the_same_model(tmp_path: Path) -> None:
    masked, plain = settings(), settings(round={"sums": "plain"})
    lines = run(tmp_path / "masked", masked)
    others = run(tmp_path / "plain", plain)
    assert [line.survivors for line in lines] == [12] * 4
    assert [line.union for line in lines] == [line.union for line in others]
    assert lines[1].union["item"] > 0
    assert [line.auc for line in lines] == [line.auc for line in others]
    assert np.array_equal(dense(tmp_path / "masked", masked), dense(tmp_path / "plain", plain))


def test_cold_rows_never_move(tmp_path: Path) -> None:
    config = settings(hot={"surveys": 1, "megabytes": 0.08})
    run(tmp_path / "run", config)
    with resume(tmp_path / "run", config) as runner:
        hot = runner._journal.kept.hot.hot_set()
        assert hot is not None
        allowed = hot.sets(runner.store.spec.model)
        for name in ("item", "category"):
            assert set(runner.store.touched(name).rows.tolist()) <= set(allowed[name].rows.tolist())


@pytest.mark.parametrize("sums", ["masked", "plain"])
def test_noise_is_in_the_sum_and_paid_for(tmp_path: Path, sums: str) -> None:
    config = settings(privacy={"epsilon": 8.0, "participations": 2}, round={"sums": sums})
    with begin(tmp_path / "run", config) as runner:
        summary = runner.run(stop=lambda: False, seen=lambda line: None)
        spent = runner._journal.kept.spent
    assert summary.hot_privacy is not None
    noise = plan_noise(8.0, 1e-6, 2)
    turns = {round(rho / noise.rho_train) for rho in spent.values()}
    assert len(spent) == 4 * 12
    assert turns <= {0, 1}  # everybody in turn: nobody twice
    most = max(spent.values())
    assert summary.hot_privacy.epsilon == pytest.approx(epsilon_of(most, 1e-6))
    assert summary.hot_privacy.epsilon <= 8


def test_a_run_ends_where_the_budget_does(tmp_path: Path) -> None:
    config = settings(
        round={"sums": "plain"},
        privacy={"epsilon": 8.0, "participations": 1},
        run={"rounds": 30, "evaluate_every": 0},
    )
    with begin(tmp_path / "run", config) as runner:
        summary = runner.run(stop=lambda: False, seen=lambda line: None)
        assert summary.stopped == "budget"
        assert summary.hot_privacy is not None
        assert (summary.hot_privacy.epsilon or 9) <= 8
        assert max(runner._journal.kept.rounds.values()) <= 2  # a survey and a round that trains


def test_a_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    config = settings(round={"sums": "plain"}, privacy={"epsilon": 8.0, "participations": 3})
    whole = run(tmp_path / "whole", config)
    with begin(tmp_path / "parts", config) as runner:
        runner.run(stop=lambda: runner.store.round == 2, seen=lambda line: None)
    with resume(tmp_path / "parts", config) as runner:
        runner.run(stop=lambda: False, seen=lambda line: None)
        lines = list(runner.lines)
    assert [line.loss for line in lines] == [line.loss for line in whole]
    assert np.array_equal(dense(tmp_path / "whole", config), dense(tmp_path / "parts", config))


def test_more_surveys_than_everybody_once_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="one survey of each"):
        begin(tmp_path / "run", settings(hot={"surveys": 6}))


def test_dropouts_take_their_noise_with_them_and_the_round_opens(tmp_path: Path) -> None:
    config = settings(
        privacy={"epsilon": 8.0, "participations": 3}, faults={"inbound": 0.2}, run={"rounds": 3}
    )
    lines = run(tmp_path / "run", config)
    assert any(line.survivors < 12 for line in lines)
    assert all(line.aborted is None or line.survivors == 0 for line in lines)


def test_the_command_says_what_was_spent_and_warns_of_noise(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(
        '[data]\nusers = 60\nscale = 0.02\nworld = "films"\n[round]\nscheme = "hot"\nclients = 12\n'
        "[run]\nrounds = 2\nevaluate_every = 0\n"
    )
    shown = CliRunner().invoke(app, ["run", str(file), "--out", str(tmp_path / "run"), "--sums", "plain"])
    assert shown.exit_code == 0, shown.output
    assert "learns next to nothing" in shown.stderr
    assert "epsilon of a client, in all" in shown.stdout
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["privacy"] is None
    assert summary["hot_privacy"]["epsilon"] <= 8
    shown = CliRunner().invoke(app, ["report", str(tmp_path / "run"), "--out", str(tmp_path / "page")])
    assert shown.exit_code == 0, shown.output
    page = (tmp_path / "page" / "report.html").read_text()
    spent = summary["hot_privacy"]["epsilon"]
    assert f"<td>{spent:.3f}</td><td>8.000</td><td>1e-06</td>" in page
