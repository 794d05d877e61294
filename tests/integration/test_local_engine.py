"""Rounds of a simulated fleet: DIN on made-up clicks, on the real protocol."""

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from sfsl.crypto.randomness import SystemRandomness  # noqa: E402
from sfsl.data import hold_out_last  # noqa: E402
from sfsl.data.synthetic import SyntheticSettings, SyntheticTaobao  # noqa: E402
from sfsl.engines.device import Device  # noqa: E402
from sfsl.engines.faults import EXCHANGES, FaultPlan  # noqa: E402
from sfsl.engines.local import LocalEngine, RoundSettings  # noqa: E402
from sfsl.errors import ParameterError  # noqa: E402
from sfsl.models import logistic_regression  # noqa: E402
from sfsl.privacy import PRESETS, IndexPrivacy  # noqa: E402
from sfsl.submodel import MemoryStore, Quantization, RowSet, StoreSpec, UpdateParams  # noqa: E402
from sfsl.training import LocalSettings, train_client  # noqa: E402

CLIENTS = 8


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def engine(privacy: IndexPrivacy, **options: Any) -> LocalEngine:
    data = SyntheticTaobao(SyntheticSettings().scaled(0.05, users=CLIENTS), seed=1).interactions()
    train, held_out = hold_out_last(data)
    task = logistic_regression(train)
    devices = {f"u{user}": Device(task, train.client(user), held_out.client(user)) for user in train.clients}
    store = MemoryStore(StoreSpec(model=task.spec, seed=bytes(32), devices=True), dense=task.initial_dense())
    update = UpdateParams(
        rows=Quantization.finest("z32", cohort=CLIENTS, clip=1.0, max_weight=1),
        dense=Quantization.finest("z32", cohort=CLIENTS, clip=1.0, max_weight=1000),
    )
    settings = RoundSettings(
        update=update,
        local=LocalSettings(),
        privacy=dict.fromkeys(devices, privacy),
        **{"min_contributors": 1, "bins": 16, **options},
    )
    return LocalEngine(task, devices, store, settings, SystemRandomness(), seed=3)


def test_a_round_moves_rows_by_what_the_clients_trained_alone() -> None:
    """cpp5 asks for the whole union, so every sample is trained; the sum is that of training one by one."""
    running = engine(PRESETS["cpp5"])
    dense = running.store.read_dense().values
    expected: dict[int, list[Any]] = {}
    users = set()
    for name, device in running.devices.items():
        asked = {table.name: RowSet(device.needed[table.name]) for table in running.task.spec.summed}
        values = {table: running.store.read_rows(table, rows).values for table, rows in asked.items()}
        download = type("Download", (), {"asked": asked, "rows": values, "dense": dense})
        work = running.work(name, 1, download)  # type: ignore[arg-type]
        update = train_client(running.task, dense, work, running.settings.local)
        users |= set(work.rows["user"].tolist())
        for row, move in zip(work.rows["item"].tolist(), update.rows["item"], strict=True):
            expected.setdefault(row, []).append(move)
    rows = RowSet(sorted(expected))
    before = running.store.read_rows("item", rows).values
    report = running.run(sorted(running.devices))
    assert running.store.round == 0
    running.store.commit(report.commit)
    assert report.aborted is None
    assert report.outcome is not None
    assert set(report.outcome.survivors) == set(running.devices)
    moved = running.store.read_rows("item", rows).values - before
    for place, row in enumerate(rows.rows.tolist()):
        average = np.sum(expected[row], axis=0) / max(len(expected[row]), 5)  # owners, kappa 5
        assert moved[place] == pytest.approx(average, abs=1e-5)
    assert running.store.round == 1
    assert set(running.store.touched("user").rows.tolist()) == users
    assert len(users) >= CLIENTS - 2


def test_rounds_go_on_through_dropouts_and_aborts() -> None:
    running = engine(PRESETS["cpp2"], faults=FaultPlan({"inbound": 0.15, "submodel": 0.15}, seed=5))
    cohort = sorted(running.devices)
    reports = []
    for _ in range(6):
        before = running.store.read_dense().values.copy()
        reports.append(running.run(cohort))
        running.store.commit(reports[-1].commit)
        unchanged = np.array_equal(running.store.read_dense().values, before)
        assert unchanged == (reports[-1].aborted is not None)
    done = [report for report in reports if report.aborted is None]
    assert 0 < len(done) < 6
    for report in reports:
        assert sum(report.dropped.values()) >= (0 if report.aborted is None else 3)
    last = done[-1]
    assert set(last.bytes_up) == {"check-in", *EXCHANGES}
    assert last.bytes_up["inbound"] > last.bytes_up["submodel"] > last.bytes_up["union"] > 0
    assert last.outcome is not None
    assert last.outcome.scores is not None
    assert np.isfinite(last.loss)


def test_a_fault_plan_repeats_itself() -> None:
    plan = FaultPlan({"inbound": 0.3}, seed=1)
    names = [f"c{i}" for i in range(200)]
    assert plan.vanish(4, "inbound", names) == plan.vanish(4, "inbound", names[::-1])
    assert plan.vanish(4, "inbound", names) != plan.vanish(5, "inbound", names)
    assert 30 < len(plan.vanish(4, "inbound", names)) < 90
    assert plan.vanish(4, "union", names) == set()
    for rates in ({"lunch": 0.1}, {"inbound": 1.5}):
        with pytest.raises(ParameterError):
            FaultPlan(rates)


def test_per_client_privacy_in_one_cohort() -> None:
    running = engine(PRESETS["cpp5"])
    cautious = sorted(running.devices)[0]
    privacy = {**running.settings.privacy, cautious: PRESETS["cpp1"]}
    object.__setattr__(running.settings, "privacy", privacy)
    report = running.run(sorted(running.devices))
    assert report.outcome is not None
    union = len(report.outcome.union["item"])
    own = len(running.devices[cautious].needed["item"])
    assert report.outcome.contributors["item"].sum() == (CLIENTS - 1) * union + own
