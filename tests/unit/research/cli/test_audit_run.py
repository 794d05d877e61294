"""``sfsl privacy audit --data`` and ``--run``: tables, JSON, the page, exit status, errors."""

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import sfsl
from sfsl.cli.privacy import app  # which the entry point of sfsl-research adds the command to
from sfsl.errors import InputError

runner = CliRunner()
WORLD = {"data.users": 40, "data.scale": 0.03}
SMALL = [
    "--cohort",
    "16",
    "--canaries",
    "400",
    *(part for key, value in WORLD.items() for part in ("--set", f"{key}={value}")),
]
HOT = ["--scheme", "hot", "--set", "round.sums=plain", "--set", "privacy.participations=5"]


def run(*args: str, status: int = 0) -> Any:
    result = runner.invoke(app, ["audit", *args])
    assert result.exit_code == status, result.output
    return result


class Reader(HTMLParser):
    """Reads a page: its text, and tags that are open at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.text, self.left = "", list[str]()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "img", "link"), "a page that is filed loads nothing"
        if tag != "meta":
            self.left.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.left.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def read(page: Path) -> str:
    reader = Reader()
    reader.feed(page.read_text(encoding="utf-8"))
    assert not reader.left
    return reader.text


def test_a_data_set_is_attacked_and_a_page_written(tmp_path: Path) -> None:
    page = tmp_path / "signoff.html"
    shown = run("cpp3", "--data", "synthetic", *SMALL, "--html", str(page))
    assert "who is it?" in shown.stdout
    assert "kept" in shown.stdout
    text = read(page)
    for expected in (
        "NOT covered",
        "Adversary",
        "epsilon = 1.27",
        "cpp3",
        "whose row",
        "Versions",
        "Decision",
    ):
        assert expected in text


def test_figures_of_rounds_over_hot_rows_as_json() -> None:
    result = json.loads(run("--data", "synthetic", *SMALL, *HOT, "--json").stdout)
    assert result["violated"] is False
    assert result["claim"]["epsilon"] == 8
    assert [case["case"][:5] for case in result["linking"]] == ["as it", "every"]
    item = next(one for one in result["linking"][1]["tables"] if one["table"] == "item")
    assert item["found"] is False
    assert 0 < item["guess"] < 1
    assert {one["kind"] for one in result["canaries"]} == {"survey", "train"}


def test_missing_noise_is_found(tmp_path: Path) -> None:
    page = tmp_path / "signoff.html"
    args = ("--data", "synthetic", *SMALL, *HOT, "--weaken", "20", "--html", str(page))
    assert "VIOLATED" in run(*args, status=1).stdout
    assert "Do not deploy" in read(page)


def test_the_next_round_of_a_run_is_attacked_and_the_run_stays(tmp_path: Path) -> None:
    made = sfsl.train(rounds=1, clients=12, settings=WORLD | {"round.sums": "plain"}, out=tmp_path / "run")
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    result = json.loads(run("--run", str(made.path), "--canaries", "0", "--attacked", "2", "--json").stdout)
    assert result["subject"]["after"] == "1 rounds"
    assert result["linking"][0]["tables"][0]["rounds"] == 2
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before
    assert sfsl.load(made.path).round == 1


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--html", "page.html"], "go with --data or --run"),
        (["--data", "synthetic", "--plot", "a.png"], "--html"),
        (["--run", "nowhere"], "no run at nowhere"),
        (["--run", "nowhere", "--data", "synthetic"], "of its own"),
        (["--data", "synthetic", "--scheme", "fsl", *SMALL], "hides nothing"),
    ],
)
def test_what_cannot_be_audited(args: list[str], message: str) -> None:
    error = runner.invoke(app, ["audit", *args]).exception
    assert isinstance(error, InputError)
    assert message in str(error)
