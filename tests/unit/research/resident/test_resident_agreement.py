"""Whatever the settings, rounds on a device come to the model that ``plain`` comes to."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch

from sfsl.carriers.local.engine import LocalEngine
from sfsl.client.device import Device
from sfsl.data.catalogue import Catalogue
from sfsl.data.compact import compact
from sfsl.data.interactions import MAX_HISTORY, Interactions
from sfsl.models import bst, dien, din
from sfsl.privacy import IndexPrivacy
from sfsl.simulate.population import Simulation
from sfsl.submodel import MemoryStore, RowSet
from sfsl.training.task import Task
from sfsl_research.resident import Arm, ResidentClients, ResidentEngine, ResidentModel
from small_fleet import (
    CLIENTS,
    DEVICES,
    NAMES,
    Section,
    engine_of,
    interactions,
    model_of,
    settings_of,
    store_of,
)

ROUNDS = 2
# Rounding is by chance, a server's step makes more of it, and a GPU adds up in another order.
TOLERANCE = 2e-5


@pytest.fixture(scope="module")
def data() -> Interactions:
    return interactions()


@pytest.fixture(scope="module", params=DEVICES)
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


@dataclass(frozen=True)
class Case:
    """``still``: tables of which no row moves."""

    preset: str = "cpp1"
    model: Callable[..., Task] = din
    history: int = MAX_HISTORY
    still: tuple[str, ...] = ()
    sections: dict[str, Section] = field(default_factory=dict)


STEPS = {"row_step": "adagrad", "row_rate": 0.1, "dense_step": "adam", "dense_rate": 0.01}
TURNED = {"row_step": "adam", "row_rate": 0.1, "dense_step": "adagrad", "dense_rate": 0.01}
CASES = {
    "short histories": Case(history=3),
    "epochs": Case("cpp5", sections={"training": {"epochs": 3}}),
    "adagrad rows and adam dense": Case(sections={"server": STEPS}),
    "adam rows and adagrad dense": Case(sections={"server": TURNED}),
    "short moves": Case(sections={"server": {"max_move": 1e-3}}),
    "z64": Case(sections={"round": {"ring": "z64"}}),
    "few samples count": Case(sections={"round": {"max_samples": 3}, "server": {"weights": "samples"}}),
    "weights by data set": Case(
        "cpp5", sections={"round": {"scheme": "fl", "sums": "auto", "max_samples": 3}}
    ),
    "three contributors": Case(still=("item",), sections={"round": {"min_contributors": 3}}),
    "bst": Case(model=bst),
    "dien": Case(model=dien),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_rounds_are_those_of_plain_sums(data: Interactions, device: torch.device, case: Case) -> None:
    task, settings = case.model(Catalogue.of(data), seed=1), settings_of(case.preset, **case.sections)
    update = settings.rules.update
    store = store_of(task, update.row_step.slots, update.dense_step.slots)
    devices = {name: Device(task, data.client(user, case.history)) for user, name in enumerate(NAMES)}
    plain = LocalEngine(Simulation(task, devices, store, settings, seed=0))
    model = model_of(task, settings, device)
    fleet = ResidentClients(compact(data, case.history), device)
    engine = engine_of(fleet, [model], settings, [case.preset])
    for number in range(1, ROUNDS + 1):
        report = plain.run(NAMES)
        store.commit(report.commit)
        (figures,) = engine.run(number, np.arange(CLIENTS))
    assert_same(store, model, case.still)
    assert int(figures.samples) == report.record.samples
    assert float(figures.loss) / report.record.samples == pytest.approx(report.record.loss, rel=1e-4)


def assert_same(store: MemoryStore, model: ResidentModel, still: Sequence[str]) -> None:
    begun = store_of(model.task)
    for table in model.task.tables:
        every = RowSet(np.arange(table.rows))
        found, expected = model.tables[table.name][:-1].cpu(), store.read_rows(table.name, every)
        moved = np.abs(expected.values - begun.read_rows(table.name, every).values).max()
        assert moved == 0 if table.name in still else moved > 10 * TOLERANCE, table.name
        np.testing.assert_allclose(found, expected.values, rtol=0, atol=TOLERANCE)
        state = model.states[table.name][:-1].cpu()
        np.testing.assert_allclose(state, expected.state, rtol=1e-2, atol=TOLERANCE)
    dense = store.read_dense()
    np.testing.assert_allclose(model.dense.cpu(), dense.values, rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(model.dense_state.cpu(), dense.state, rtol=1e-2, atol=TOLERANCE)


def test_models_side_by_side_train_on_their_own_samples(data: Interactions, device: torch.device) -> None:
    """Each is what it is alone, with cohorts that change, small batches, and rows that few asked for."""
    task, clients, presets = din(Catalogue.of(data), seed=1), 5, ("cpp1", "cpp2", "cpp4")
    settings = settings_of(
        "cpp1",
        round={"clients": clients, "min_contributors": 2},
        training={"batch_size": 2, "epochs": 2, "learning_rate": 0.3},
    )
    fleet = ResidentClients(compact(data), device)

    def models(presets: Sequence[str]) -> list[ResidentModel]:
        made = [model_of(task, settings, device) for _ in presets]
        engine, rng = engine_of(fleet, made, settings, presets, clients), np.random.default_rng(0)
        for number in (1, 2, 3):
            engine.run(number, rng.choice(CLIENTS, clients, replace=False))
        return made

    together = models(presets)
    for preset, one in zip(presets, together, strict=True):
        (alone,) = models([preset])
        for name in one.tables:
            torch.testing.assert_close(one.tables[name][:-1], alone.tables[name][:-1], rtol=0, atol=TOLERANCE)
        torch.testing.assert_close(one.dense, alone.dense, rtol=0, atol=TOLERANCE)
    for other in together[1:]:
        assert float((other.dense - together[0].dense).abs().max()) > 1e-3


def test_permanent_answers_are_drawn_anew_in_each_period(data: Interactions, device: torch.device) -> None:
    task, settings = din(Catalogue.of(data), seed=1), replace(settings_of("cpp1"), period=2)
    arm = Arm("lasting", model_of(task, settings, device), settings, IndexPrivacy(0.8, 0.2, 1, 0))
    engine = ResidentEngine(ResidentClients(compact(data), device), [arm], clients=CLIENTS, seed=0)
    first, again, anew = (int(engine.run(number, np.arange(CLIENTS))[0].samples) for number in (1, 2, 3))
    assert first == again != anew
    assert 0 < first < len(data)
