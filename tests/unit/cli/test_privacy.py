"""``sfsl privacy``: tables, JSON, pictures, errors."""

import json
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sfsl.cli.privacy import app
from sfsl.errors import InputError, ParameterError, StateError
from sfsl.privacy import Budget, Calendar, ClientState, epsilon_of

runner = CliRunner()


def run(*args: str, status: int = 0) -> Any:
    result = runner.invoke(app, args)
    assert result.exit_code == status, result.output
    return result


def figures(*args: str, status: int = 0) -> Any:
    def no_constants(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(run(*args, "--json", status=status).stdout, parse_constant=no_constants)


@pytest.mark.parametrize("command", ["show", "tune"])
def test_help_has_examples(command: str) -> None:
    shown = run(command, "--help").output
    for expected in ("Example", "--json", "--plot"):
        assert expected in shown


def test_show_prints_the_papers_table() -> None:
    shown = run("show").stdout
    for figure in ("88.3%", "11.7%", "2.02", "2.71", "10.3%", "19.5%", "34.2%", "86.7%", "15/16", "inf"):
        assert figure in shown


def test_show_says_what_sums_give_away() -> None:
    shown = run("show", "cpp2", "1,0,1,0").stdout
    assert "92.7%" in shown
    assert "sfsl privacy audit --data" in shown
    levels = figures("show", "cpp2", "1,0,1,0")["levels"]
    assert levels[0]["linked"]["amazon"] > 0.9
    assert levels[1]["linked"] is None  # it was not measured


def test_show_as_json() -> None:
    result = figures("show", "cpp1", "cpp2", "15/16,0.0625,1,0", "--rounds", "2,1000000")
    cpp1, cpp2, own = result["levels"]
    assert cpp1["epsilon_one"] == cpp1["epsilon"]["1000000"] == "infinity"
    assert cpp2["epsilon"]["2"] == pytest.approx(2.6438, abs=1e-4)
    assert cpp2["p8"] == pytest.approx(0.103, abs=5e-4)
    assert (own["p1"], own["p2"], own["p3"], own["p4"]) == (0.9375, 0.0625, 1, 0)
    assert own["epsilon_one"] == own["epsilon_infinity"]
    other = figures("show", "cpp2", "--cohort", "10", "--single-owner", "0.5", "--mean-owners", "2")
    assert other["cohort"] == 10
    assert other["levels"][0]["p8"] < cpp2["p8"]


@pytest.mark.parametrize(
    ("level", "error"),
    [
        ("cpp9", InputError),
        ("1,0,1", InputError),
        ("a,b,c,d", InputError),
        ("1/0,0,1,0", InputError),
        ("0.1,0.9,1,0", ParameterError),
        ("2,0,1,0", ParameterError),
    ],
)
def test_levels_that_cannot_be(level: str, error: type[Exception]) -> None:
    assert isinstance(runner.invoke(app, ["show", level]).exception, error)


@pytest.mark.parametrize("rounds", ["0", "x", "", "1,-2", "1.5"])
def test_rounds_that_cannot_be(rounds: str) -> None:
    assert isinstance(runner.invoke(app, ["show", "--rounds", rounds]).exception, InputError)


def test_tune() -> None:
    shown = run("tune", "--epsilon", "2").stdout
    assert "for ever" in shown
    result = figures("tune", "--epsilon", "2", "--rounds", "10", "--p5", "0.8", "--flip", "0.05")
    assert result["best"]["p5"] == pytest.approx(0.8)
    assert result["best"]["epsilon"] <= 2 + 1e-9
    assert result["best"]["bytes_per_round"] < result["bytes_whole_union"]
    assert result["best"]["p4"] == 0.05
    assert len(result["frontier"]) > 40
    assert figures("tune", "--epsilon", "inf", "--p5", "1")["best"]["epsilon"] == "infinity"


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_pictures(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("matplotlib")
    for command in (["show"], ["tune", "--epsilon", "1.5"]):
        path = tmp_path / f"{command[0]}.{kind}"
        run(*command, "--plot", str(path))
        start = path.read_bytes()[:200]
        assert start.startswith(b"\x89PNG") if kind == "png" else b"<?xml" in start


def test_pictures_that_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = runner.invoke(app, ["show", "--plot", str(tmp_path / "x.pdf")]).exception
    assert isinstance(wrong, InputError)
    assert ".png or .svg" in str(wrong)
    pytest.importorskip("matplotlib")
    nowhere = runner.invoke(app, ["show", "--plot", str(tmp_path / "missing" / "x.png")]).exception
    assert isinstance(nowhere, InputError)
    assert "cannot write" in str(nowhere)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    missing = runner.invoke(app, ["show", "--plot", str(tmp_path / "x.png")]).exception
    assert isinstance(missing, InputError)
    assert "[plot]" in str(missing)


def spent_state(path: Path, rounds: int) -> Path:
    calendar, budget = Calendar(start=date(2026, 1, 1), days=30), Budget(0.0, 0.0, epsilon_hot=8.0)
    with ClientState.create(path, client="alice", calendar=calendar, budget=budget) as state:
        for number in range(rounds):
            state.spend(b"%d" % number, 0.2)
    return path


def test_show_says_what_a_client_has_spent(tmp_path: Path) -> None:
    path = spent_state(tmp_path / "alice.state", 3)
    shown = figures("show", "--state", str(path), "--epsilon", "8")
    assert (shown["client"], shown["hot_rounds"], shown["rounds_begun"]) == ("alice", 3, 3)
    assert shown["rho"] == pytest.approx(0.6)
    assert shown["epsilon"] == pytest.approx(epsilon_of(0.6, 1e-6))
    assert shown["hot_rounds_left"] == 2  # 1.05 in all
    assert figures("show", "--state", str(path), "--epsilon", "5")["hot_rounds_left"] == 0
    assert figures("show", "--state", str(path))["hot_rounds_left"] is None
    people = run("show", "--state", str(path), "--epsilon", "8").stdout
    for expected in ("What alice has given away", "epsilon at delta 1e-06", "hot rounds left", "5.791"):
        assert expected in people


def test_show_of_a_state_in_use_or_unspent_or_absent(tmp_path: Path) -> None:
    path = spent_state(tmp_path / "bob.state", 0)
    with ClientState.open(path, client="alice", budget=Budget(0.0, 0.0)):
        assert figures("show", "--state", str(path), "--epsilon", "8")["rho"] == 0.0
    with pytest.raises(StateError, match="cannot read"):
        runner.invoke(app, ["show", "--state", str(tmp_path / "none")], catch_exceptions=False)
