"""A fleet on a device does what ``plain`` does: the same samples kept, the same sums, the same model."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pytest
import torch

from sfsl.carriers.local.engine import LocalEngine
from sfsl.client.device import Device
from sfsl.crypto.secret import SystemRandomness
from sfsl.data.catalogue import Catalogue
from sfsl.data.interactions import Interactions
from sfsl.errors import InputError, ParameterError
from sfsl.models import din, logistic_regression
from sfsl.privacy import PRESETS, IndexPrivacy
from sfsl.run.fleet import Interacted
from sfsl.simulate.engine import RoundResult
from sfsl.simulate.population import Simulation
from sfsl.simulate.settings import FaultPlan, SimulationSettings
from sfsl.submodel import Averaging, MemoryStore, Quantization, RowSet, ServerStep, UpdateParams, WeightedSums
from sfsl.submodel.update import evidence
from sfsl.training import auc, score_samples
from sfsl.training.task import Task
from sfsl_research.experiments.centralized import CentralizedEngine, CentralSettings
from sfsl_research.experiments.resident_central import ResidentCentral
from sfsl_research.resident import Arm, Figures, ResidentClients, ResidentEngine, ResidentModel
from sfsl_research.resident.answers import Answers, Union, client_keys
from sfsl_research.resident.compact import compact
from sfsl_research.resident.model import Moved, averaged, decoded, encoded, row_moves, stepped
from sfsl_research.resident.rounds import ResidentRounds
from sfsl_research.resident.scoring import ResidentTest
from small_fleet import CLIENTS, DEVICES, NAMES, all_rows, interactions, settings_of, store_of


@pytest.fixture(scope="module")
def data() -> Interactions:
    return interactions()


@pytest.fixture(scope="module", params=DEVICES)
def fleet(data: Interactions, request: pytest.FixtureRequest) -> ResidentClients:
    return ResidentClients(compact(data), torch.device(request.param))


@dataclass
class Both:
    """One round of each engine from the same model."""

    settings: SimulationSettings
    store: MemoryStore
    report: RoundResult
    model: ResidentModel
    figures: Figures


def both(
    data: Interactions, fleet: ResidentClients, task: Task, preset: str, **sections: Mapping[str, object]
) -> Both:
    settings = settings_of(preset, **sections)
    devices = {name: Device(task, data.client(user)) for user, name in enumerate(NAMES)}
    slots = settings.rules.update.row_step.slots
    store = store_of(task, slots)
    report = LocalEngine(Simulation(task, devices, store, settings, seed=0)).run(NAMES)
    assert report.record.aborted is None
    store.commit(report.commit)
    model = ResidentModel(task, store_of(task, slots), fleet.device)
    arm = Arm("one", model, settings, PRESETS[preset])
    engine = ResidentEngine(fleet, [arm], clients=CLIENTS, seed=0)
    (figures,) = engine.run(1, np.arange(CLIENTS))
    return Both(settings, store, report, model, figures)


def assert_same(task: Task, found: Both) -> None:
    update = found.settings.rules.update
    for table in task.tables:
        expected = all_rows(found.store, table.name)
        assert np.abs(expected - all_rows(store_of(task), table.name)).max() > 1e-5  # it moved at all
        tolerance = 2 * update.rows.unit * update.row_step.rate + 1e-6
        np.testing.assert_allclose(found.model.tables[table.name][:-1].cpu(), expected, atol=tolerance)
    dense = found.store.read_dense().values
    np.testing.assert_allclose(found.model.dense.cpu(), dense, atol=4 * update.dense.unit + 1e-6)


@pytest.mark.parametrize("weights", ["owners", "samples"])
@pytest.mark.parametrize("preset", ["cpp1", "cpp5"])
def test_a_round_is_that_of_plain_sums(
    data: Interactions, fleet: ResidentClients, preset: str, weights: str
) -> None:
    task = din(Catalogue.of(data), seed=1)
    found = both(data, fleet, task, preset, server={"weights": weights})
    assert_same(task, found)
    report, outcome = found.report, found.report.outcome
    assert outcome is not None
    assert int(found.figures.samples) == report.record.samples
    assert float(found.figures.loss) / report.record.samples == pytest.approx(report.record.loss, rel=1e-4)
    for name, table in found.figures.tables.items():
        assert np.array_equal(table.union[table.real].cpu(), outcome.union[name].rows)
        assert int(table.moved.sum()) == outcome.applied.moved[name]


def test_a_full_model_round_is_that_of_plain_sums(data: Interactions, fleet: ResidentClients) -> None:
    task = din(Catalogue.of(data), seed=1)
    assert_same(task, both(data, fleet, task, "cpp5", round={"scheme": "fl", "sums": "auto"}))


def test_rows_with_few_contributors_are_left_out_alike(data: Interactions, fleet: ResidentClients) -> None:
    task = logistic_regression(Catalogue.of(data))
    found = both(data, fleet, task, "cpp1", round={"min_contributors": 2})
    assert_same(task, found)
    outcome = found.report.outcome
    assert outcome is not None
    for name, table in found.figures.tables.items():
        opened = int(table.opened.sum())
        assert opened == np.count_nonzero(outcome.contributors[name])
        assert 0 < opened < int(table.real.sum())


def test_requests_of_others_open_a_row(data: Interactions, fleet: ResidentClients) -> None:
    found = both(
        data, fleet, logistic_regression(Catalogue.of(data)), "cpp5", round={"min_contributors": CLIENTS}
    )
    for table in found.figures.tables.values():
        assert torch.equal(table.opened, table.real)


def test_models_side_by_side_are_those_of_each_alone(data: Interactions, fleet: ResidentClients) -> None:
    task = din(Catalogue.of(data), seed=1)
    settings = settings_of("cpp1")

    def models(presets: list[str]) -> list[ResidentModel]:
        made = [ResidentModel(task, store_of(task), fleet.device) for _ in presets]
        arms = [Arm(name, one, settings, PRESETS[name]) for name, one in zip(presets, made, strict=True)]
        engine = ResidentEngine(fleet, arms, clients=CLIENTS, seed=0)
        for number in (1, 2):
            engine.run(number, np.arange(CLIENTS))
        return made

    together, alone = models(["cpp1", "cpp5"]), [models(["cpp1"])[0], models(["cpp5"])[0]]
    for one, other in zip(together, alone, strict=True):
        for name in one.tables:
            tolerance = 4 * settings.rules.update.rows.unit + 1e-5  # a GPU adds up in another order
            np.testing.assert_allclose(
                one.tables[name][:-1].cpu(), other.tables[name][:-1].cpu(), atol=tolerance
            )


def test_models_differ_by_their_settings_and_not_by_what_was_drawn(
    data: Interactions, fleet: ResidentClients
) -> None:
    """cpp5 asks for more rows than cpp1 and learns nothing from them (paper §V: one curve)."""
    task, settings = din(Catalogue.of(data), seed=1), settings_of("cpp1", training={"batch_size": 2})
    one, other, third = made = [ResidentModel(task, store_of(task), fleet.device) for _ in range(3)]
    presets = ("cpp1", "cpp5", "cpp4")
    arms = [Arm(name, model, settings, PRESETS[name]) for name, model in zip(presets, made, strict=True)]
    engine = ResidentEngine(fleet, arms, clients=CLIENTS, seed=0)
    for number in (1, 2):
        engine.run(number, np.arange(CLIENTS))
    tolerance = 4 * settings.rules.update.rows.unit + 1e-5  # places in one batch differ in the last bit
    apart = {"cpp5": 0.0, "cpp4": 0.0}
    for name, table in one.tables.items():
        for preset, model in (("cpp5", other), ("cpp4", third)):
            apart[preset] = max(apart[preset], float((table - model.tables[name]).abs().max()))
    assert apart["cpp5"] <= tolerance < apart["cpp4"]


def test_samples_are_kept_as_a_client_keeps_them(data: Interactions, fleet: ResidentClients) -> None:
    rng = np.random.default_rng(5)
    cohort = fleet.cohort(np.arange(CLIENTS))
    asked = {"item": torch.from_numpy(rng.random(len(cohort.rows["item"].row)) < 0.7).to(fleet.device)}
    kept = fleet.keep(cohort, asked)
    for place, user in enumerate(cohort.chosen):
        own = cohort.rows["item"].client == place
        rows = cohort.rows["item"].row[own][asked["item"][own]].cpu().numpy()
        expected = data.client(int(user)).keep({"item": rows})
        mine = (cohort.client == place) & kept.keep
        assert int(mine.sum()) == len(expected) < int((cohort.client == place).sum())
        local = expected.local_columns(data.client(int(user)).rows())
        for name, column in local.items():
            found = kept.columns[name][mine].cpu().numpy()
            width = column.shape[1:]
            np.testing.assert_array_equal(found[:, : width[0]] if width else found, column)


def test_all_columns_with_the_models_rows(data: Interactions, fleet: ResidentClients) -> None:
    places = np.random.default_rng(0).integers(len(data), size=40)
    expected = data.samples(places).columns
    for name, there in fleet.everywhere(torch.from_numpy(places).to(fleet.device)).items():
        found = there.cpu()
        width = expected[name].shape[1:]
        np.testing.assert_array_equal(found[:, : width[0]] if width else found, expected[name])


def test_columns_are_as_wide_as_the_longest_history(data: Interactions) -> None:
    longest = int((data.history_stop - data.history_start).max())
    assert 3 < longest < 50
    assert [compact(data, most).longest for most in (3, 50, 1000)] == [3, longest, longest]
    first = data.select(data.history_stop == data.history_start)
    assert compact(first).longest == 1


def test_a_union_without_asking_how_large_it_is() -> None:
    union = Union.of(torch.tensor([7, 3, 7, 9, 3]), filler=10)
    assert union.rows.tolist() == [3, 7, 9, 10, 10]
    assert union.rows[union.at].tolist() == [7, 3, 7, 9, 3]
    assert union.real.tolist() == [True, True, True, False, False]


def answers(fleet: ResidentClients, privacy: IndexPrivacy, seed: int, period: int = 0) -> Answers:
    four = [[privacy.p1, privacy.p2, privacy.p3, privacy.p4]]
    chances = torch.tensor(four, dtype=torch.float64, device=fleet.device)
    generator = torch.Generator(fleet.device).manual_seed(seed)
    keys = client_keys(torch.arange(CLIENTS, device=fleet.device), 0, period)
    return Answers(keys, chances.expand(CLIENTS, 4), generator)


def test_answers_come_with_their_probabilities(fleet: ResidentClients) -> None:
    privacy = IndexPrivacy(0.9, 0.2, 0.8, 0.1)
    rows = fleet.cohort(np.arange(CLIENTS)).rows["item"]
    union = Union.of(rows.row, filler=10**6)
    own, others, pairs = [], [], 0
    for seed in range(60):
        drawn = answers(fleet, privacy, seed, period=seed)
        own.append(drawn.about_own(rows).double().mean())
        for yes in drawn.about_union(rows, union, torch.zeros_like(rows.row, dtype=torch.bool)):
            others.append(yes.sum())
    pairs = 60 * (CLIENTS * int(union.real.sum()) - len(rows.row))
    assert float(torch.stack(own).mean()) == pytest.approx(privacy.p5, abs=0.01)
    assert float(torch.stack(others).sum()) / pairs == pytest.approx(privacy.p6, abs=0.01)


def test_permanent_answers_last_for_a_period(fleet: ResidentClients) -> None:
    rows = fleet.cohort(np.arange(CLIENTS)).rows["item"]
    lasting = IndexPrivacy(0.5, 0.5, 1, 0)
    first, again = (answers(fleet, lasting, seed).about_own(rows) for seed in (1, 2))
    assert torch.equal(first, again)
    other = answers(fleet, lasting, 1, period=1).about_own(rows)
    assert 0.3 < float((first != other).double().mean()) < 0.7


@pytest.mark.parametrize(
    ("kind", "pull"), [("add", 0), ("adagrad", 0), ("adam", 0), ("heat", 0), ("heat", 0.6), ("heat", 2.5)]
)
def test_server_steps_are_those_of_the_stores(kind: str, pull: float) -> None:
    rng = np.random.default_rng(1)
    step = ServerStep(kind=kind, rate=0.7, pull=pull)
    values = rng.standard_normal((5, 3)).astype(np.float32)
    state = np.abs(rng.standard_normal((5, step.slots, 3))).astype(np.float32)
    moves = rng.standard_normal((5, 3))
    state[1] = moves[2] = 0  # nothing said before, and nothing said now
    expected = step.apply(values, state, moves)
    found = stepped(step, *(torch.from_numpy(one) for one in (values, state, moves)))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_evidence_is_that_of_the_server() -> None:
    rng = np.random.default_rng(3)
    values, weights = rng.standard_normal((6, 4)), np.array([3, 0, 1, 9, 2, 1])
    how = Quantization(ring="z32", cohort=9, clip=1.0, levels=1000, max_weight=1)
    update = UpdateParams(rows=how, dense=how, row_step=ServerStep(kind="heat", rate=0.3, tau=10))
    found = row_moves(torch.from_numpy(values), torch.from_numpy(weights), update)
    np.testing.assert_allclose(found, evidence(WeightedSums(values, weights, 0)))


@pytest.mark.parametrize("max_move", [None, 0.05])
@pytest.mark.parametrize("kappa", [5, 5.3])
def test_sums_and_averages_are_those_of_the_server(kappa: float, max_move: float | None) -> None:
    rng = np.random.default_rng(2)
    how = Quantization(ring="z32", cohort=9, clip=1.0, levels=1000, max_weight=50)
    words = rng.integers(-(10**5), 10**5, (7, 4))
    weights = np.array([0, 1, 10, 50, 449, 451, 3])
    clients = np.array([9, 9, 9, 1, 9, 9, 9])
    total = np.column_stack([words, weights]).astype(np.uint32)
    expected = how.decode(total, clients)
    averaging = Averaging(weights="samples", kappa=kappa, max_move=max_move)
    sums = Moved(torch.from_numpy(words), torch.from_numpy(weights))
    values, found = decoded(sums, how, torch.from_numpy(clients))
    np.testing.assert_array_equal(values, expected.values)
    np.testing.assert_array_equal(found, expected.weights)
    moves = averaging.moves(WeightedSums(expected.values, expected.weights, 0))
    np.testing.assert_allclose(averaged(values, found, averaging), moves, rtol=1e-12)


def test_rounding_is_unbiased_and_to_a_neighbour() -> None:
    how = Quantization(ring="z32", cohort=9, clip=1.0, levels=10, max_weight=5)
    deltas = torch.tensor([[0.123, -0.377, 2.0, -2.0]]).expand(4000, 4)
    weights = torch.full((4000,), 8)
    words, capped = encoded(deltas, weights, how, torch.Generator().manual_seed(1))
    assert capped.unique().tolist() == [5]
    expected = torch.tensor([6.15, -18.85, 50, -50], dtype=torch.float64)
    assert torch.all((words - expected).abs() < 1)
    np.testing.assert_allclose(words.double().mean(0), expected, atol=0.05)
    assert how.encode(deltas[:1].numpy(), [8], SystemRandomness())[0, -1] == 5  # as clients do


@pytest.mark.parametrize(("optimizer", "rate", "tolerance"), [("sgd", 0.5, 1e-6), ("adam", 0.01, 1e-4)])
def test_central_steps_are_those_of_the_centralized_engine(
    data: Interactions,
    fleet: ResidentClients,
    optimizer: Literal["sgd", "adam"],
    rate: float,
    tolerance: float,
) -> None:
    task = din(Catalogue.of(data), seed=1)
    settings = CentralSettings(len(data), optimizer, len(data), rate, 0.9, 0.1)
    store = store_of(task, settings.slots)
    engine = CentralizedEngine(task, Interacted(data, 50), store, settings, seed=0)
    for number in range(2):
        with pytest.raises(RuntimeError, match="meta"):  # where there is nothing to compute with
            engine.on("meta").run()
        report = (engine.on(str(fleet.device)) if number else engine).run()
        store.commit(report.commit)
    model = ResidentModel(task, store_of(task, settings.slots), fleet.device)
    central = ResidentCentral(fleet, model, settings, seed=0)
    figures = [central.run(number) for number in (1, 2)]
    assert int(figures[1].samples) == report.record.samples < len(data)  # some have no history
    assert float(figures[1].loss) / report.record.samples == pytest.approx(report.record.loss, rel=1e-4)
    for table in task.tables:
        np.testing.assert_allclose(
            model.tables[table.name][:-1].cpu(), all_rows(store, table.name), atol=tolerance
        )
    np.testing.assert_allclose(model.dense.cpu(), store.read_dense().values, atol=tolerance)


def test_central_epochs_have_all_samples_each_in_its_own_order(
    data: Interactions, fleet: ResidentClients
) -> None:
    """Three epochs in four rounds and a bit."""
    task, samples = logistic_regression(Catalogue.of(data)), len(data) * 3 // 4
    model = ResidentModel(task, store_of(task), fleet.device)
    central = ResidentCentral(fleet, model, CentralSettings(samples, "sgd", 64, 0.1, 1.0, 0.1), seed=0)
    taken = []
    for number in range(1, 6):
        central.run(number)
        taken.append(central._order.flatten()[:samples].cpu().clone())
    epochs = torch.cat(taken)[: 3 * len(data)].reshape(3, -1)
    assert torch.equal(epochs.sort(dim=1).values, torch.arange(len(data)).expand(3, -1))
    assert not any(torch.equal(epochs[one], epochs[other]) for one, other in ((0, 1), (0, 2), (1, 2)))


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_central_steps_without_a_usable_sample_change_nothing(
    data: Interactions, fleet: ResidentClients, optimizer: Literal["sgd", "adam"]
) -> None:
    task = logistic_regression(Catalogue.of(data))
    first = data.select(data.history_stop == data.history_start)
    settings = CentralSettings(len(first), optimizer, 2, 0.1, 1.0, 0.1)
    model = ResidentModel(task, store_of(task, settings.slots), fleet.device)
    before = model.state()
    figures = ResidentCentral(ResidentClients(compact(first), fleet.device), model, settings, seed=0).run(1)
    assert (int(figures.samples), int(figures.diverged)) == (0, 0)
    assert len(first) > 0
    for name, one in model.state().items():
        np.testing.assert_array_equal(one, before[name], name)


def test_central_training_that_ends_beyond_all_numbers_has_diverged(
    data: Interactions, fleet: ResidentClients
) -> None:
    """The one loss is that of the model as it began."""
    task = logistic_regression(Catalogue.of(data))
    model = ResidentModel(task, store_of(task), fleet.device)
    settings = CentralSettings(len(data), "sgd", len(data), float("inf"), 1.0, 0.1)
    figures = ResidentCentral(fleet, model, settings, seed=0).run(1)
    assert torch.isfinite(figures.loss)
    assert int(figures.diverged) == 1


def test_steps_without_a_sample_leave_the_loss_of_those_before_them(
    data: Interactions, fleet: ResidentClients
) -> None:
    """After the one step that diverges, another has no usable sample. A GPU always has some of those, as its
    graph holds eight steps; here a batch of one without a history is such a step. In about half of the orders
    it comes last; where it comes first, an infinite rate times nothing spoils the model before the loss."""
    first = data.history_stop == data.history_start
    two = np.zeros(len(data), bool)
    two[[np.flatnonzero(first)[0], np.flatnonzero(~first)[0]]] = True
    some = ResidentClients(compact(data.select(two)), fleet.device)
    task, settings = (
        logistic_regression(Catalogue.of(data)),
        CentralSettings(2, "sgd", 1, float("inf"), 1.0, 0.1),
    )
    losses = []
    for seed in range(8):
        model = ResidentModel(task, store_of(task), fleet.device)
        figures = ResidentCentral(some, model, settings, seed=seed).run(1)
        assert (int(figures.samples), int(figures.diverged)) == (1, 1)
        losses.append(float(figures.loss))
    assert 0 < np.isfinite(losses).sum() < 8


def test_central_adam_learns(data: Interactions, fleet: ResidentClients) -> None:
    task = din(Catalogue.of(data), seed=1)
    model = ResidentModel(task, store_of(task, slots=2), fleet.device)
    central = ResidentCentral(fleet, model, CentralSettings(len(data), "adam", 16, 0.01, 1.0, 0.1), seed=0)
    losses = [float(central.run(number).loss) for number in range(1, 7)]
    assert losses[-1] < 0.9 * losses[0]


def test_the_auc_is_that_of_the_scores(data: Interactions, fleet: ResidentClients) -> None:
    task = din(Catalogue.of(data), seed=1)
    store = store_of(task)
    model = ResidentModel(task, store, fleet.device)
    test = ResidentTest(task, Interacted(data, 50), fleet.device, most=10**6, seed=0)
    samples = data.samples(np.arange(len(data)))
    rows = task.needed_rows(samples)[0]
    values = {name: store.read_rows(name, RowSet(one)).values for name, one in rows.items()}
    scores = score_samples(task, store.read_dense().values, rows, values, samples)
    # An untrained model's scores lie close together: a GPU's last bits change the order of some.
    tolerance = 1e-3 if fleet.device.type == "cuda" else 1e-6
    assert test.auc(model) == pytest.approx(auc(scores, data.label), abs=tolerance)
    assert len(ResidentTest(task, Interacted(data, 50), fleet.device, most=10, seed=0)) == 10


def test_without_test_samples_there_is_no_auc(data: Interactions, fleet: ResidentClients) -> None:
    task = din(Catalogue.of(data), seed=1)
    nothing = Interacted(data.select(np.zeros(len(data), bool)), 50)
    test = ResidentTest(task, nothing, fleet.device, most=10, seed=0)
    assert np.isnan(test.auc(ResidentModel(task, store_of(task), fleet.device)))


def test_a_run_on_a_device_commits_what_moved(data: Interactions, fleet: ResidentClients) -> None:
    task = din(Catalogue.of(data), seed=1)
    store, settings = store_of(task), settings_of("cpp2")
    test = ResidentTest(task, Interacted(data, 50), fleet.device, most=10**6, seed=0)
    numbers = {name: place for place, name in enumerate(NAMES)}
    rounds = ResidentRounds(
        task, fleet, numbers, store, settings, PRESETS["cpp2"], {"test": test}, clients=CLIENTS, seed=0
    )
    for _ in range(2):
        report = rounds.run(NAMES)
        store.commit(report.commit)
    assert store.round == 2
    for table in task.tables:
        np.testing.assert_array_equal(
            all_rows(store, table.name), rounds._model.tables[table.name][:-1].cpu()
        )
    assert report.outcome is not None
    assert report.outcome.applied.moved["item"] == len(report.commit.tables["item"].rows)
    assert 0 < (rounds.evaluate().auc or 0) < 1


def test_what_a_device_cannot_do_is_refused(data: Interactions, fleet: ResidentClients) -> None:
    task = din(Catalogue.of(data), seed=1)
    model = ResidentModel(task, store_of(task), fleet.device)
    faulty = replace(settings_of("cpp1"), faults=FaultPlan({"union": 0.1}))
    with pytest.raises(ParameterError, match="faults"):
        Arm("faulty", model, faulty, PRESETS["cpp1"])
    with pytest.raises(ParameterError, match="full models"):
        Arm("by data set", model, settings_of("cpp1", server={"weights": "dataset"}), PRESETS["cpp1"])
    arms = [
        Arm(str(size), model, settings_of("cpp1", training={"batch_size": size}), PRESETS["cpp1"])
        for size in (2, 4)
    ]
    with pytest.raises(ParameterError, match="share"):
        ResidentEngine(fleet, arms, clients=CLIENTS, seed=0)
    engine = ResidentEngine(fleet, arms[:1], clients=3, seed=0)
    for chosen, found in (
        ([0, 1], "2 were"),
        ([0, 1, 1], "3 were chosen, 2 of them"),
        ([0, 1, 2, 3], "4 were"),
    ):
        with pytest.raises(InputError, match=f"3 different clients; {found}"):
            engine.run(1, np.array(chosen))


@pytest.mark.skipif("cuda" not in DEVICES, reason="needs a GPU")
@pytest.mark.filterwarnings("default")  # compiling imports parts of torch that warn about themselves
@pytest.mark.parametrize("compiled", [False, True])
def test_clients_in_two_lanes_learn_as_in_one(
    data: Interactions, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, settings = din(Catalogue.of(data), seed=1), settings_of("cpp1", training={"batch_size": 2})

    def moved(longest: float, compiled: bool) -> ResidentModel:
        monkeypatch.setattr("sfsl.training.graphs._LONGEST", longest)
        fleet = ResidentClients(compact(data), torch.device("cuda"))
        model = ResidentModel(task, store_of(task), fleet.device)
        arm = Arm("one", model, settings, PRESETS["cpp1"])
        ResidentEngine(fleet, [arm], clients=CLIENTS, seed=0, compiled=compiled).run(1, np.arange(CLIENTS))
        return model

    one, two = moved(0.0, False), moved(0.7, compiled)
    for name in one.tables:
        tolerance = 2 * settings.rules.update.rows.unit + 1e-5
        np.testing.assert_allclose(two.tables[name][:-1].cpu(), one.tables[name][:-1].cpu(), atol=tolerance)
    tolerance = 4 * settings.rules.update.dense.unit + 1e-5
    np.testing.assert_allclose(two.dense.cpu(), one.dense.cpu(), atol=tolerance)


@pytest.mark.skipif("cuda" not in DEVICES, reason="needs a GPU")
@pytest.mark.filterwarnings("default")  # the mode that looks for it is a prototype, and says so
@pytest.mark.parametrize("compiled", [False, True])
def test_nothing_in_a_round_waits_for_a_gpu(data: Interactions, compiled: bool) -> None:
    task, gpu = din(Catalogue.of(data), seed=1), torch.device("cuda")
    there = ResidentClients(compact(data), gpu)
    settings = settings_of("cpp2", training={"batch_size": 2}, round={"min_contributors": 2})
    models = [ResidentModel(task, store_of(task), gpu) for _ in range(2)]
    arms = [Arm(str(place), one, settings, PRESETS["cpp2"]) for place, one in enumerate(models)]
    engine = ResidentEngine(there, arms, clients=CLIENTS, seed=0, compiled=compiled)
    engine.prepare()
    engine.run(1, np.arange(CLIENTS))
    torch.cuda.set_sync_debug_mode("error")
    try:
        figures = engine.run(2, np.arange(CLIENTS))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(0 < float(one.loss) / int(one.samples) < 1 for one in figures)
