"""``sfsl bench``: JSON for scripts, tables for people, one line for errors."""

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from sfsl.cli import app, main

runner = CliRunner()


def run(*args: str) -> Any:
    result = runner.invoke(app, args)
    assert result.exit_code == 0, result.output
    return result


SECAGG_KEYS = {
    "client_seconds", "client_mask_seconds", "floor_seconds", "floor_ratio", "server_seconds",
    "client_bytes_up", "client_bytes_down", "plain_bytes", "clients", "length", "dropout", "neighbours",
    "rows",
}  # fmt: skip


UNION_KEYS = {
    "client_bytes_up", "client_bytes_down", "client_seconds", "server_seconds", "encoding", "union_size",
    "clients", "domain", "set_size", "unique", "dropout",
}  # fmt: skip


@pytest.mark.parametrize(
    "extra",
    [
        [],
        ["--dropout", "0.2"],
        ["--neighbours", "6"],
        ["--rows", "40", "--share", "0.5"],
        ["--ring", "f31", "--active"],
    ],
)
def test_bench_secagg(extra: list[str]) -> None:
    out = run("bench", "secagg", "--clients", "12", "--length", "20", *extra, "--json").stdout
    result = json.loads(out)
    assert result.keys() >= SECAGG_KEYS
    assert result["client_bytes_up"] > result["plain_bytes"] > 0
    assert result["floor_ratio"] > 0


def test_bench_union() -> None:
    out = run(
        "bench",
        "union",
        "--clients",
        "10",
        "--domain",
        "5000",
        "--set-size",
        "30",
        "--unique",
        "0.8",
        "--json",
    ).stdout
    result = json.loads(out)
    assert result.keys() >= UNION_KEYS
    assert result["unique"] == 0.8
    assert result["unique_measured"] == pytest.approx(0.8, abs=0.06)
    assert 150 < result["union_size"] < 300


def test_bench_tables_are_for_people() -> None:
    assert "floor_ratio" in run("bench", "secagg", "--clients", "3", "--length", "10").output
    assert "union_size" in run("bench", "union", "--clients", "5", "--set-size", "10").output


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["bench", "secagg", "--clients", "1"], "at least two"),
        (["bench", "secagg", "--clients", "5", "--dropout", "1.5"], "fraction"),
        (["bench", "secagg", "--clients", "5", "--dropout", "0.8"], "no sum was opened"),
        (["bench", "secagg", "--clients", "5", "--ring", "q"], "z32"),
        (["bench", "union", "--clients", "5", "--set-size", "100", "--domain", "10"], "does not fit"),
    ],
)
def test_errors_are_one_line(
    args: list[str], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["sfsl", *args])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 1
    errors = capsys.readouterr().err
    assert says in errors
    assert "Traceback" not in errors
