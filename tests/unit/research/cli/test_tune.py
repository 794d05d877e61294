"""``sfsl tune`` end to end in little: a search, its run file in ``sfsl run``, and what is refused."""

import json
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

pytest.importorskip("torch")

from sfsl.cli.run import run
from sfsl.errors import InputError, ParameterError
from sfsl.settings.toml import read_config
from sfsl_research.cli.tune import register as register_tune

# The two commands alone: which entry points are installed does not matter here.
app = typer.Typer()
register_tune(app)
app.command()(run)

SMALL = ["--clients", "4", "--rounds", "4", "--arms", "4", "--set", "model.kind=logistic", "--device", "cpu"]


def invoke(*args: str) -> Any:
    return CliRunner().invoke(app, args)


def refused(*args: str) -> str:
    result = invoke(*args)
    assert isinstance(result.exception, InputError | ParameterError), result.output
    return str(result.exception)


@pytest.fixture(scope="module")
def clicks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Thirty users, to whom some items appeal more than others."""
    draw, path = np.random.default_rng(0), tmp_path_factory.mktemp("data") / "clicks.csv"
    lines = [
        f"{user},{item},{int(draw.random() < (0.9 if item % 2 else 0.1))},{time}"
        for user in range(30)
        for time, item in enumerate(draw.integers(0, 12, 20).tolist())
    ]
    path.write_text("\n".join(["user,item,label,time", *lines]))
    return path


@pytest.fixture(scope="module")
def tuned(clicks: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("out") / "tune"
    result = invoke("tune", str(clicks), "--out", str(out), *SMALL, "--json")
    assert result.exit_code == 0, result.output
    return out, json.loads(result.stdout)


def test_a_search_tells_every_arm_and_its_cost(tuned: tuple[Path, dict[str, Any]]) -> None:
    out, summary = tuned
    assert json.loads((out / "summary.json").read_text()) == summary | {"checksum": mock.ANY}
    assert summary["rungs"] == [2, 4]
    assert len(summary["arms"]) == 4
    assert summary["arms"][0]["name"] == summary["choice"]
    (default,) = (one for one in summary["arms"] if one["name"] == "default")
    assert (default["changes"], default["dropped"]) == ({}, None)
    assert default["cost"]["client_rounds"] == 4 * 4
    assert {one["dropped"] for one in summary["arms"]} == {None, 2}
    assert summary["cost"]["client_rounds"] == sum(one["cost"]["client_rounds"] for one in summary["arms"])
    assert summary["arms"][0]["test"]["popularity_auc"] > 0.5
    names = {one.name for one in out.iterdir()}
    assert {"tuned.toml", "summary.json", "curves.csv", "curves.png", "curves.svg"} <= names


def test_the_run_file_is_accepted_by_run(tuned: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    out, _ = tuned
    result = invoke("run", str(out / "tuned.toml"), "--out", str(tmp_path / "run"), "--rounds", "2", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["rounds"] == 2


def test_a_search_that_is_over_says_the_same_again(tuned: tuple[Path, dict[str, Any]]) -> None:
    out, summary = tuned
    result = invoke("tune", "--out", str(out), "--resume")
    assert result.exit_code == 0, result.output
    assert summary["verdict"] in result.stdout
    assert "What each arm cost" in result.stdout
    assert json.loads((out / "summary.json").read_text()) == summary | {"checksum": mock.ANY}


def test_a_search_keeps_its_settings(tuned: tuple[Path, dict[str, Any]], clicks: Path) -> None:
    out = str(tuned[0])
    assert "run.rounds is 4 in this search and 5 here" in refused(
        "tune", "--out", out, "--resume", "--rounds", "5"
    )
    assert "--arms is 4" in refused("tune", "--out", out, "--resume", "--arms", "5")
    assert "--resume" in refused("tune", str(clicks), "--out", out)
    again = invoke("tune", str(clicks), "--out", out, *SMALL, "--resume")
    assert again.exit_code == 0, again.output


@pytest.mark.parametrize(
    ("data", "flags", "said"),
    [
        ("clicks.doc", [], "clicks.doc"),
        ("CLICKS", ["--columns", "user=nobody"], "nobody"),
        ("nowhere.csv", [], "nowhere.csv"),
        ("nowhere.toml", [], "nowhere.toml"),
        ("CLICKS", ["--clients", "31"], "only 30 users have samples"),
        ("CLICKS", ["--set", "round.scheme=centralized"], "round.scheme"),
        ("CLICKS", ["--set", "data.validation=0"], "data.validation = 0"),
        ("CLICKS", ["--set", "round.speed=1"], "no key round.speed"),
        ("EMPTY", [], "empty.csv"),
        ("ONE", ["--clients", "2"], "no user has enough samples to hold out"),
    ],
)
def test_bad_input_is_refused_and_leaves_nothing(
    clicks: Path, tmp_path: Path, data: str, flags: list[str], said: str
) -> None:
    files = {"CLICKS": str(clicks), "EMPTY": str(tmp_path / "empty.csv"), "ONE": str(tmp_path / "one.csv")}
    (tmp_path / "empty.csv").write_text("user,item,label,time\n")
    few = [f"{user},{time},{time % 2},{time}" for user in range(3) for time in range(4)]
    (tmp_path / "one.csv").write_text("\n".join(["user,item,label,time", *few]))
    out = tmp_path / "out"
    assert said in refused("tune", files.get(data, data), "--out", str(out), *SMALL, *flags)
    assert not out.exists()


def test_columns_and_labels_are_named_as_for_a_run(clicks: Path, tmp_path: Path) -> None:
    text = clicks.read_text().replace("user,item,label,time", "who,what,stars,at")
    (tmp_path / "stars.csv").write_text(text)
    named, out = ("--columns", "user=who,item=what,time=at", "--label", "stars>=1"), tmp_path / "out"
    result = invoke("tune", str(tmp_path / "stars.csv"), "--out", str(out), *SMALL, *named)
    assert result.exit_code == 0, result.output
    data = read_config(out / "tuned.toml").data
    assert (data.columns, data.label) == ({"user": "who", "item": "what", "time": "at"}, "stars>=1")


def test_what_is_in_the_way_stays(clicks: Path, tmp_path: Path) -> None:
    (tmp_path / "letter").write_text("dear")
    assert "no empty folder" in refused("tune", str(clicks), "--out", str(tmp_path))
    assert "no search at" in refused("tune", "--out", str(tmp_path), "--resume")
    assert [one.name for one in tmp_path.iterdir()] == ["letter"]
    assert "which data?" in refused("tune", "--out", str(tmp_path / "out"))


def test_help_has_examples() -> None:
    said = invoke("tune", "--help").output
    assert "Examples" in said
    assert "--resume" in said
