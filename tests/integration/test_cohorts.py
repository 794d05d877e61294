"""Several cohorts in one round: each on its own, and what they open averaged as one."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from rules import simulation_of
from sfsl.carriers.local.engine import LocalEngine
from sfsl.client.device import Device
from sfsl.data import hold_out_last
from sfsl.data.catalogue import Catalogue
from sfsl.data.synthetic import SyntheticSettings, SyntheticTaobao
from sfsl.models import logistic_regression
from sfsl.privacy import PRESETS
from sfsl.rounds.exchanges import ORDER
from sfsl.simulate.engine import RoundResult
from sfsl.simulate.population import Simulation
from sfsl.simulate.settings import FaultPlan
from sfsl.submodel import (
    Averaging,
    MemoryStore,
    Quantization,
    RowSet,
    StoreSpec,
    UpdateParams,
)
from sfsl.training import LocalSettings

CLIENTS = 24


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def world(cohorts: int, **options: Any) -> Simulation:
    data = SyntheticTaobao(SyntheticSettings().scaled(0.05, users=CLIENTS), seed=1).interactions()
    train, held_out = hold_out_last(data)
    task = logistic_regression(Catalogue.of(train))
    devices = {
        f"u{user:02}": Device(task, train.client(user), held_out.client(user)) for user in train.clients
    }
    assert len(devices) == CLIENTS
    store = MemoryStore(StoreSpec(model=task.spec, seed=bytes(32), devices=True), dense=task.initial_dense())
    averaging = Averaging(weights="samples", kappa=2)
    # Fine enough that another number of clients, and so of levels, makes no difference worth speaking of.
    rows = Quantization.finest("z64", cohort=CLIENTS // cohorts, clip=1.0, max_weight=1000)
    given = {"min_contributors": 1, "bins": 16, "together": 5, **options}
    settings = simulation_of(
        update=UpdateParams(rows=rows, dense=rows, averaging=averaging),
        local=LocalSettings(),
        privacy=dict.fromkeys(devices, PRESETS["cpp5"]),
        cohorts=cohorts,
        **given,
    )
    return Simulation(task, devices, store, settings, seed=3, alone=True)


def run(simulation: Simulation, rounds: int = 1) -> list[RoundResult]:
    engine, reports = LocalEngine(simulation), []
    for _ in range(rounds):
        reports.append(engine.run(sorted(simulation.devices)))
        simulation.store.commit(reports[-1].commit)
    return reports


def parameters(simulation: Simulation) -> np.ndarray:
    """All of the model, one behind the other."""
    parts = [
        simulation.store.read_rows(table.name, RowSet(np.arange(table.rows))).values.ravel()
        for table in simulation.task.tables
    ]
    return np.concatenate([*parts, simulation.store.read_dense().values])


@pytest.mark.parametrize("sums", ["masked", "plain"])
def test_cohorts_come_to_what_one_cohort_of_all_clients_does(sums: str) -> None:
    """Everyone trains all it has (cpp5) and no row is left out, so cohorts differ in rounding only."""
    one, three = world(1, sums="plain"), world(3, sums=sums)
    start = parameters(one)
    (whole,), (parts,) = run(one), run(three)
    assert np.abs(parameters(one) - start).max() > 0.01
    assert np.abs(parameters(one) - parameters(three)).max() < 1e-6
    assert whole.outcome is not None
    assert parts.outcome is not None
    assert parts.record.cohort == CLIENTS
    assert set(parts.outcome.survivors) == set(whole.outcome.survivors)
    assert parts.record.samples == whole.record.samples
    assert parts.record.loss == pytest.approx(whole.record.loss)
    for table, union in whole.outcome.union.items():
        assert np.array_equal(parts.outcome.union[table].rows, union.rows)
        # Fewer ask for a row: in another cohort they never heard of it.
        assert (parts.outcome.contributors[table] <= whole.outcome.contributors[table]).all()
        assert (parts.outcome.contributors[table] > 0).all()
    assert whole.outcome.scores is not None
    assert parts.outcome.scores is not None
    # Held-out samples are scored as far as a cohort's union has their rows.
    assert 0 < sum(map(np.sum, parts.outcome.scores)) <= sum(map(np.sum, whole.outcome.scores))


def test_masked_and_plain_cohorts_give_the_same_model_under_faults() -> None:
    faults = FaultPlan(dict.fromkeys(ORDER, 0.03), seed=2, late=0.02)
    worlds = [world(3, sums=sums, faults=faults, min_contributors=2) for sums in ("masked", "plain")]
    masked, plain = (run(one, 4) for one in worlds)
    assert any(report.record.cohorts_aborted for report in masked)
    assert any(report.record.cohorts_aborted == 0 for report in masked)
    for one, other in zip(masked, plain, strict=True):
        assert one.record.cohorts_aborted == other.record.cohorts_aborted
        assert (one.record.dropped, one.record.late) == (other.record.dropped, other.record.late)
        if one.outcome is not None and other.outcome is not None:
            assert one.outcome.survivors == other.outcome.survivors
    assert np.array_equal(parameters(worlds[0]), parameters(worlds[1]))


def test_a_cohort_that_aborts_adds_nothing_and_the_others_go_on() -> None:
    class OneCohort(FaultPlan):
        """All of the second cohort."""

        def vanish(self, round_number: int, exchange: str, clients: Any) -> set[str]:
            return set(clients) & set(names[1::3]) if exchange == "submodel" else set()

    simulation = world(3, faults=OneCohort())
    names = sorted(simulation.devices)
    (report,) = run(simulation)
    assert report.record.aborted is None
    assert report.record.cohorts_aborted == 1
    assert report.record.dropped["submodel"] == CLIENTS // 3
    assert report.outcome is not None
    assert set(report.outcome.survivors) == set(names[0::3]) | set(names[2::3])
    mine = {name: set(simulation.devices[name].personal["user"].tolist()) for name in names}
    touched = set(simulation.store.touched("user").rows.tolist())
    assert not any(touched & mine[name] for name in names[1::3])
    assert any(touched & mine[name] for name in names[0::3])


def test_a_round_aborts_when_all_cohorts_do() -> None:
    simulation = world(3, faults=FaultPlan({"inbound": 1.0}))
    before = parameters(simulation)
    (report,) = run(simulation)
    assert "6" in str(report.record.aborted), "the threshold of one cohort"
    assert report.record.cohorts_aborted == 3
    assert simulation.store.round == 1
    assert np.array_equal(parameters(simulation), before)


def test_who_trains_together_depends_on_the_cohort_alone() -> None:
    simulation = world(1, together=7)
    names = sorted(simulation.devices)
    groups = simulation.groups(names)
    assert groups == simulation.groups(names[::-1])
    assert [len(group) for group in groups] == [6, 6, 6, 6]
    assert sorted(name for group in groups for name in group) == names
    sizes = [[len(simulation.devices[name].train) for name in group] for group in groups]
    assert all(min(more) >= max(fewer) for more, fewer in pairwise(sizes))
