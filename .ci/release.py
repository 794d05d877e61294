"""Makes a release: `make release VERSION=0.2.0`, on a clean tree whose tests pass.

The version is stated in src/sfsl/__init__.py, for both packages, so that a clone without tags and an unpacked
archive build the same wheels as a tag does. This writes it, gives the changelog's "Unreleased" its number and
date, commits, tags, and builds the wheels from the tag and from nothing else. It pushes nothing.
"""

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VERSION_FILE, CHANGES = Path("src/sfsl/__init__.py"), Path("CHANGELOG.md")
STATED = re.compile(r'^__version__ = "([^"]+)"$', re.MULTILINE)
UNRELEASED = "## [Unreleased]\n"
NUMBER = re.compile(r"(\d+)\.(\d+)\.(\d+)(?:(a|b|rc)(\d+))?")


class Refused(Exception):
    """Why no release was made; nothing has changed."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("version")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    given = parser.parse_args()
    try:
        release(given.version, given.out)
    except Refused as why:
        print(f"no release: {why}", file=sys.stderr)
        return 1
    return 0


def release(version: str, out: Path) -> None:
    text, changes = (ROOT / VERSION_FILE).read_text(), (ROOT / CHANGES).read_text()
    require(version, text, changes)
    (ROOT / VERSION_FILE).write_text(STATED.sub(f'__version__ = "{version}"', text))
    heading = f"## [{version}] - {datetime.now(UTC):%Y-%m-%d}\n"
    (ROOT / CHANGES).write_text(changes.replace(UNRELEASED, f"{UNRELEASED}\n{heading}", 1))
    git("add", str(VERSION_FILE), str(CHANGES))
    git("commit", "--quiet", "-m", f"Release {version}")
    git("tag", "-a", f"v{version}", "-m", f"sfsl {version}")
    for wheel in build(f"v{version}", out):
        print(f"{hashlib.sha256(wheel.read_bytes()).hexdigest()}  {wheel}")
    print(
        f"Tagged v{version}. To publish:  git push --follow-tags, and hand out the wheels with these digests"
    )


def require(version: str, text: str, changes: str) -> None:
    stated = STATED.search(text)
    if stated is None:
        raise Refused(f"{VERSION_FILE} states no version")
    if not NUMBER.fullmatch(version):
        raise Refused(f"{version!r} is no version such as 0.2.0 or 0.2.0rc1")
    if git("status", "--porcelain"):
        raise Refused("the tree has changes that are not committed")
    if git("tag", "--list", f"v{version}"):
        raise Refused(f"v{version} is tagged already")
    # The first release may have the number that the tree already states.
    tagged = bool(git("tag", "--list", f"v{stated[1]}"))
    if order(version) < order(stated[1]) or (tagged and version == stated[1]):
        raise Refused(f"{version} does not come after {stated[1]}, which {VERSION_FILE} states")
    _, found, rest = changes.partition(UNRELEASED)
    if not found or not re.search(r"^- ", rest.split("\n## ", 1)[0], re.MULTILINE):
        raise Refused(f"{CHANGES} has nothing under Unreleased: say what a user gets")


def order(version: str) -> tuple[int, int, int, str, int]:
    found = NUMBER.fullmatch(version)
    if found is None:
        raise Refused(f"{version!r} is no version such as 0.2.0 or 0.2.0rc1")
    major, minor, patch, stage, count = found.groups()
    return int(major), int(minor), int(patch), stage or "z", int(count or 0)


def build(tag: str, out: Path) -> list[Path]:
    """Build both wheels from what the tag has, and not from what else lies in the tree."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        clean, made = Path(folder) / "clean", Path(folder) / "made"
        git("clone", "--quiet", "--branch", tag, str(ROOT), str(clean))
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
        command += ["--disable-pip-version-check", "-w", str(made), str(clean), str(clean / "research")]
        subprocess.run(command, check=True)  # noqa: S603
        return [Path(shutil.copy(wheel, out)) for wheel in sorted(made.glob("*.whl"))]


def git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True)  # noqa: S603, S607
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
