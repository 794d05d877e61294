"""A run on a device: none of it without the device, and data that leave nothing to test on."""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from sfsl.arrays import Indices
from sfsl.errors import InputError
from sfsl.models.items import PARTS
from sfsl.run import start
from sfsl.run.load import load
from sfsl.scores import evaluate
from sfsl.settings.run import from_sections
from sfsl.simulate.engine import score_pool
from sfsl_research.resident import ResidentEngine


def test_a_run_without_test_samples_has_no_auc(tmp_path: Path) -> None:
    """Neither when it begins nor when it is resumed and the last round is still to be looked at."""
    path, folder = tmp_path / "data.csv", tmp_path / "run"
    lines = [
        f"{user},{(user + time) % 5},{(user + time) % 2},{time}" for user in range(6) for time in range(4)
    ]
    path.write_text("\n".join(["user,item,label,time", *lines]))  # four samples are too few to hold one out
    config = from_sections(
        {
            "data": {"source": "csv", "path": str(path)},
            "model": {"kind": "logistic"},
            "round": {"clients": 3, "sums": "plain", "min_contributors": 1, "bins": 0},
            "run": {"rounds": 2, "evaluate_every": 0, "device": "cpu"},
        }
    )
    with start.begin(folder, config) as run:
        run.run(stop=lambda: False, seen=lambda line: None)
    metrics = folder / "metrics.jsonl"
    first, _ = metrics.read_text().splitlines(keepends=True)
    metrics.write_text(first)
    with start.resume(folder, config) as run:
        assert [(line.round, line.auc) for line in run.lines] == [(1, None), (2, None)]


@pytest.mark.parametrize("rebuild", [0.0, 0.5])
def test_validation_and_test_devices_are_scored_on_the_device_as_elsewhere(
    tmp_path: Path, rebuild: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = from_sections(
        {
            "data": {"users": 80, "scale": 0.05, "validation": 0.3},
            "round": {"clients": 10, "sums": "plain", "min_contributors": 1, "bins": 0},
            "training": {"rebuild": rebuild, "batch_size": 8},
            "run": {"rounds": 2, "evaluate_every": 1, "device": "cpu", "threads": 1},
        }
    )
    rebuilt: list[int] = []
    rebuild_rows = ResidentEngine.rebuild

    def counted(engine: ResidentEngine, chosen: Indices) -> None:
        rebuilt.append(len(chosen))
        rebuild_rows(engine, chosen)

    monkeypatch.setattr(ResidentEngine, "rebuild", counted)
    with start.begin(tmp_path / "run", config) as run:
        summary = run.run(stop=lambda: False, seen=lambda line: None)
        assert rebuilt == ([80, 80] if rebuild else []), "once a round, for both pools"
        task, line, rows = run.fleet.task, run.lines[-1], run._engine.rebuilt()
        assert line.correction is not None
        assert {name: len(pool) for name, pool in run.pools.items()}.keys() == {"test", "valid"}
        for name, measured in (("test", line.auc), ("valid", line.auc_valid)):
            scored = score_pool(task, run.pools[name], run.store, rows)
            # Elsewhere rebuilding leaves out samples without a history.
            assert len(run.pools[name]) - len(scored.scores) <= (2 if rebuild else 0)
            assert set(scored.parts) == set(line.correction.parts) == set(PARTS)
            found = evaluate(scored, correction=line.correction).auc
            assert found == pytest.approx(measured, abs=0.02 if rebuild else 1e-6)
    assert summary.best is not None
    assert load(tmp_path / "run").which == "best"


def test_a_gpu_that_is_not_there_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    config = from_sections({"run": {"device": "cuda"}, "round": {"sums": "plain"}})
    monkeypatch.setattr(start, "build_fleet", lambda _: pytest.fail("data were read first"))
    with pytest.raises(InputError, match="torch sees no GPU here"):
        start.begin(tmp_path / "run", config)
    assert not [*tmp_path.iterdir()]
