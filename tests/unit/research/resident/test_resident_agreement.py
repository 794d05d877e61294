"""Whatever the settings, rounds on a device come to the model that ``plain`` comes to."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch

from sfsl.arrays import Reals
from sfsl.carriers.local.engine import LocalEngine
from sfsl.client.device import Device
from sfsl.data.catalogue import Catalogue
from sfsl.data.interactions import MAX_HISTORY, Interactions
from sfsl.models import bst, dien, din
from sfsl.privacy import PRESETS, IndexPrivacy
from sfsl.rounds.hot import HotState
from sfsl.rounds.hot_server import HotRound
from sfsl.simulate.population import Simulation
from sfsl.simulate.rebuilt import rebuild_personal
from sfsl.submodel import MemoryStore, RowSet
from sfsl.training import ClientWork, LocalSettings
from sfsl.training.task import Task
from sfsl.training.work import Lot, _order, draw_lot
from sfsl_research.resident import Arm, ResidentClients, ResidentEngine, ResidentModel, engine, rounds
from sfsl_research.resident.compact import compact
from sfsl_research.resident.hot import noise_words
from sfsl_research.resident.rounds import ResidentRounds
from small_fleet import (
    CLIENTS,
    DEVICES,
    NAMES,
    Section,
    all_rows,
    engine_of,
    interactions,
    model_of,
    settings_of,
    store_of,
)

ROUNDS = 2
# Rounding is by chance, a server's step makes more of it, and a GPU adds up in another order.
TOLERANCE = 2e-5
# Adam and AdaGrad make a step of what is left where moves nearly cancel, and of what rounding lost there.
RARE, LARGEST = 2e-4, 1e-3


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
HEAT = {"row_step": "heat", "row_rate": 0.3, "row_prior": 20.0, "dense_step": "adam", "dense_rate": 0.003}
# Steps that do not depend on the size of moves make much of how the smallest were rounded.
FINE = {"ring": "z64"}
REBUILD = {"rebuild": 0.4, "rebuild_rate": 20.0, "rebuild_epochs": 3}
FEW = REBUILD | {"max_samples": 5, "epochs": 2}
CASES = {
    "short histories": Case(history=3),
    "epochs": Case("cpp5", sections={"training": {"epochs": 3}}),
    "adagrad rows and adam dense": Case(sections={"server": STEPS, "round": FINE}),
    "adam rows and adagrad dense": Case(sections={"server": TURNED, "round": FINE}),
    "rows by heat": Case(sections={"server": HEAT, "round": FINE}),
    "short moves by heat": Case(sections={"server": HEAT | {"max_move": 1e-3}, "round": FINE}),
    "heat of two contributors": Case(sections={"server": HEAT, "round": FINE | {"min_contributors": 2}}),
    "short moves": Case(sections={"server": {"max_move": 1e-3}}),
    "z64": Case(sections={"round": {"ring": "z64"}}),
    "few samples count": Case(sections={"round": {"max_samples": 3}, "server": {"weights": "samples"}}),
    "weights by data set": Case(
        "cpp5", sections={"round": {"scheme": "fl", "sums": "auto", "max_samples": 3}}
    ),
    "three contributors": Case(still=("item",), sections={"round": {"min_contributors": 3}}),
    "rebuilt": Case(sections={"training": REBUILD}),
    "rebuilt from few samples": Case("cpp5", sections={"training": FEW}),
    "few samples": Case(sections={"training": {"max_samples": 3}}),
    "batches": Case(sections={"training": {"batch_size": 4, "epochs": 2}}),
    "rebuilt in batches": Case(sections={"training": REBUILD | {"batch_size": 3, "rebuild": 0.6}}),
    "bst rebuilt": Case(model=bst, sections={"training": REBUILD}),
    "bst": Case(model=bst),
    "dien": Case(model=dien),
}


class _InTurn:
    """Where chance would draw an order, things stay as they come."""

    def permutation(self, count: int) -> np.ndarray:
        return np.arange(count)


@pytest.fixture
def in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lots of samples are drawn as they come, which is all that the two would draw differently."""

    def drawn(task: Task, work: ClientWork, settings: LocalSettings) -> Lot:
        one = draw_lot(task, work, settings)
        taken = np.arange(min(len(work.data), settings.max_samples or len(work.data)))
        first, last = (int(part) for part in settings.parts(np.array(len(taken))))

        def order(some: np.ndarray, epochs: int) -> np.ndarray:
            return _order(_InTurn(), some, epochs, settings.batch_size)  # type: ignore[arg-type]

        learned = taken[len(taken) - last :]
        assert one.order.shape == order(learned, settings.epochs).shape
        rebuild = None if one.rebuild is None else order(taken[:first], settings.rebuild_epochs)
        return Lot(learned, order(learned, settings.epochs), rebuild)

    def shuffled(self: engine._ArmRound, some: torch.Tensor) -> torch.Tensor:
        return (self._cohort.client * 2 + ~some).argsort(stable=True)

    monkeypatch.setattr("sfsl.training.cohort.draw_lot", drawn)
    monkeypatch.setattr(engine._ArmRound, "_shuffled", shuffled)


@pytest.mark.usefixtures("in_turn")
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_rounds_are_those_of_plain_sums(data: Interactions, device: torch.device, case: Case) -> None:
    task, settings = case.model(Catalogue.of(data), seed=1), settings_of(case.preset, **case.sections)
    update = settings.rules.update
    store = store_of(task, update.row_step.slots, update.dense_step.slots)
    devices = {name: Device(task, data.client(user, case.history)) for user, name in enumerate(NAMES)}
    plain = LocalEngine(Simulation(task, devices, store, settings, seed=0))
    model = model_of(task, settings, device)
    fleet = ResidentClients(compact(data, case.history), device)
    resident = engine_of(fleet, [model], settings, [case.preset])
    for number in range(1, ROUNDS + 1):
        report = plain.run(NAMES)
        store.commit(report.commit)
        (figures,) = resident.run(number, np.arange(CLIENTS))
    assert_same(store, model, case.still)
    assert int(figures.samples) == report.record.samples
    assert float(figures.loss) / report.record.samples == pytest.approx(report.record.loss, rel=1e-4)


def assert_near(found: Reals, expected: Reals) -> None:
    apart = np.abs(found - expected)
    assert apart.max() <= LARGEST
    assert np.mean(apart > TOLERANCE) <= RARE


def assert_same(store: MemoryStore, model: ResidentModel, still: Sequence[str]) -> None:
    begun = store_of(model.task)
    for table in model.task.tables:
        every = RowSet(np.arange(table.rows))
        found, expected = model.tables[table.name][:-1].cpu(), store.read_rows(table.name, every)
        moved = np.abs(expected.values - begun.read_rows(table.name, every).values).max()
        assert moved == 0 if table.name in still else moved > 10 * TOLERANCE, table.name
        assert_near(found.numpy(), expected.values)
        state = model.states[table.name][:-1].cpu()
        np.testing.assert_allclose(state, expected.state, rtol=1e-2, atol=TOLERANCE)
    dense = store.read_dense()
    assert_near(model.dense.cpu().numpy(), dense.values)
    np.testing.assert_allclose(model.dense_state.cpu(), dense.state, rtol=1e-2, atol=TOLERANCE)


@pytest.mark.parametrize("chosen", [range(CLIENTS), [7, 2, 5]])
def test_rows_to_score_with_are_those_that_the_host_rebuilds(
    data: Interactions, device: torch.device, chosen: Sequence[int]
) -> None:
    task, settings = (
        din(Catalogue.of(data), seed=1),
        settings_of("cpp2", training=REBUILD, round={"clients": 5}),
    )
    devices = {name: Device(task, data.client(user)) for user, name in enumerate(NAMES)}
    rows, expected = rebuild_personal(task, devices, store_of(task), settings.local, seed=0)["user"]
    models = [model_of(task, settings, device) for _ in range(2)]
    resident = engine_of(ResidentClients(compact(data), device), models, settings, ["cpp2", "cpp1"], 5)
    resident.rebuild(np.array(chosen))
    assert rows.tolist() == list(range(CLIENTS))
    assert np.abs(expected).max() > 10 * TOLERANCE
    for model in models:
        found = model.tables["user"][chosen].cpu()
        np.testing.assert_allclose(found, expected[chosen], rtol=0, atol=TOLERANCE)
        assert not any(one.any() for one in model.touched.values())


@pytest.mark.parametrize("training", [{}, REBUILD | {"rebuild_rate": 3.0, "max_samples": 6}])
def test_models_side_by_side_train_on_their_own_samples(
    data: Interactions, device: torch.device, training: Section
) -> None:
    """Each is what it is alone, with cohorts that change, small batches, and rows that few asked for."""
    task, clients, presets = din(Catalogue.of(data), seed=1), 5, ("cpp1", "cpp2", "cpp4")
    settings = settings_of(
        "cpp1",
        round={"clients": clients, "min_contributors": 2},
        training={"batch_size": 2, "epochs": 2, "learning_rate": 0.3, **training},
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


HOT = {
    "round": {"scheme": "hot"},
    "hot": {"bins": 0, "clip": 0.02, "surveys": 1},
    "server": HEAT | {"dense_step": "add"},
}
HOT_CASES: dict[str, dict[str, Section]] = {
    "no noise": {"privacy": {"epsilon": float("inf"), "participations": 2}},
    "rebuilt": {"privacy": {"epsilon": float("inf"), "participations": 2}, "training": REBUILD},
}


def hot_engines(
    data: Interactions, device: torch.device, sections: Mapping[str, Section]
) -> tuple[LocalEngine, ResidentRounds]:
    """Two engines of the same run, each on a store of its own."""
    settings = settings_of("cpp1", **HOT | sections)
    task, update = din(Catalogue.of(data), seed=1), settings.rules.update
    devices = {name: Device(task, data.client(user)) for user, name in enumerate(NAMES)}
    stores = [store_of(task, update.row_step.slots, update.dense_step.slots) for _ in range(2)]
    fleet, numbers = ResidentClients(compact(data), device), {name: at for at, name in enumerate(NAMES)}
    return LocalEngine(Simulation(task, devices, stores[0], settings, seed=0)), ResidentRounds(
        task, fleet, numbers, stores[1], settings, PRESETS["cpp1"], {}, clients=CLIENTS, seed=0
    )


@pytest.mark.usefixtures("in_turn")
@pytest.mark.parametrize("together", [5, 1000], ids=["in turns", "at once"])
@pytest.mark.parametrize("sections", HOT_CASES.values(), ids=HOT_CASES)
def test_rounds_over_hot_rows_are_those_of_plain_sums(
    data: Interactions,
    device: torch.device,
    sections: dict[str, Section],
    together: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rounds, "HOT_TOGETHER", together)
    monkeypatch.setattr(
        "sfsl.rounds.hot_server._LEVELS", 40_000
    )  # clients round by chance, and the device not
    engines = hot_engines(data, device, sections)
    states = [HotState(), HotState()]
    for _ in range(3):
        records = []
        for place, one in enumerate(engines):
            result = one.run(NAMES, hot=states[place])
            one.store.commit(result.commit)
            assert result.outcome is not None
            assert result.outcome.hot is not None
            states[place] = result.outcome.hot
            assert isinstance(result.plan, HotRound)
            records.append((result.tally.samples, result.tally.loss, result.plan.params.length))
        assert records[1] == pytest.approx(records[0], rel=1e-4)
        assert states[0].hot == states[1].hot
        assert states[1].clip == pytest.approx(states[0].clip, rel=1e-4)
        plain, resident = (one.store for one in engines)
        np.testing.assert_allclose(resident.read_dense().values, plain.read_dense().values, atol=TOLERANCE)
        for name in ("user", "item", "category"):
            np.testing.assert_allclose(all_rows(resident, name), all_rows(plain, name), atol=TOLERANCE)
    assert states[0].clip != 0.02, "some were cut, or nobody was, and the clip follows"


def test_noise_on_a_device_has_the_variance_of_all_clients_noise(
    data: Interactions, device: torch.device
) -> None:
    """And it is in what the round opens: counts of a survey are off by it, and by nothing else."""
    counts = []
    for epsilon in (float("inf"), 8.0):
        sections = {"privacy": {"epsilon": epsilon, "participations": 2}, "hot": {"bins": 0, "surveys": 2}}
        _, resident = hot_engines(data, device, sections)
        result = resident.run(NAMES, hot=HotState())
        assert isinstance(result.plan, HotRound)
        assert result.outcome is not None
        assert result.outcome.hot is not None
        counts.append(np.frombuffer(result.outcome.hot.counts, "<f8"))
    params = result.plan.params
    drawn = noise_words(params, CLIENTS, seed=0)
    np.testing.assert_allclose((counts[1] - counts[0]) * params.levels, drawn, atol=1e-6)
    assert drawn.std() == pytest.approx(params.deviation * CLIENTS**0.5, rel=0.05)
    assert noise_words(params, CLIENTS, seed=1).tolist() != drawn.tolist()
