"""Clocks that are wrong, set, or drift, on real processes: ``bench/clock_faults.py``, in parts."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

BENCH = Path(__file__).parents[2] / "bench"
sys.path.insert(0, str(BENCH))

from false_clock import library

_SECONDS = 3600.0  # ends a test that hangs; a part takes some minutes


@pytest.mark.slow
@pytest.mark.skipif(library() is None, reason="libfaketime is not installed (apt-get install faketime)")
@pytest.mark.parametrize(
    ("scenes", "steps", "count"),
    [
        ("server restart client start everybody", "1h", 10),
        ("server restart client start everybody", "10d", 10),
        ("server restart client start", "4000d", 8),
        ("drift midnight", "1h", 2),
    ],
    ids=["1 hour", "10 days", "4000 days", "drift and midnights"],
)
def test_after_every_fault_of_a_clock_all_go_on(tmp_path: Path, scenes: str, steps: str, count: int) -> None:
    out = tmp_path / "clocks"
    words = ["--scenes", *scenes.split(), "--steps", *steps.split(), "--out", str(out)]
    ran = subprocess.run(  # noqa: S603
        [sys.executable, str(BENCH / "clock_faults.py"), *words],
        capture_output=True, text=True, timeout=_SECONDS, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    result = json.loads(ran.stdout)
    assert set(result["verdicts"].values()) == {"ok"}
    assert len(result["verdicts"]) == count + 3  # the start, the ledgers, the logs
    assert result["replays tried"] >= 1
