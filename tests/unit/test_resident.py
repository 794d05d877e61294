"""A fleet on a device does what ``plain`` does: the same samples kept, the same sums, the same model."""

from collections.abc import Mapping

import numpy as np
import pytest
import torch

from sfsl.data.compact import compact
from sfsl.data.interactions import Interactions
from sfsl.data.synthetic import SyntheticSettings, SyntheticTaobao
from sfsl.engines.device import Device
from sfsl.engines.local import LocalEngine
from sfsl.engines.resident import Arm, ResidentClients, ResidentEngine, ResidentModel
from sfsl.engines.settings import RoundSettings
from sfsl.engines.simulation import Simulation
from sfsl.models import din, logistic_regression
from sfsl.privacy import PRESETS
from sfsl.run.config import from_sections
from sfsl.run.setup import round_settings
from sfsl.submodel import MemoryStore, RowSet, StoreSpec
from sfsl.training.task import Task

CPU = torch.device("cpu")
CLIENTS = 12


@pytest.fixture(scope="module")
def data() -> Interactions:
    return SyntheticTaobao(SyntheticSettings().scaled(0.05, users=CLIENTS), seed=3).interactions()


def store_of(task: Task) -> MemoryStore:
    return MemoryStore(StoreSpec(model=task.spec, seed=bytes(32), devices=True), task.initial_dense())


def settings_of(names: list[str], preset: str, **sections: Mapping[str, object]) -> RoundSettings:
    """One step per client with all its samples: the order of samples plays no part."""
    given = {
        "round": {"clients": CLIENTS, "sums": "plain", "bins": 0, "min_contributors": 1},
        "training": {"batch_size": 128, "learning_rate": 1.0},
    }
    for section, content in sections.items():
        given[section] = given.get(section, {}) | dict(content)
    return round_settings(from_sections(given), dict.fromkeys(names, PRESETS[preset]))


def both(data: Interactions, task: Task, preset: str, **sections: Mapping[str, object]):
    names = [f"user-{user:02}" for user in range(CLIENTS)]
    settings = settings_of(names, preset, **sections)
    devices = {name: Device(task, data.client(user)) for user, name in enumerate(names)}
    store = store_of(task)
    report = LocalEngine(Simulation(task, devices, store, settings, seed=0)).run(names)
    assert report.aborted is None
    store.commit(report.commit)

    model = ResidentModel(task, store_of(task), CPU)
    arm = Arm("one", model, settings, PRESETS[preset])
    engine = ResidentEngine(ResidentClients(compact(data), CPU), [arm], clients=CLIENTS, seed=0)
    (figures,) = engine.run(1, np.arange(CLIENTS))
    return store, report, model, figures, settings


def assert_same(task: Task, store: MemoryStore, model: ResidentModel, settings: RoundSettings) -> None:
    unit = settings.update.rows.unit * settings.update.row_step.rate
    for table in task.tables:
        expected = store.read_rows(table.name, RowSet(np.arange(table.rows))).values
        found = model.tables[table.name][:-1].numpy()
        np.testing.assert_allclose(found, expected, atol=2 * unit + 1e-6)
        assert (
            np.abs(
                expected - store_of(task).read_rows(table.name, RowSet(np.arange(table.rows))).values
            ).max()
            > 1e-4
        )
    dense = store.read_dense().values
    np.testing.assert_allclose(model.dense.numpy(), dense, atol=4 * settings.update.dense.unit + 1e-6)


@pytest.mark.parametrize("weights", ["owners", "samples"])
@pytest.mark.parametrize("preset", ["cpp1", "cpp5"])
def test_a_round_is_that_of_plain_sums(data: Interactions, preset: str, weights: str) -> None:
    task = din(data, seed=1)
    store, report, model, figures, settings = both(data, task, preset, server={"weights": weights})
    assert_same(task, store, model, settings)
    assert int(figures.samples) == report.samples
    assert float(figures.loss) / report.samples == pytest.approx(report.loss, rel=1e-4)
    found = figures.tables["item"]
    assert np.array_equal(found.union[found.real], report.outcome.union["item"].rows)
    assert int(found.moved.sum()) == report.outcome.applied.moved["item"]


def test_a_full_model_round_is_that_of_plain_sums(data: Interactions) -> None:
    task = din(data, seed=1)
    store, _, model, _, settings = both(data, task, "cpp5", round={"scheme": "fl", "sums": "auto"})
    assert_same(task, store, model, settings)
