"""Plans of chaos runs: drawn from a seed, played again from a file, and shrunk to the strikes that matter."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest


def load() -> ModuleType:
    path = Path(__file__).parents[3] / "bench/chaos_plan.py"
    spec = importlib.util.spec_from_file_location("chaos_plan", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


plan = load()
COUNTS = {"kill": 5, "disk": 3, "damage": 4, "clock": 2}


def test_a_seed_draws_the_same_strikes_no_two_in_a_round(tmp_path: Path) -> None:
    made = plan.draw(40, COUNTS, 7)
    assert made == plan.draw(40, COUNTS, 7) != plan.draw(40, COUNTS, 8)
    assert {kind: sum(one.kind == kind for one in made) for kind in COUNTS} == COUNTS
    rounds = [one.round for one in made]
    assert rounds == sorted(set(rounds))
    assert 2 <= rounds[0] <= rounds[-1] < 40
    (tmp_path / "chaos.json").write_text(json.dumps({"strikes": plan.as_json(made)}))
    assert plan.read_strikes(tmp_path / "chaos.json") == made
    (tmp_path / "list.json").write_text(json.dumps(plan.as_json(made[:2])))
    assert plan.read_strikes(tmp_path / "list.json") == made[:2]


@pytest.mark.parametrize("guilty", [[0], [13], [6], [3, 4], [0, 13], [2, 7, 12], []])
def test_the_fewest_strikes_that_fail_are_found(guilty: list[int]) -> None:
    made = plan.draw(40, COUNTS, 1)
    wanted = [made[place] for place in guilty]
    found, runs = plan.shrink(made, lambda some: all(one in some for one in wanted), most=200)
    assert found == wanted
    assert runs < 60


def test_shrinking_ends_when_its_runs_are_used_up() -> None:
    made = plan.draw(40, COUNTS, 1)
    asked: list[int] = []

    def fails(some: list[object]) -> bool:
        asked.append(len(some))
        return made[3] in some

    found, runs = plan.shrink(made, fails, most=3)
    assert runs == len(asked) == 3
    assert made[3] in found
    assert len(found) < len(made)


@pytest.mark.parametrize("shape", [0.1, 0.5, 0.9])
def test_harm_changes_a_file_the_same_way_each_time(tmp_path: Path, shape: float) -> None:
    strike = plan.Strike(3, "damage", 0.5, shape)
    file, data = tmp_path / "metrics.jsonl", b'{"round":1}\n{"round":2}\n'
    results = []
    for _ in range(2):
        file.write_bytes(data)
        assert plan.harm(file, strike)
        results.append(file.read_bytes() if file.exists() else None)
    assert results[0] == results[1] != data
    assert (results[0] is None) == (strike.harm == "gone")
    file.unlink(missing_ok=True)
    assert not plan.harm(file, strike)


def test_a_disk_that_is_full_and_then_is_not(tmp_path: Path) -> None:
    disk = plan.SmallDisk(tmp_path / "disk", mib=1)
    (tmp_path / "disk" / "kept").write_bytes(b"kept")
    if disk.mounted:
        disk.fill(5000)
        with pytest.raises(OSError, match="No space"):
            (tmp_path / "disk" / "more").write_bytes(bytes(20_000))
        (tmp_path / "disk" / "more").unlink()
        disk.free()
        (tmp_path / "disk" / "more").write_bytes(bytes(20_000))
    disk.keep_and_close(tmp_path / "elsewhere")
    assert (tmp_path / "disk" / "kept").read_bytes() == b"kept"
    assert not disk.mounted
