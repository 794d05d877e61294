"""Rounds on a cluster of real processes: the local engine's model bit for bit, and lost or lying workers.

The cluster is a head and two worker nodes, of three workers and of one: whoever loses the small node has
lost a quarter of its clients.
"""

import contextlib
import math
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ray = pytest.importorskip("ray")
torch = pytest.importorskip("torch")

import same_model
from clocks import PATIENCE
from ray_cluster import Cluster
from same_model import Vanishing
from sfsl.carriers.local.engine import LocalEngine
from sfsl.rounds.hot_server import HotRound
from sfsl.rounds.record import RoundRecord
from sfsl.run.fleet import Fleet, build_fleet, client_privacy
from sfsl.run.setup import resolved, simulation_settings
from sfsl.settings.rounds import store_spec
from sfsl.settings.run import RunConfig, from_sections
from sfsl.simulate.engine import RoundResult
from sfsl.simulate.population import Simulation
from sfsl.submodel import MemoryStore, RowSet
from sfsl_research.ray.cluster import ClusterSettings
from sfsl_research.ray.engine import RayEngine
from sfsl_research.ray.worker import Worker

# Ray warns of its own future, and leaves files to the garbage collector.
pytestmark = pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)

CLIENTS = 24
Gone = Mapping[tuple[int, str], Collection[str]]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    for module in (same_model, sys.modules[__name__]):  # workers cannot import what is here
        ray.cloudpickle.register_pickle_by_value(module)
    with Cluster(3, 1) as made:
        yield made


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def tiny(**changes: dict[str, Any]) -> RunConfig:
    sections: dict[str, dict[str, Any]] = {
        "data": {"users": 60, "scale": 0.02},
        "round": {"clients": CLIENTS, "bins": 16, "min_contributors": 2},
        "run": {"together": 6, "threads": 1},
        "server": {"row_step": "adam"},
    }
    for name, content in changes.items():
        sections[name] = sections.get(name, {}) | content
    return from_sections(sections)


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    return build_fleet(tiny())


def simulated(config: RunConfig, fleet: Fleet, gone: Gone | None = None) -> Simulation:
    config = resolved(config, fleet)
    store = MemoryStore(store_spec(config, fleet.task.spec, devices=True), fleet.task.initial_dense())
    settings = simulation_settings(config, client_privacy(config, sorted(fleet.devices)))
    if gone is not None:
        settings = replace(settings, faults=Vanishing(gone=gone))
    return Simulation(fleet.task, fleet.devices, store, settings, seed=config.run.seed)


@contextlib.contextmanager
def on_ray(
    simulation: Simulation, cluster: Cluster, clients: int = CLIENTS, **options: Any
) -> Iterator[RayEngine]:
    kind = options.pop("worker", Worker)
    settings = ClusterSettings(address=cluster.address, **{"gpus": 0, "workers": 4, **options})
    engine = RayEngine(simulation, settings, clients=clients, worker=kind)
    try:
        yield engine
    finally:
        engine.close()


def cohort_of(simulation: Simulation, number: int) -> list[str]:
    """Other clients in every round."""
    names = sorted(simulation.devices)
    count = CLIENTS * simulation.settings.cohorts
    return sorted((names + names)[7 * number :][:count])


def rounds(engine: Any, simulation: Simulation, count: int) -> list[RoundResult]:
    reports = []
    hot = None
    for _ in range(count):
        reports.append(engine.run(cohort_of(simulation, simulation.store.round), hot=hot))
        simulation.store.commit(reports[-1].commit)
        hot = hot if reports[-1].outcome is None else reports[-1].outcome.hot
    return reports


def require_same(one: Simulation, other: Simulation) -> None:
    """Every number of the stores: rows of all tables, optimizer state, dense part, and what was touched."""
    assert one.store.round == other.store.round
    mine, theirs = one.store.read_dense(), other.store.read_dense()
    assert mine.values.tobytes() == theirs.values.tobytes()
    assert len(one.store.touched("item"))
    for table in one.task.tables:
        assert np.array_equal(one.store.touched(table.name).rows, other.store.touched(table.name).rows)
        rows = RowSet(np.arange(table.rows))
        ours, others = (world.store.read_rows(table.name, rows) for world in (one, other))
        assert ours.values.tobytes() == others.values.tobytes()
        assert ours.state.tobytes() == others.state.tobytes()


def require_same_sums(one: RoundResult, other: RoundResult) -> None:
    assert one.record.aborted == other.record.aborted
    assert one.outcome is not None
    assert other.outcome is not None
    assert one.outcome.survivors == other.outcome.survivors
    assert one.outcome.applied.moved == other.outcome.applied.moved
    assert (one.record.samples, one.record.loss) == (other.record.samples, other.record.loss)
    for table, count in one.outcome.contributors.items():
        assert np.array_equal(count, other.outcome.contributors[table])
        assert np.array_equal(one.outcome.union[table].rows, other.outcome.union[table].rows)
    for histogram, twin in zip(one.outcome.scores or (), other.outcome.scores or (), strict=True):
        assert np.array_equal(histogram, twin)


def test_who_trains_together_matters_to_the_last_bit(fleet: Fleet) -> None:
    """Which is why groups are cut from the cohort, and not from what a worker has."""
    many_steps = {"batch_size": 2, "learning_rate": 1.0, "rebuild": 0.0}
    worlds = [simulated(tiny(run={"together": together}, training=many_steps), fleet) for together in (6, 24)]
    for world in worlds:
        rounds(LocalEngine(world), world, 1)
    one, other = (world.store.read_dense().values for world in worlds)
    assert one == pytest.approx(other, abs=1e-4)
    assert one.tobytes() != other.tobytes()


def hosted(engine: RayEngine, simulation: Simulation) -> dict[int, list[str]]:
    """Who will live in which process during the next round."""
    cohort, count = cohort_of(simulation, simulation.store.round), simulation.settings.cohorts
    groups = [simulation.groups(cohort[place::count]) for place in range(count)]
    found: dict[int, list[str]] = {}
    for parts in engine._divided(groups, engine._crew.ready()):
        for member, some in parts.items():
            assert member.place is not None
            found.setdefault(member.place.process, []).extend(name for group in some for name in group)
    return found


def kill_while_training(
    monkeypatch: pytest.MonkeyPatch, victim: int, kill: Any = None, cohorts: int = 1
) -> None:
    """A worker, when all cohorts have come so far and it has been told to train. It is stopped before, since
    on a slow machine it could be done for one cohort until somebody kills it."""
    from sfsl_research.ray import pool

    whole_train, whole_wait = pool.RayPool.train, ray.wait
    armed, here, told = [True], threading.Barrier(cohorts), threading.local()

    def train(self: Any, *given: Any) -> Any:
        here.wait(PATIENCE)
        with contextlib.suppress(ProcessLookupError):  # another cohort was here, and beyond
            os.kill(victim, signal.SIGSTOP)
        told.training = True
        return whole_train(self, *given)

    def wait(*given: Any, **options: Any) -> Any:
        if armed and getattr(told, "training", False):
            armed.clear()
            kill() if kill else os.kill(victim, signal.SIGKILL)
        return whole_wait(*given, **options)

    monkeypatch.setattr(pool.ray, "wait", wait)
    monkeypatch.setattr(pool.RayPool, "train", train)


def require_same_reports(one: RoundResult, other: RoundResult) -> None:
    require_same_sums(one, other)
    require_same_records(one.record, other.record)


def require_same_records(one: RoundRecord, other: RoundRecord) -> None:
    assert (one.dropped, one.late, one.declined) == (other.dropped, other.late, other.declined)
    assert other.client_seconds.keys() == other.bytes_up.keys() == one.bytes_up.keys()
    assert all(seconds > 0 for seconds in other.client_seconds.values())
    for exchange, size in one.bytes_up.items():  # names and keys of one length make messages of one length
        assert other.bytes_up[exchange] == pytest.approx(size, rel=0.01)


def test_one_by_one_it_is_the_model_that_networks_make(cluster: Cluster, fleet: Fleet) -> None:
    """HTTPS and Flower are held to the same local rounds: so all four engines agree."""
    cohorts = [sorted(fleet.devices)[:CLIENTS], sorted(fleet.devices)[-CLIENTS:]]
    simulation = same_model.one_by_one(tiny(), fleet)
    with on_ray(simulation, cluster) as engine:
        for cohort in cohorts:
            simulation.store.commit(engine.run(cohort).commit)
    same_model.require_same_stores(simulation.store, same_model.local_rounds(tiny(), fleet, cohorts))


@pytest.mark.parametrize("workers", [4, pytest.param(3, marks=pytest.mark.slow)])
def test_a_cluster_makes_the_local_engines_model_bit_for_bit_also_when_a_worker_is_killed(
    cluster: Cluster, fleet: Fleet, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two cohorts side by side, with faults. In the second round a worker dies, and its clients with it;
    in the third another one has its place."""
    config = tiny(round={"cohorts": 2, "threshold": 13})
    names = sorted(fleet.devices)
    gone = {(1, "inbound"): names[10:13], (2, "unmask-union"): names[20:22], (3, "submodel"): names[30:31]}
    spread = simulated(config, fleet, gone)
    with on_ray(spread, cluster, workers=workers) as engine:
        reports = rounds(engine, spread, 1)
        victim, lost = next(iter(hosted(engine, spread).items()))
        with monkeypatch.context() as patch:
            kill_while_training(patch, victim, cohorts=2)
            reports += rounds(engine, spread, 1)
        reports += rounds(engine, spread, 1)
        assert victim not in hosted(engine, spread)
        assert len(hosted(engine, spread)) == workers
    assert [report.record.workers_lost for report in reports] == [0, 1, 0]
    lost = [name for name in lost if name not in names[20:22]]  # those were gone by then
    assert reports[1].record.dropped["submodel"] == len(lost) >= 2 * CLIENTS // workers - 2
    assert reports[2].outcome is not None
    assert len(reports[2].outcome.survivors) >= 2 * CLIENTS - 1
    local = simulated(config, fleet, {**gone, (2, "submodel"): lost})
    for one, other in zip(rounds(LocalEngine(local), local, 3), reports, strict=True):
        require_same_reports(one, other)
    require_same(local, spread)


def test_rounds_over_hot_rows_make_the_local_engines_model_too(
    cluster: Cluster, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A survey and two rounds that train, without noise; a worker dies in the second of them. What everybody
    downloads is put into the object store once a round, and not with every message."""
    from sfsl_research.ray import pool

    config = tiny(round={"scheme": "hot"}, hot={"surveys": 1}, privacy={"epsilon": math.inf})
    names = sorted(fleet.devices)
    gone = {(1, "inbound"): names[10:12], (2, "inbound"): names[10:12]}
    spread = simulated(config, fleet, gone)
    put: list[Any] = []
    whole = ray.put
    monkeypatch.setattr(pool.ray, "put", lambda value: put.append(value) or whole(value))
    with on_ray(spread, cluster) as engine:
        put.clear()  # the population, once a run
        reports = rounds(engine, spread, 1)
        assert not put
        hot = reports[0].outcome.hot if reports[0].outcome else None
        for number in (2, 3):
            if number == 3:
                victim, lost = next(iter(hosted(engine, spread).items()))
                kill_while_training(monkeypatch, victim)
            reports.append(engine.run(cohort_of(spread, number - 1), hot=hot))
            spread.store.commit(reports[-1].commit)
            hot = reports[-1].outcome.hot if reports[-1].outcome else None
    assert [type(one).__name__ for one in put] == ["Published"] * 2
    assert reports[2].record.dropped["inbound"] == len(lost) >= 5
    local = simulated(config, fleet, {**gone, (3, "inbound"): lost})
    for one, other in zip(rounds(LocalEngine(local), local, 3), reports, strict=True):
        require_same_reports(one, other)
        assert one.outcome is not None
        assert other.outcome is not None
        assert one.outcome.hot == other.outcome.hot
    require_same(local, spread)


def test_every_client_on_a_cluster_adds_noise_of_its_own(cluster: Cluster, fleet: Fleet) -> None:
    """Noise comes from the operating system, so sums differ from the local engine's by as much as it says."""
    config = tiny(round={"scheme": "hot"}, hot={"surveys": 2}, privacy={"epsilon": 4.0, "participations": 2})
    spread = simulated(config, fleet)
    with on_ray(spread, cluster) as engine:
        (noisy,) = rounds(engine, spread, 1)
    local = simulated(tiny(round={"scheme": "hot"}, hot={"surveys": 2}, privacy={"epsilon": math.inf}), fleet)
    (exact,) = rounds(LocalEngine(local), local, 1)
    counts = [
        np.frombuffer(one.outcome.hot.counts) for one in (noisy, exact) if one.outcome and one.outcome.hot
    ]
    added, plan = counts[0] - counts[1], noisy.plan
    assert isinstance(plan, HotRound)
    deviation = plan.params.deviation / plan.params.levels * math.sqrt(CLIENTS)
    assert deviation > 1
    assert abs(added.mean()) < 5 * deviation / math.sqrt(len(added))
    assert np.std(added) == pytest.approx(deviation, rel=5 / math.sqrt(2 * len(added)))


@dataclass(frozen=True)
class Misdeed:
    """What a worker does that has ``client``, in one round at one exchange, and what it is called there."""

    exchange: str
    kind: str
    seen: str


MISDEEDS = {
    1: Misdeed("inbound", "garbage", "DecodeError"),
    2: Misdeed("union", "others", "UnexpectedSender"),
    3: Misdeed("submodel", "raises", "lost"),
    4: Misdeed("unmask-union", "hangs", "lost"),
    5: Misdeed("submodel", "personal", "lost"),
    6: Misdeed("check-in", "garbage", "DecodeError"),
    7: Misdeed("invitation", "nothing", "lost"),
    8: Misdeed("inbound", "repeats", "WrongPhase"),
}


class Misbehaving(Worker):
    """Does ``MISDEEDS`` while it has the first client of the cohort; the plan comes with the class."""

    plan: Any = None
    first: Any = None

    def check_in(self, key: str, number: int, groups: Any, *told: Any) -> Any:
        self.number = number
        self.bad = any(self.first[number] in group for group in groups)
        self.sent: dict[str, Any] = {}
        return self._done("check-in", super().check_in(key, number, groups, *told))

    def answer(self, key: str, exchange: str, frames: Mapping[str, bytes]) -> Any:
        return self._done(exchange, super().answer(key, exchange, frames))

    def train(self, key: str, frames: Mapping[str, bytes], personal: Any) -> Any:
        lessons = super().train(key, frames, personal)
        done = self._done("submodel", lessons.replies)
        if done == "personal":
            # Rows of other users, which are stored for their devices.
            moved = {
                name: replace(one, personal={t: ((r + 1) % 60, m) for t, (r, m) in one.personal.items()})
                for name, one in lessons.learned.items()
            }
            return replace(lessons, learned=moved)
        return replace(lessons, replies=done)

    def _done(self, exchange: str, replies: Any) -> Any:
        kind = self.plan.get((self.number, exchange)) if self.bad else None
        before = self.sent
        self.sent = replies
        names = list(replies)
        match kind:
            case "garbage":
                return {name: replace(one, frame=b"\x01garbage") for name, one in replies.items()}
            case "others":
                return {name: replies[names[place - 1]] for place, name in enumerate(names)}
            case "raises":
                raise RuntimeError("a broken worker")
            case "hangs":
                time.sleep(3600)
            case "personal":
                return "personal"
            case "nothing":
                return None
            case "repeats":
                return {name: before[name] for name in names}
        return replies


@pytest.mark.slow
def test_a_worker_that_lies_breaks_or_hangs_costs_its_own_clients_only(
    cluster: Cluster, fleet: Fleet
) -> None:
    """Every round another misdeed; the model is that of rounds in which its clients vanished."""
    spread = simulated(tiny(), fleet)
    Misbehaving.plan = {(number, one.exchange): one.kind for number, one in MISDEEDS.items()}
    Misbehaving.first = {number: cohort_of(spread, number - 1)[0] for number in MISDEEDS}
    gone: dict[tuple[int, str], list[str]] = {}
    reports = []
    with on_ray(spread, cluster, worker=Misbehaving, seconds=30.0) as engine:
        for number, misdeed in MISDEEDS.items():
            own = hosted(engine, spread).values()
            bad = next(names for names in own if Misbehaving.first[number] in names)
            exchange = "invitation" if misdeed.exchange == "check-in" else misdeed.exchange
            gone[number, exchange] = bad
            (report,) = rounds(engine, spread, 1)
            reports.append(report)
            assert report.record.aborted is None, (misdeed, report)
            if misdeed.seen == "lost":
                assert report.record.workers_lost == 1, misdeed
                assert report.record.dropped[misdeed.exchange] == len(bad)
                assert not report.record.declined
            else:
                assert report.record.workers_lost == 0, misdeed
                assert report.record.declined == {misdeed.seen: len(bad)}, misdeed
    local = simulated(tiny(), fleet, gone)
    for one, other in zip(rounds(LocalEngine(local), local, len(MISDEEDS)), reports, strict=True):
        require_same_sums(one, other)
    require_same(local, spread)


@pytest.mark.slow
def test_a_hundred_clients_on_two_nodes_of_which_one_is_killed(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The small node goes in mid-round, all its processes at once; the others do its work from then on, and
    when a new node joins it gets its part."""
    config = tiny(data={"users": 130}, round={"clients": 100}, run={"together": 25})
    crowd = build_fleet(config)
    spread, cohort = simulated(config, crowd), sorted(crowd.devices)[:100]

    def one_round(engine: Any, simulation: Simulation) -> RoundResult:
        report: RoundResult = engine.run(cohort)
        simulation.store.commit(report.commit)
        return report

    with Cluster(3, 1) as own, on_ray(spread, own, clients=100) as engine:
        small = own.nodes[1]
        (process,) = [one for one in own.processes(small) if one in _places(engine)]
        (parts,) = engine._divided([spread.groups(cohort)], engine._crew.ready())
        lost = [
            name
            for member, groups in parts.items()
            if member.place is not None and member.place.process == process
            for group in groups
            for name in group
        ]
        with monkeypatch.context() as patch:
            kill_while_training(patch, process, lambda: own.kill(small))
            first = one_round(engine, spread)
        second = one_round(engine, spread)
        left = _places(engine)
        own.add_node(1)
        third = one_round(engine, spread)
        again = _places(engine)
    assert len(lost) == 25
    assert (first.record.aborted, first.record.workers_lost) == (None, 1)
    assert first.record.dropped["submodel"] == 25
    assert first.outcome is not None
    assert set(first.outcome.survivors) == set(cohort) - set(lost)
    for report in (second, third):
        assert report.record.workers_lost == 0
        assert report.outcome is not None
        assert len(report.outcome.survivors) == 100
    assert (len(left), len(again)) == (3, 4)
    local = simulated(config, crowd, {(1, "submodel"): lost})
    here = LocalEngine(local)
    for report in (first, second, third):
        require_same_sums(one_round(here, local), report)
    require_same(local, spread)


def _places(engine: RayEngine) -> list[int]:
    return [one.place.process for one in engine._crew._members if one.place is not None and not one.lost]


@pytest.mark.slow
def test_a_run_goes_on_where_another_engine_left_it(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``sfsl run --engine ray``, stopped after two rounds and resumed on the local engine."""
    from sfsl.run import start
    from sfsl.service.folder import read_lines
    from sfsl.submodel import LmdbStore

    monkeypatch.setenv("RAY_ADDRESS", cluster.address)

    def go_on(runner: Any) -> None:
        with runner:
            runner.run(stop=lambda: False, seen=lambda line: None)

    sections = {"round": {"cohorts": 2}, "faults": {"inbound": 0.05}, "ray": {"workers": 4}}
    onray = {**sections, "run": {"engine": "ray", "rounds": 2, "evaluate_every": 1}}
    go_on(start.begin(tmp_path / "ray", tiny(**onray)))
    onlocal = {**sections, "run": {"engine": "local", "rounds": 3, "evaluate_every": 1}}
    go_on(start.resume(tmp_path / "ray", tiny(**onlocal)))
    go_on(start.begin(tmp_path / "local", tiny(**onlocal)))
    timed = ("client_seconds", "server_seconds", "training_seconds", "wall_seconds")
    for one, other in zip(
        *(read_lines(tmp_path / name / "metrics.jsonl") for name in ("ray", "local")), strict=True
    ):
        for field in one.__struct_fields__:
            assert field in timed or getattr(one, field) == getattr(other, field), field
    with LmdbStore.open(tmp_path / "ray/store") as one, LmdbStore.open(tmp_path / "local/store") as other:
        assert one.round == other.round == 3
        assert one.read_dense().values.tobytes() == other.read_dense().values.tobytes()
        for table in one.spec.tables:
            assert np.array_equal(one.touched(table.name).rows, other.touched(table.name).rows)
            mine, theirs = (store.read_rows(table.name, one.touched(table.name)) for store in (one, other))
            assert mine.values.tobytes() == theirs.values.tobytes()
            assert mine.state.tobytes() == theirs.state.tobytes()


@pytest.mark.slow
def test_a_cluster_of_our_own_is_gone_at_the_end_and_workers_without_room_are_not_waited_for(
    cluster: Cluster, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``cluster`` is there and not asked."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    before = set(Path(tempfile.gettempdir()).glob("sfsl-ray-*"))
    local, spread = simulated(tiny(), fleet), simulated(tiny(), fleet)
    settings = ClusterSettings(workers=4, cluster_cpus=2, memory_mb=100, gpus=0)
    engine = RayEngine(spread, settings, clients=CLIENTS)
    try:
        rounds(engine, spread, 1)
        assert len(_places(engine)) == 2
    finally:
        engine.close()
    assert not ray.is_initialized()
    assert set(Path(tempfile.gettempdir()).glob("sfsl-ray-*")) <= before
    rounds(LocalEngine(local), local, 1)
    require_same(local, spread)
