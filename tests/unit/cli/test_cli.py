"""The command: JSON for scripts, one line for errors, help with examples."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sfsl import __version__
from sfsl.cli import app, main
from sfsl.errors import SlowerTraining

runner = CliRunner()


def run(*args: str) -> Any:
    result = runner.invoke(app, args)
    assert result.exit_code == 0, result.output
    return result


def test_version_and_help() -> None:
    assert __version__ in run("--version").output
    for command in (["bench", "secagg"], ["bench", "union"], ["union"]):
        shown = run(*command, "--help").output
        assert "Example" in shown
        assert "--json" in shown


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


def test_union_of_files(tmp_path: Path) -> None:
    for name, lines in (("a", "3\n17\n\n2000000000\n"), ("b", "17\n"), ("c", " 5 \n")):
        (tmp_path / name).write_text(lines)
    files = [str(tmp_path / name) for name in "abc"]
    shown = run("union", *files, "--domain", "2147483648")
    assert shown.stdout.split() == ["3", "5", "17", "2000000000"]
    result = json.loads(run("union", *files, "--domain", "2147483648", "--json").stdout)
    assert result["union"] == [3, 5, 17, 2_000_000_000]
    assert result["client_bytes_up"] > 0
    words = json.loads(run("union", *files, "--strings", "--json").stdout)
    assert sorted(words["union"]) == ["17", "2000000000", "3", "5"]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["bench", "secagg", "--clients", "1"], "at least two"),
        (["bench", "secagg", "--clients", "5", "--dropout", "1.5"], "fraction"),
        (["bench", "secagg", "--clients", "5", "--dropout", "0.8"], "no sum was opened"),
        (["bench", "secagg", "--clients", "5", "--ring", "q"], "z32"),
        (["bench", "union", "--clients", "5", "--set-size", "100", "--domain", "10"], "does not fit"),
        (["union", "/no/such/file", "/neither", "--domain", "9"], "cannot read"),
        (["union", "/no/such/file"], "--domain"),
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


def test_union_says_which_file_and_entry(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "good").write_text("1\n")
    (tmp_path / "bad").write_text("1\nseven\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name, says in (("bad", "entry 2: 'seven'"), ("binary", "cannot read")):
        monkeypatch.setattr(
            "sys.argv", ["sfsl", "union", str(tmp_path / "good"), str(tmp_path / name), "--domain", "9"]
        )
        with pytest.raises(SystemExit):
            main()
        assert says in capsys.readouterr().err


def test_warnings_of_ours_are_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And those of others are Python's, before and after."""
    usual = warnings.showwarning
    seen: list[object] = []

    def command() -> None:
        warnings.simplefilter("always")
        warnings.warn("Odd cannot be vectorised", SlowerTraining, stacklevel=1)
        warnings.warn("a library's", UserWarning, stacklevel=1)

    monkeypatch.setattr("sfsl.cli.app", command)
    monkeypatch.setattr(warnings, "showwarning", lambda *given, **more: seen.append(given[0]))
    replaced = warnings.showwarning
    main()
    assert capsys.readouterr().err == "sfsl: Odd cannot be vectorised\n"
    assert [str(one) for one in seen] == ["a library's"]
    assert warnings.showwarning is replaced is not usual
