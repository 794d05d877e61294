"""The commands of the guide to hot rows run as they are written."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sfsl.cli import app

GUIDE = Path(__file__).parents[2] / "docs/guide/hot.md"
COMMANDS = [
    line
    for block in re.findall(r"```\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    for line in block.splitlines()
]


def test_there_are_commands() -> None:
    assert {shlex.split(line)[1] for line in COMMANDS} == {"plan", "run"}


@pytest.mark.parametrize("line", COMMANDS)
def test_it_runs(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = shlex.split(line)[1:]
    if words[0] == "run":  # the same, smaller
        small = {"200": "20", "20": "3", "data.users=2000": "data.users=60"}
        words = [small.get(word, word) for word in words] + ["--set", "data.scale=0.02", "--out", "run"]
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 0, shown.output
    said = {"49023": "large enough", "2000": "too small", "run": "learns next to nothing"}
    assert any(told in shown.output for key, told in said.items() if key in words)
