"""A tiny load test; the real one is ``bench/load.py`` on a quiet machine (docs/results.md)."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from clocks import PATIENCE

pytest.importorskip("torch")

LOAD = Path(__file__).parents[2] / "bench/load.py"


@pytest.mark.slow
def test_a_server_with_growing_numbers_of_clients(tmp_path: Path) -> None:
    out = tmp_path / "load.json"
    sizes = ["--clients", "6", "12", "--cohorts", "4", "6", "--pool", "12", "--rounds", "2"]
    times = ["--wait-seconds", "2", "--poll-seconds", "2", "--late-seconds", "60", "--seconds", "240"]
    ran = subprocess.run(  # noqa: S603
        [sys.executable, str(LOAD), *sizes, *times, "--swarm-processes", "2", "--out", str(out)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    result = json.loads(ran.stdout)
    assert json.loads(out.read_text())["rounds"] == result["rounds"]
    assert set(result["stopped"].values()) == {"all that was asked for"}
    assert result["last_that_held"] == {"arriving at once": 6, "waiting": 12, "cohort": 6}
    assert [one["clients"] for one in result["waiting"]] == [6, 12]
    for one in result["waiting"]:
        assert one["arrival"]["clients"] == 6
        assert one["waiting"]["probe"]["check-in"]["asked"] >= 20
    assert [one["cohort"] for one in result["rounds"]] == [4, 6]
    for one in result["rounds"]:
        assert one["cohorts"] == [one["cohort"]] * 2
        assert one["made_it"] == 1
        assert len(one["exchanges"]) == 6
        assert all(spent["wall"] > 0 for spent in one["exchanges"].values())
    for met in result["met"].values():  # no limit was in anyone's way
        assert met["gave_up"] == 0
        assert not any(met["refused"].values())
