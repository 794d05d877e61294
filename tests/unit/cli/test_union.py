"""``sfsl union``: of files, with a word on which of them is wrong."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sfsl.cli import app, main

runner = CliRunner()


def run(*args: str) -> Any:
    result = runner.invoke(app, args)
    assert result.exit_code == 0, result.output
    return result


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
