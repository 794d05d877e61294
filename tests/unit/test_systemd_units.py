"""The units of deploy/systemd: they parse, start commands that exist, and restart what fails."""

import re
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest
import typer

from sfsl.cli import app

FOLDER = Path(__file__).parents[2] / "deploy/systemd"
UNITS = sorted(FOLDER.glob("*.service"))
_LINE = re.compile(r"([A-Za-z]+)=(.*)")


def read(path: Path) -> dict[str, dict[str, str]]:
    """A unit's sections; what is no section, comment or key is an error."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    section = ""
    for line in path.read_text().splitlines():
        if line.startswith("["):
            assert line.endswith("]"), line
            section = line[1:-1]
        elif line and not line.startswith("#"):
            parts = _LINE.fullmatch(line)
            assert parts, line
            assert parts[1] not in found[section], f"{parts[1]} is there twice"
            found[section][parts[1]] = parts[2]
    return found


def test_there_is_one_for_each_side() -> None:
    assert [path.name for path in UNITS] == ["sfsl-client@.service", "sfsl-server.service"]


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_starts_a_command_that_there_is_and_starts_it_again(path: Path) -> None:
    unit = read(path)
    assert set(unit) == {"Unit", "Service", "Install"}
    service = unit["Service"]
    assert service["Restart"] == "on-failure"
    assert unit["Unit"]["StartLimitIntervalSec"] == "0"
    assert "time-sync.target" in unit["Unit"]["After"]
    program, command, *given = service["ExecStart"].split()
    assert program.endswith("/bin/sfsl")
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    flags = {flag for parameter in commands[command].params for flag in parameter.opts}
    assert {one for one in given if one.startswith("--")} <= flags
    assert f"/var/lib/{service['StateDirectory']}" in service["ExecStart"]
    assert service["StateDirectoryMode"] == "0700"


ANALYZE = shutil.which("systemd-analyze")


@pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed here")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_takes_it(path: Path, tmp_path: Path) -> None:
    """With commands and users that are here: whether those of the unit are is for its machine."""
    text = re.sub(r"ExecStart=\S+", f"ExecStart={shutil.which('true')}", path.read_text())
    text = re.sub(r"User=\S+", "User=root", text)
    copy = tmp_path / path.name.replace("@", "@one")
    copy.write_text(text)
    command = [str(ANALYZE), "verify", copy]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    ours = [line for line in done.stderr.splitlines() if path.stem.partition("@")[0] in line]
    assert not ours
