"""The command that a message names is the one that works from where its reader is."""

import re
import shlex
from pathlib import Path

import pytest

from sfsl import installed

ROOT = Path(__file__).parents[2]
LINES = [
    "msgspec>=0.19", "torch>=2.4; extra == 'train'", 'lmdb>=3; extra == "store"',
    "flwr>=1; extra == 'flower'", "httpx>=0.27; extra == 'network'",
]  # fmt: skip


@pytest.fixture
def from_a_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "clone", lambda: None)
    monkeypatch.setattr(installed, "requires", lambda _: LINES)
    monkeypatch.setattr(installed, "version", lambda _: "7.8")


def packages(command: str) -> list[str]:
    return shlex.split(command.split(" install ", 1)[1])


def test_in_a_clone_it_is_the_clone() -> None:
    assert installed.clone() == ROOT
    assert packages(installed.install_command("train,store")) == ["-e", f"{ROOT}[train,store]"]
    assert packages(installed.install_research("ray")) == ["-e", f"{ROOT}/research[ray]"]


@pytest.mark.usefixtures("from_a_wheel")
def test_from_a_wheel_it_is_what_the_extras_stand_for() -> None:
    assert packages(installed.install_command("train")) == ["torch>=2.4"]
    assert packages(installed.install_command("network,store,train")) == [
        "torch>=2.4", "lmdb>=3", "httpx>=0.27",
    ]  # fmt: skip
    assert "sfsl_research-7.8-py3-none-any.whl[ray]" in installed.install_research("ray")


def test_pip_is_that_of_this_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where another comes first on the path, plain pip would install for another Python."""
    other, own = tmp_path / "other", tmp_path / "own"
    for folder in (other, own):
        folder.mkdir()
        (folder / "pip").write_text("#!/bin/sh\n")
        (folder / "pip").chmod(0o755)
    monkeypatch.setattr(installed.sys, "executable", str(own / "python"))
    monkeypatch.setenv("PATH", str(own))
    assert installed.install_command("train").startswith("pip install ")
    monkeypatch.setenv("PATH", str(other))
    assert installed.install_command("train").startswith(f"{own}/python -m pip install ")


BY_NAME = re.compile(
    r"""(?:pip|uv|pipx) (?:\w+ )*install (?:-\S+ )*['"]?sfsl(?:-research)?(?:\[[\w,]+\])?['"]?(?=[\s`),]|$)"""
)
READ = (
    "*.md",
    "docs/**/*.md",
    "research/**/*.md",
    "examples/**/*.md",
    "src/**/*.py",
    "research/**/*.py",
    "deploy/**/*",
)


def test_nothing_tells_anyone_to_install_sfsl_by_its_name() -> None:
    """Whatever an index has by that name need not be ours (decision 20)."""
    assert BY_NAME.search("pip install 'sfsl[train]'")
    texts = [path for pattern in READ for path in ROOT.glob(pattern) if path.is_file()]
    told = {str(path.relative_to(ROOT)): BY_NAME.findall(path.read_text()) for path in texts}
    assert not {path: found for path, found in told.items() if found}
