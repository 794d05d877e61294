"""The command: its version, help with examples, and warnings of one line."""

import warnings
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
