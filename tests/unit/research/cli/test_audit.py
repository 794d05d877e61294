"""``sfsl privacy audit``: tables, JSON, pictures, exit status, errors."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sfsl.cli.privacy import app  # which the entry point of sfsl-research adds the command to
from sfsl.errors import InputError, ParameterError

runner = CliRunner()
SMALL = ["--fleet", "30", "--cohort", "10", "--domain", "900", "--set-size", "18", "--trials", "8000"]


def run(*args: str, status: int = 0) -> Any:
    result = runner.invoke(app, ["audit", *args])
    assert result.exit_code == status, result.output
    return result


def figures(*args: str, status: int = 0) -> Any:
    def no_constants(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(run(*args, "--json", status=status).stdout, parse_constant=no_constants)


def test_help_has_examples() -> None:
    shown = run("--help").output
    for expected in ("Example", "--json", "--plot"):
        assert expected in shown


@pytest.mark.parametrize(("level", "error"), [("cpp9", InputError), ("0.1,0.9,1,0", ParameterError)])
def test_levels_that_cannot_be(level: str, error: type[Exception]) -> None:
    assert isinstance(runner.invoke(app, ["audit", level]).exception, error)


def test_audit() -> None:
    result = figures("cpp3", "--rounds", "1,4", *SMALL)
    assert result["violated"] is False
    assert [bound["rounds"] for bound in result["bounds"]] == [1, 4]
    assert {event["event"] for event in result["events"]} == {"event 1", "event 2"}
    assert len({report["countermeasure"] for report in result["attacks"]}) == 8
    shown = run("cpp3", "--rounds", "1,4", *SMALL)
    assert "pseudonyms" in shown.stdout
    assert "kept" in shown.stdout


def test_audit_catches_a_broken_perturber() -> None:
    result = figures("cpp3", "--rounds", "8", "--perturber", "forgetful", *SMALL, status=1)
    assert result["violated"] is True
    assert result["bounds"][0]["lower"] > result["bounds"][0]["claimed"]
    assert "VIOLATED" in run("--rounds", "8", "--perturber", "truthful", *SMALL, status=1).stdout
    wrong = runner.invoke(app, ["audit", "--perturber", "perfect", *SMALL]).exception
    assert isinstance(wrong, InputError)


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_pictures(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / f"audit.{kind}"
    run("--rounds", "1,3", *SMALL, "--plot", str(path))
    start = path.read_bytes()[:200]
    assert start.startswith(b"\x89PNG") if kind == "png" else b"<?xml" in start
