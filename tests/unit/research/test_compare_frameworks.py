"""The comparison with other frameworks: equal work on all sides, ratios of neighbours, a tree's memory."""

import json
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from clocks import PATIENCE
from sfsl.training import LocalSettings, LocalUpdate, train_client
from sfsl.training.local import ClientWork
from sfsl_research.bench.train import TrainingCohort

BENCH = Path(__file__).parents[3] / "bench"


@pytest.fixture
def compare(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    import compare_frameworks  # type: ignore[import-not-found]

    module: ModuleType = compare_frameworks
    return module


def result(seconds: list[float], cpu: list[float], peak: int) -> dict[str, object]:
    alike = {"version": "1", "samples": [9], "load": 1.0}
    return {"seconds": seconds, "cpu_seconds": cpu, "peak_bytes": peak, **alike}


def test_ratios_are_of_neighbours(compare: ModuleType) -> None:
    turns = [
        {"sfsl": result([1.0, 3.0], [2.0], 2**20), "flower": result([8.0], [6.0], 2**21)},
        {"sfsl": result([4.0], [2.0], 2**22), "flower": result([40.0], [10.0], 2**23)},
    ]
    found = compare.compared(turns)
    assert (found["sfsl"]["times_ours"], found["sfsl"]["times_our_cpu"]) == (1, 1)
    flower = found["flower"]
    assert [flower[f"times_ours{which}"] for which in ("_least", "", "_most")] == [4, 7, 10]
    assert (flower["times_our_cpu"], flower["peak_mib"], flower["seconds_per_round"]) == (4, 8, 24)
    assert "| flower 1 | 24.0 | 7.0 | 4.0, 10.0 | 8.0 | 4.0 | 8 |" in compare.table(found)


def test_the_others_train_what_we_train(
    compare: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One client's epoch as PyTorch users write it moves the model as our own does."""
    import torch

    from clients_file import ClientsFile, sparse_din, train  # type: ignore[import-not-found]

    cohort = TrainingCohort(clients=3, scale=0.02)
    compare.write_clients(cohort, tmp_path / "clients.npz")
    file = ClientsFile(tmp_path / "clients.npz")
    devices = list(cohort.devices.values())
    kept = [device.train.keep(device.needed) for device in devices]
    assert [len(one["label"]) for one in file.clients] == [len(one) for one in kept]

    settings, client = LocalSettings(), max(range(3), key=lambda one: len(kept[one]))
    module = sparse_din(file.sizes)
    before = {name: one.detach().clone() for name, one in module.named_parameters()}
    rows, _ = cohort.task.needed_rows(kept[client])
    values = {name: before[f"{name}.weight"][own].numpy() for name, own in rows.items()}
    work = ClientWork(rows, values, kept[client], seed=5)
    dense = cohort.task.dense_vector(before)
    ours: LocalUpdate = train_client(cohort.task, dense, work, settings)
    monkeypatch.setattr(
        torch, "randperm", lambda count: torch.from_numpy(np.random.default_rng(5).permutation(count))
    )
    assert train(module, file.clients[client]) == ours.samples > 4
    after = dict(module.named_parameters())
    moved = {name: (after[name] - before[name]).detach() for name in after}
    np.testing.assert_allclose(cohort.task.dense_vector(moved), ours.dense, atol=1e-5)
    for name, own in rows.items():
        np.testing.assert_allclose(moved[f"{name}.weight"][own], ours.rows[name], atol=1e-5)
        assert not np.delete(moved[f"{name}.weight"].numpy(), own, axis=0).any()


def test_memory_is_that_of_a_process_and_what_it_starts(compare: ModuleType) -> None:
    child = "import time; held = bytearray(60 << 20); time.sleep(3600)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    running = subprocess.Popen([sys.executable, "-c", parent])  # noqa: S603
    try:
        memory = compare.PeakMemory(running.pid)
        end = time.monotonic() + PATIENCE
        while memory.bytes <= 60 << 20 and time.monotonic() < end:
            time.sleep(0.05)
        assert 60 << 20 < memory.close() < 200 << 20
    finally:
        for process in reversed(compare._tree(running.pid)):
            subprocess.run(["kill", str(process)], check=False)  # noqa: S603, S607
        running.wait(PATIENCE)


def test_a_side_that_fails_is_named(compare: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "flower.json").write_text("{}")  # of an earlier turn: it must not count
    with pytest.raises(SystemExit, match="flower made no result"):
        compare.turn("flower", [sys.executable, "-c", "print('no'); raise SystemExit(3)"], tmp_path, 2)
    assert (tmp_path / "flower.log").read_text() == "no\n"


@pytest.mark.slow
def test_our_sides_run(tmp_path: Path) -> None:
    """The others take environments of their own, and minutes to make them: ``make bench``."""
    sizes = ["--clients", "4", "--scale", "0.02", "--rounds", "1", "--repeats", "1"]
    subprocess.run(  # noqa: S603
        [sys.executable, BENCH / "compare_frameworks.py", "--out", tmp_path, *sizes, "--only"],
        check=True,
        timeout=PATIENCE,
    )
    found = json.loads((tmp_path / "comparison.json").read_text())["frameworks"]
    assert list(found) == ["sfsl", "sfsl, not compiled"]
    assert found["sfsl"]["samples"] == found["sfsl, not compiled"]["samples"] > 0
