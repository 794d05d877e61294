"""Where a population of simulated clients trains."""

from typing import Any

import pytest

from sfsl.settings.run import from_sections


def tiny_population() -> Any:
    from sfsl.run.fleet import build_fleet, client_privacy
    from sfsl.run.setup import simulation_settings
    from sfsl.simulate.population import Population

    config = from_sections({"data": {"users": 12, "scale": 0.02}, "round": {"clients": 10}})
    fleet = build_fleet(config)
    settings = simulation_settings(config, client_privacy(config, sorted(fleet.devices)))
    return Population(fleet.task, fleet.devices, settings, seed=1)


def lessons_of(population: Any) -> dict[str, Any]:
    """What everyone learns from a model that it gets whole."""
    import numpy as np

    from sfsl.rounds import Download
    from sfsl.submodel import RowSet

    task, rng = population.task, np.random.default_rng(0)
    rows = {table.name: RowSet(np.arange(table.rows)) for table in task.tables}
    values = {
        table.name: rng.normal(0, 0.1, (table.rows, table.width)).astype(np.float32) for table in task.tables
    }
    download = Download(rows, values, task.initial_dense(), {})
    names = sorted(population.devices)
    personal = {
        name: {table: values[table][own] for table, own in population.devices[name].personal.items()}
        for name in names
    }
    trained, _ = population.train(1, [names], dict.fromkeys(names, download), personal)
    return {name: np.asarray(one.dense) for name, one in trained.items()}


def test_a_population_trains_on_the_device_it_was_put_on(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    from sfsl.simulate import population

    seen: list[str] = []
    whole = population.train_cohort

    def watched(*given: Any, device: str, **options: Any) -> Any:
        seen.append(device)
        return whole(*given, **options)

    monkeypatch.setattr(population, "train_cohort", watched)
    everyone = tiny_population()
    lessons_of(everyone)
    lessons_of(everyone.on("cuda"))
    assert seen == ["cpu", "cuda"]


def test_a_gpu_learns_what_a_cpu_learns_but_for_last_bits() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    everyone = tiny_population()
    here, there = lessons_of(everyone), lessons_of(everyone.on("cuda"))
    assert any(one.any() for one in here.values())
    for name, one in here.items():
        assert there[name] == pytest.approx(one, abs=1e-5)
