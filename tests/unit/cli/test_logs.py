"""How much the commands log, and in which form."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sfsl.cli import app
from sfsl.cli.logs import start_logging

SMALL = [
    "--set", "data.users=12", "--set", "data.scale=0.03", "--set", "model.kind=logistic",
    "--set", "round.min_contributors=1", "--clients", "4", "--rounds", "2",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    others = {name: logging.getLogger(name).level for name in ("asyncio", "uvicorn")}
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, old in others.items():
        logging.getLogger(name).setLevel(old)


@pytest.mark.parametrize(
    ("usual", "verbose", "level", "logged"),
    [
        (logging.WARNING, False, None, ["warning"]),
        (logging.WARNING, True, None, ["info", "warning"]),
        (logging.INFO, True, None, ["debug", "info", "warning"]),
        (logging.INFO, True, "error", []),
    ],
)
def test_how_much_is_logged(
    usual: int, verbose: bool, level: str | None, logged: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    start_logging(usual, verbose=verbose, level=level, as_json=True)
    log = logging.getLogger("sfsl.somewhere")
    for name in ("debug", "info", "warning"):
        getattr(log, name)("said %s", name)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["level"] for line in lines] == logged
    assert all(line["message"] == f"said {line['level']}" for line in lines)
    assert all(line["logger"] == "sfsl.somewhere" for line in lines)


def test_an_error_is_one_line_with_where_it_came_from(capsys: pytest.CaptureFixture[str]) -> None:
    start_logging(logging.INFO, verbose=False, level=None, as_json=True)
    try:
        raise OSError("gone")
    except OSError:
        logging.getLogger("sfsl").exception("failed\nhere")
    (line,) = capsys.readouterr().err.splitlines()
    told = json.loads(line)
    assert told["message"] == "failed\nhere"
    assert "OSError: gone" in told["exception"]


def test_a_run_logs_the_figures_of_each_round(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    done = CliRunner().invoke(app, ["run", "--out", str(tmp_path / "run"), *SMALL, "--log-json"])
    assert done.exit_code == 0, done.output
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    rounds = [line for line in lines if line["logger"] == "sfsl.run.runner"]
    assert [line["message"].split(":")[0] for line in rounds] == [
        "round 1 of 2 committed", "round 2 of 2 committed",
    ]  # fmt: skip
    recorded = json.loads((tmp_path / "run/metrics.jsonl").read_text().splitlines()[1])
    assert rounds[1]["figures"]["quality/auc"] == recorded["auc"]
    assert rounds[1]["figures"]["cost/bytes_up"] == sum(recorded["bytes_up"].values())


@pytest.mark.parametrize("command", ["run", "serve", "join"])
def test_commands_that_run_for_long_share_these_flags(command: str) -> None:
    shown = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"}).output
    assert all(flag in shown for flag in ("-v", "--log-level", "--log-json"))
