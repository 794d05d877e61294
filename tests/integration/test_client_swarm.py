"""A swarm of real clients: the same sums as the local engine, and faults that are survived."""

import asyncio
import time
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from fake_server import FakeServer
from sfsl.carriers.local.engine import LocalEngine
from sfsl.client.device import Device
from sfsl.client.round import ClientModel
from sfsl.crypto.secret import Identity, SystemRandomness
from sfsl.data import hold_out_last
from sfsl.data.catalogue import Catalogue
from sfsl.data.synthetic import SyntheticSettings, SyntheticTaobao
from sfsl.models import din
from sfsl.models.package import build, describe, package_digest
from sfsl.privacy import PRESETS
from sfsl.rounds.exchanges import order
from sfsl.rounds.params import RoundRules, plan_round
from sfsl.simulate.chance import Chance
from sfsl.simulate.population import Simulation
from sfsl.simulate.settings import SimulationSettings
from sfsl.submodel import Averaging, MemoryStore, Quantization, RowSet, StoreSpec, UpdateParams
from sfsl.training import LocalSettings
from sfsl_research.swarm.faults import KINDS, LOSSES, NetworkFaults
from sfsl_research.swarm.swarm import Swarm, SwarmReport, SwarmSettings

CLIENTS, SEED = 6, 3
LOCAL = LocalSettings()


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


class World:
    """A fleet, the local engine on one store of it, and a fake server on another."""

    def __init__(self, **server: Any) -> None:
        data = SyntheticTaobao(SyntheticSettings().scaled(0.05, users=CLIENTS), seed=1).interactions()
        train, held_out = hold_out_last(data)
        task = din(Catalogue.of(train), seed=1)
        self.package = describe(task)
        self.devices = {
            f"u{user}": Device(task, train.client(user), held_out.client(user)) for user in train.clients
        }
        averaging = Averaging(weights="owners", kappa=2)
        rows, dense = (
            Quantization.finest("z32", cohort=CLIENTS, clip=1.0, max_weight=weight)
            for weight in (averaging.largest_weight(1000), 1000)
        )
        self.privacy = dict.fromkeys(self.devices, PRESETS["cpp2"])
        rules = RoundRules(
            update=UpdateParams(rows=rows, dense=dense, averaging=averaging),
            training=lambda number: {"rate": LOCAL.rate(number - 1)},
            min_contributors=2,
            bins=16,
        )
        self.settings = SimulationSettings(rules, LOCAL, self.privacy)
        self.task = task
        self.engine = LocalEngine(
            Simulation(task, self.devices, self.store(devices=True), self.settings, seed=SEED, alone=True)
        )
        cohort = sorted(self.devices)
        self.server = FakeServer(
            CLIENTS,
            lambda number: plan_round(
                rules,
                task.spec,
                number=number,
                clients=len(cohort),
                largest_set=self.engine.simulation.largest_set(cohort),
                seed=self.engine.simulation.union_seed(number),
                scores=None,
            ),
            self.store(),
            task.row_maps,
            model=package_digest(self.package),
            package=self.package,
            poll_s=2.0,
            **server,
        )

    def store(self, **options: Any) -> MemoryStore:
        spec = StoreSpec(model=self.task.spec, seed=bytes(32), **options)
        return MemoryStore(spec, dense=self.task.initial_dense())

    def swarm(self, rounds: int, **options: Any) -> Swarm:
        built = build(self.package)
        randomness = SystemRandomness()
        return Swarm(
            "http://server",
            ClientModel(package_digest(self.package), built.spec, built.row_maps),
            {name: Device(built, one.train, one.held_out) for name, one in self.devices.items()},
            {name: Identity.generate(randomness) for name in self.devices},
            self.privacy,
            Chance(built, self.devices, SEED),
            SwarmSettings(rounds=rounds, every=0, row_seed=bytes(32), local=LOCAL, pause_s=0.01, **options),
            plain=True,
            network=lambda: self.server.transport,
        )

    def run(self, swarm: Swarm, seconds: float = 60) -> SwarmReport:
        async def main() -> SwarmReport:
            async with asyncio.timeout(seconds):
                return await swarm.run()

        return asyncio.run(main())


def test_a_swarm_makes_the_model_of_the_local_engine_bit_by_bit() -> None:
    world = World()
    rounds = 2
    report = world.run(world.swarm(rounds))
    assert report.ended == {1: "committed", 2: "committed"}
    assert not report.failed
    for place in range(rounds):
        local = world.engine.run(sorted(world.devices))
        world.engine.simulation.store.commit(local.commit)
        remote = world.server.outcomes[place]
        assert local.outcome is not None
        assert len(remote.survivors) == CLIENTS
        for name, rows in local.outcome.union.items():
            assert np.array_equal(rows.rows, remote.union[name].rows)
        assert all(np.array_equal(*both) for both in zip(local.outcome.scores, remote.scores, strict=True))
    moved = 0
    for table in ("item", "category"):
        every = RowSet(np.arange(world.task.spec.table(table).rows))
        one, other = (
            store.read_rows(table, every).values
            for store in (world.server.store, world.engine.simulation.store)
        )
        assert np.array_equal(one, other)
        moved += np.count_nonzero(one != world.store().read_rows(table, every).values)
    assert moved > 100
    dense = world.server.store.read_dense().values
    assert np.array_equal(dense, world.engine.simulation.store.read_dense().values)
    assert not np.array_equal(dense, world.task.initial_dense())


def test_what_a_round_takes_by_exchange() -> None:
    world = World()
    start = time.perf_counter()
    report = world.run(world.swarm(2))
    took = time.perf_counter() - start
    found = report.exchanges()
    assert list(found) == list(order(active=False))
    for one in found.values():
        assert 0 < one["slowest"] < one["all"] < CLIENTS * one["slowest"]
        assert one["overhead"] == one["wall"] - one["slowest"]
    assert 0 < 2 * sum(one["wall"] for one in found.values()) < took
    work = [one["slowest"] for one in found.values()]
    assert max(work) == found["submodel"]["slowest"]  # it has the training in it


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in LOSSES])
def test_everyones_bad_network_costs_nobody_the_round(kind: str) -> None:
    """Each client is struck once in each round. It sends the same bytes again, and all stay in."""
    world = World()
    report = world.run(world.swarm(2, faults=NetworkFaults({kind: 1.0}, seed=1, delay_s=0.1)))
    assert report.ended == {1: "committed", 2: "committed"}
    assert [len(one.survivors) for one in world.server.outcomes[:2]] == [CLIENTS, CLIENTS]
    assert report.traffic.faults[kind] >= 2 * CLIENTS
    assert not report.failed
    answers: dict[str, set[bytes]] = {}
    for method, target, body in world.server.log:
        if method == "POST" and "/answer/" in target:
            answers.setdefault(target, set()).add(body)
    if kind != "corrupt":  # then the network, not the client, makes other bytes
        assert all(len(bodies) == 1 for bodies in answers.values())
