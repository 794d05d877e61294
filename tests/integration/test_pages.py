"""Every command of README, guides and tutorials is run: here, page by page, or by what ``pages`` names."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from commands import PORT, port
from pages import PAGES, ROOT, Page, blocks, pages, session

LANGUAGES = {
    "",
    "sh",
    "bash",
    "python",
    "pycon",
    "text",
    "toml",
    "ini",
    "yaml",
    "json",
    "csv",
    "nginx",
    "html",
}
SECONDS = 1500


@pytest.mark.parametrize("page", pages())
def test_no_command_is_left_out(page: str) -> None:
    own = PAGES.get(page, Page())
    commands = [f"{one}\n" for block in blocks(page) for one in block.commands]
    run, text = session(page), (ROOT / page).read_text()
    assert {block.language for block in blocks(page)} <= LANGUAGES
    for block in blocks(page):
        hidden = [] if block.commands else re.findall(r"(?m)^sfsl .*", block.text)
        assert not hidden, "commands stand in blocks of their own, sh by name"
    unused = [
        begin
        for begin in (*own.elsewhere, *own.not_run)
        if not any(map(begin.__eq__, map(own.excused, commands)))
    ]
    assert not unused, "excuses for commands that are not there"
    assert not [old for old in own.smaller if old not in text]
    for one in commands:
        assert own.excused(one) or own.shrunk(one).strip() in run
    for begin, test in own.elsewhere.items():
        words = re.sub(r"[^\w-]", " ", begin).split()
        assert words[min(1, len(words) - 1)] in (ROOT / test).read_text() or page in (ROOT / test).read_text()


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=() if PAGES.get(page, Page()).fast else pytest.mark.slow)
        for page in pages()
        if session(page)
    ],
)
def test_a_page_runs_as_written(page: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    text = f"{PAGES.get(page, Page()).given}\nset -x\n{session(page)}\n"
    if (free := port()) != PORT:
        text = text.replace(f":{PORT}", f":{free}").replace(
            "serve serve.toml", f"serve serve.toml --port {free}"
        )
    for name in ("examples", "bench", "deploy"):  # as in a clone
        (tmp_path / name).symlink_to(ROOT / name)
    script = tmp_path / "page.sh"
    script.write_text(f"set -euo pipefail\ntrap 'kill $(jobs -p) 2> /dev/null || true' EXIT\n{text}")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "NO_COLOR": "1", "OMP_NUM_THREADS": "1"}
    with open(tmp_path / "page.log", "w+") as log:
        done = subprocess.run(  # noqa: S603
            ["/bin/bash", str(script)], cwd=tmp_path, env=environment, stdout=log, stderr=log, timeout=SECONDS
        )
        log.seek(0)
        said = log.read()
    assert done.returncode == 0, said[-3000:]
    assert "Traceback" not in said


@pytest.mark.slow
def test_make_demo(tmp_path: Path) -> None:
    """The recipe as it is, in a folder of its own, with an environment that is there and less data."""
    pytest.importorskip("torch")
    for name in ("pyproject.toml", "constraints.txt", "research", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "env").mkdir()
    (tmp_path / "env/bin").symlink_to(Path(sys.executable).parent)
    (tmp_path / "env/.installed").touch()
    less = (
        "DEMO_DATA=--set data.world=films --set data.users=80 --set data.scale=0.05 --set model.kind=logistic"
    )
    done = subprocess.run(  # noqa: S603
        ["make", "-f", str(ROOT / "Makefile"), "demo", "VENV=env", less],  # noqa: S607
        cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "out/demo-report/report.html").exists()
