"""A release is made from a clean tree with a changelog, tagged, and built from the tag alone."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytest.importorskip("hatchling")


def run(*words: object, folder: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*map(str, words)], cwd=folder, capture_output=True, text=True)  # noqa: S603


def git(folder: Path, *words: str) -> str:
    done = run("git", "-c", "user.name=t", "-c", "user.email=t@example.org", *words, folder=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone of this repository as it is, without its tags, as most clones on a build machine are."""
    if run("git", "rev-parse", "HEAD", folder=ROOT).returncode:
        pytest.skip("this is no clone")
    place = tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", "--no-tags", "--depth", "1", f"file://{ROOT}", str(place))
    (place / ".ci/release.py").write_bytes((ROOT / ".ci/release.py").read_bytes())
    git(place, "config", "user.name", "t")
    git(place, "config", "user.email", "t@example.org")
    git(place, "commit", "--quiet", "--allow-empty", "-am", "as it is")
    return place


def released(clone: Path, version: str) -> "subprocess.CompletedProcess[str]":
    return run(sys.executable, ".ci/release.py", version, "--out", clone.parent / "dist", folder=clone)


@pytest.mark.slow
def test_a_release(clone: Path) -> None:
    (clone / "notes.txt").write_text("not committed")
    refused(clone, "9.9.9", "not committed")
    (clone / "notes.txt").unlink()
    refused(clone, "9.9", "is no version")
    refused(clone, "0.0.9", "does not come after")
    done = released(clone, "9.9.9")
    assert done.returncode == 0, done.stderr
    names = sorted(path.name for path in (clone.parent / "dist").iterdir())
    assert names == ["sfsl-9.9.9-py3-none-any.whl", "sfsl_research-9.9.9-py3-none-any.whl"]
    assert all(re.search(f"(?m)^[0-9a-f]{{64}}  .*{name}$", done.stdout) for name in names)
    assert git(clone, "describe", "--exact-match") == "v9.9.9"
    assert not git(clone, "status", "--porcelain")
    changes = (clone / "CHANGELOG.md").read_text()
    assert re.search(r"## \[Unreleased\]\n\n## \[9\.9\.9\] - \d{4}-\d\d-\d\d\n\n\S", changes)
    refused(clone, "9.9.9", "is tagged already")
    refused(clone, "9.9.10", "nothing under Unreleased")


def refused(clone: Path, version: str, why: str) -> None:
    before = git(clone, "rev-parse", "HEAD"), git(clone, "status", "--porcelain"), git(clone, "tag")
    done = released(clone, version)
    assert done.returncode == 1
    assert why in done.stderr
    assert (git(clone, "rev-parse", "HEAD"), git(clone, "status", "--porcelain"), git(clone, "tag")) == before
