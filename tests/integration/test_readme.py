"""The README's examples run and print what it says."""

import ast
import inspect
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import sfsl
from commands import PORT, port, started

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
SECONDS = 120


def test_ten_lines(capsys: pytest.CaptureFixture[str]) -> None:
    found = re.search(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert found is not None
    exec(found.group(1), {})  # noqa: S102
    first, second, third = capsys.readouterr().out.splitlines()
    assert first.startswith("[101 202]")
    assert "ann" in first
    assert "bob" not in first
    assert second == "[14] 3"
    assert third.split() == ["[", "3", "17", "2000000000]", "sketch"]


def test_from_python(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    section = README.read_text().split("## From Python\n", 1)[1].split("\n## ", 1)[0]
    whole, join = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    names: dict[str, object] = {}
    exec(whole, names)  # noqa: S102
    first, *rounds, last = capsys.readouterr().out.splitlines()
    said = re.search(r"print\(m\.mean.*# (\[.*\] \d+):", whole)
    assert said is not None
    assert first.split() == said.group(1).split()
    assert rounds == ["1 10", "2 10", "3 10"]
    assert "item.weight" in last
    assert names["item"].shape == (2, 2)  # type: ignore[attr-defined]
    # Its server is not there; whether the call is right can be told all the same.
    call = ast.parse(join).body[0].value  # type: ignore[attr-defined]
    given = {keyword.arg: None for keyword in call.keywords}
    inspect.signature(sfsl.join).bind(*call.args, **given)


@pytest.mark.parametrize(
    ("example", "says"),
    [
        ("train_from_python.py", r"AUC 0\.[78]\d\d after \d+ rounds"),
        ("embedded_client.py", r"3 clients went through round 1"),
    ],
)
def test_an_example_runs(example: str, says: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    done = subprocess.run(  # noqa: S603
        [sys.executable, ROOT / "examples" / example],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(says, done.stdout), done.stdout


def unnumbered(text: str) -> str:
    """How many rows it asks for is chance, and a slow machine may have begun without it."""
    return re.sub(r"\b\d+\b", "N", text)


def test_three_commands_in_three_terminals(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    section = README.read_text().split("## Over a network\n", 1)[1].split("\n## ", 1)[0]
    commands = re.findall(r"```\n(\.venv/bin/sfsl [^\n]*)\n```", section)
    assert [command.split()[1] for command in commands] == ["serve", "swarm", "join"]
    # As in a fresh clone, but with nothing left in it.
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/sfsl").symlink_to(Path(sys.executable).parent / "sfsl")
    if (free := port()) != PORT:
        commands = [command.replace(f":{PORT}", f":{free}") for command in commands]
        commands[0] += f" --port {free}"
    logs = [tmp_path / f"{name}.log" for name in ("serve", "swarm", "join")]
    with started(commands[0], tmp_path, logs[0]) as server:
        end = time.monotonic() + SECONDS
        while "Join with" not in logs[0].read_text():
            assert server.poll() is None, logs[0].read_text()
            assert time.monotonic() < end, logs[0].read_text()
            time.sleep(0.1)
        assert f"Serving at https://127.0.0.1:{free}" in logs[0].read_text()
        with (
            started(commands[1], tmp_path, logs[1]) as swarm,
            started(commands[2], tmp_path, logs[2]) as client,
        ):
            assert client.wait(SECONDS) == 0, logs[2].read_text()
            assert swarm.poll() is None, logs[1].read_text()
            server.send_signal(signal.SIGTERM)
            assert server.wait(SECONDS) == 0, logs[0].read_text()
    (shown,) = (block for block in re.findall(r"```\n(.*?)```", section, re.DOTALL) if "Checked in" in block)
    assert unnumbered(shown) in unnumbered(re.sub(r"(?m)^[\d:]+  ", "", logs[2].read_text()))
    assert re.search(r"round \d+ committed: \d+ of \d+ clients", logs[0].read_text())
