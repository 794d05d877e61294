"""A wheel in a fresh environment: it installs with an extra, and where something is missing, what its message
says to type is enough."""

import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
pytest.importorskip("hatchling")

ROOT = Path(__file__).parents[2]
SMALL = (
    "--sums plain --rounds 2 --clients 5 --set data.users=30 --set data.scale=0.03 --set model.kind=logistic"
)
SECONDS = 1200


def run(command: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    """As someone types it who has activated the environment in ``folder/venv``."""
    kept = {
        name: value for name, value in os.environ.items() if name.startswith(("PIP_", "HOME", "http", "SSL"))
    }
    path = f"{folder}/venv/bin:/usr/bin:/bin"
    return subprocess.run(  # noqa: S603
        ["/bin/bash", "-c", command], cwd=folder, env=kept | {"PATH": path}, capture_output=True, text=True,
        timeout=SECONDS,
    )  # fmt: skip


def install(command: str, folder: Path) -> None:
    done = run(f"{command} --quiet", folder)
    if re.search("No matching distribution|ConnectionError|Temporary failure", done.stderr):
        pytest.skip(f"no index that has what is needed: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr


@pytest.fixture
def fresh(tmp_path: Path) -> Path:
    """A folder with an environment that has only pip, and the two wheels, built from this tree."""
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
    ]
    subprocess.run([*build, "-w", tmp_path, ROOT, ROOT / "research"], check=True)  # noqa: S603
    venv.create(tmp_path / "venv", with_pip=True)
    return tmp_path


def test_a_wheel_installs_with_its_extras(fresh: Path) -> None:
    (wheel,) = fresh.glob("sfsl-*.whl")
    install(f"pip install './{wheel.name}[train,store,plot]'", fresh)
    assert run("sfsl --version", fresh).stdout.startswith("sfsl ")
    done = run(f"sfsl run --out run {SMALL} && sfsl report run --out page", fresh)
    assert done.returncode == 0, done.stderr
    assert (fresh / "page/report.html").exists()
    tried = run("python -c 'from sfsl import installed; print(installed.clone(), installed.__file__)'", fresh)
    assert tried.stdout.startswith(f"None {fresh}/venv/"), tried.stderr


def test_what_messages_say_to_type_is_enough(fresh: Path) -> None:
    """From the bare wheel, over two messages, to a run; then to a command of the other package."""
    (wheel,) = fresh.glob("sfsl-*.whl")
    install(f"pip install ./{wheel.name}", fresh)
    typed = []
    while (done := run(f"sfsl run --out run {SMALL}", fresh)).returncode:
        told = re.search(r"install (?:it|them) with: (.*)", done.stderr)
        assert told is not None, done.stderr
        assert told[1] not in typed
        typed.append(told[1])
        install(told[1], fresh)
    assert len(typed) == 2
    assert "torch" in typed[0]
    assert "lmdb" in typed[1]
    assert "Traceback" not in done.stderr
    told = re.search(r"install it with: (.*), a file from", run("sfsl bench secagg", fresh).stderr)
    assert told is not None
    install(told[1], fresh)
    done = run("sfsl bench secagg --clients 5 --length 100", fresh)
    assert done.returncode == 0, done.stderr
