"""A short chaos run; the long one is ``bench/chaos.py`` (docs/results.md)."""

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
    words = ["--rounds", "12", "--clients", "15", "--kills", "1", "--seed", "3", "--out", str(out)]
    ran = subprocess.run(  # noqa: S603
        [sys.executable, str(CHAOS), *words], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    result = json.loads(ran.stdout)
    assert set(result["verdicts"].values()) == {"ok"}
    assert len(result["verdicts"]) == 6
    assert result["kills"] == 1
    assert result["clients"]["check-ins"]["restarted"] > 0
    assert result["rounds"]["committed"] >= 8  # most do
    assert result["clients"]["struck"] > 15
    assert len(result["clients"]["faults"]) >= 6
