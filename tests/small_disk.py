"""A small disk of one's own, where one may be mounted."""

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(kib: int) -> Iterator[Path]:
    """A disk of so many KiB, where one may be mounted."""
    with tempfile.TemporaryDirectory() as place:
        made = subprocess.run(  # noqa: S603
            ["mount", "-t", "tmpfs", "-o", f"size={kib}k", "none", place],  # noqa: S607
            capture_output=True,
            check=False,
        )
        if made.returncode:
            pytest.skip("only root may mount a small disk")
        try:
            yield Path(place)
        finally:
            subprocess.run(["umount", place], check=True)  # noqa: S603, S607


def enlarge(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)  # noqa: S603, S607
