"""A short chaos run; the long one is ``make chaos`` (docs/results.md)."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from clocks import PATIENCE

pytest.importorskip("torch")

CHAOS = Path(__file__).parents[2] / "bench/chaos.py"


@pytest.mark.slow
def test_a_server_killed_under_a_bad_network(tmp_path: Path) -> None:
    out = tmp_path / "chaos"
    words = ["--rounds", "14", "--clients", "12", "--seed", "3", "--shrink", "0", "--out", str(out)]
    words += ["--kills", "1", "--disks", "2", "--damages", "2"]
    ran = subprocess.run(  # noqa: S603
        [sys.executable, str(CHAOS), *words], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    result = json.loads(ran.stdout)
    assert set(result["verdicts"].values()) == {"ok"}
    assert len(result["verdicts"]) == 7
    assert result["starts of the server"] == 4  # and never because of a full disk
    assert result["clients"]["check-ins"]["restarted"] > 0
    assert result["rounds"]["committed"] >= 8  # most do
    assert result["clients"]["struck"] > 15
    assert len(result["clients"]["faults"]) >= 6
