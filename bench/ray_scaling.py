"""The same rounds on one worker of a Ray cluster, on two, and in one process; and where the time goes.

    python bench/ray_scaling.py --clients 100 --rounds 5 --set data.scale=1 --set run.together=25

One cluster on this machine, all engines in one run and in turn, so that a busy machine is busy for all. Says
how much faster two workers are, the serial fraction that follows by Amdahl's law, and what of a round nobody
can share: the server's computing, the store, messages on their way. Prints JSON; the exit status is 1 if the
engines' models differ in a single bit.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import ray
import torch

from sfsl.carriers.local.engine import LocalEngine, PopulationEngine
from sfsl.run.fleet import Fleet, build_fleet, client_privacy
from sfsl.run.planning import choose_cohort
from sfsl.run.setup import resolved, simulation_settings
from sfsl.settings.rounds import store_spec
from sfsl.settings.run import RunConfig, from_sections
from sfsl.settings.toml import overridden
from sfsl.simulate.engine import RoundResult
from sfsl.simulate.population import Simulation
from sfsl.submodel import MemoryStore, RowSet
from sfsl_research.ray.cluster import ClusterSettings, Connection
from sfsl_research.ray.engine import RayEngine
from sfsl_research.ray.pool import RayPool
from sfsl_research.ray.worker import Worker

_DEFAULTS: dict[str, dict[str, Any]] = {
    "data": {"users": 300, "scale": 0.1},
    "run": {"together": 25},
}


class Waiting:
    """Wall seconds in which the driver waits for workers, added up over all exchanges."""

    def __init__(self) -> None:
        self.seconds = 0.0
        ask = RayPool._ask

        def timed(hosts: RayPool, *given: Any) -> Any:
            start = time.perf_counter()
            try:
                return ask(hosts, *given)
            finally:
                self.seconds += time.perf_counter() - start

        setattr(RayPool, "_ask", timed)  # noqa: B010 -- a name that a type checker watches over


class MeasuredWorker(Worker):
    def cpu(self) -> float:
        return time.process_time()


class Side:
    """One engine with a store of its own, and what its rounds took."""

    def __init__(self, name: str, engine: PopulationEngine, simulation: Simulation) -> None:
        self.name, self._engine, self._simulation = name, engine, simulation
        self.turns: list[dict[str, float]] = []
        self.reports: list[RoundResult] = []

    def turn(self, cohort: tuple[str, ...], waiting: Waiting, *, counted: bool) -> None:
        waiting.seconds, start = 0.0, time.perf_counter()
        before = time.process_time(), self._workers_cpu()
        report = self._engine.run(cohort)
        record = report.record
        ran = time.perf_counter()
        self._simulation.store.commit(report.commit)
        end = time.perf_counter()
        if record.aborted is not None or record.workers_lost:
            raise SystemExit(f"{self.name}: a round failed: {record.aborted}, {record.workers_lost} lost")
        if not counted:
            return
        spent = [after - earlier for after, earlier in zip(self._workers_cpu(), before[1], strict=True)]
        clients = sum(report.tally.client_seconds.values())
        self.reports.append(report)
        self.turns.append(
            {
                "seconds": end - start,
                "waiting_for_workers": waiting.seconds,
                "driver_cpu": time.process_time() - before[0],
                "workers_cpu": sum(spent),
                "busiest_worker_cpu": max(spent, default=0.0),
                "server_cpu": sum(record.server_seconds.values()),
                "commit": end - ran,
                "clients_cpu": clients,
                "training": record.training_seconds,
            }
        )

    def _workers_cpu(self) -> list[float]:
        if not isinstance(self._engine, RayEngine):
            return []
        members = self._engine._crew._members
        return list(ray.get([one.actor.cpu.remote() for one in members]))

    def figures(self) -> dict[str, Any]:
        every = {key: [turn[key] for turn in self.turns] for key in self.turns[0]}
        record, tally = self.reports[-1].record, self.reports[-1].tally
        return {
            "seconds": [round(one, 4) for one in every["seconds"]],
            "median": {key: round(statistics.median(some), 4) for key, some in every.items()},
            "clients": record.cohort,
            "samples": record.samples,
            "bytes_up_per_client": record.bytes_up,
            "bytes_down_per_client": record.bytes_down,
            "bytes_of_the_round": round(sum(tally.bytes_up.values()) + sum(tally.bytes_down.values())),
            "server_seconds": record.server_seconds,
        }

    def close(self) -> None:
        self._engine.close()

    def numbers(self) -> list[bytes]:
        """All of the model."""
        store = self._simulation.store
        tables = [
            store.read_rows(table.name, RowSet(store.touched(table.name).rows)).values.tobytes()
            for table in self._simulation.task.tables
        ]
        return [store.read_dense().values.tobytes(), *tables]


def simulated(config: RunConfig, fleet: Fleet) -> Simulation:
    store = MemoryStore(store_spec(config, fleet.task.spec, devices=True), fleet.task.initial_dense())
    settings = simulation_settings(config, client_privacy(config, sorted(fleet.devices)))
    return Simulation(fleet.task, fleet.devices, store, settings, seed=config.run.seed)


def on_ray(simulation: Simulation, settings: ClusterSettings, config: RunConfig) -> RayEngine:
    return RayEngine(simulation, settings, clients=config.round.clients, worker=MeasuredWorker)


def measured(config: RunConfig, rounds: int, workers: tuple[int, ...], memory_mb: int) -> dict[str, Any]:
    fleet = build_fleet(config)
    config = resolved(config, fleet)
    waiting, names = Waiting(), sorted(fleet.devices)
    # Ray's workers give way to everyone else on a machine unless told otherwise; the local engine does not.
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 -- so Ray spells it
    connection = Connection(ClusterSettings(memory_mb=memory_mb, cluster_cpus=sum(workers)))
    sides: list[Side] = []
    try:
        local = simulated(config, fleet)
        sides.append(Side("local", LocalEngine(local), local))
        for count in workers:
            own = simulated(config, fleet)
            settings = ClusterSettings(workers=count, gpus=0, threads=config.run.threads)
            sides.append(Side(f"ray-{count}", on_ray(own, settings, config), own))
        for number in range(rounds + 1):  # the first one warms everything up
            cohort = choose_cohort(names, config.round.all_clients, config.run.seed, number + 1)
            for side in sides:
                side.turn(cohort, waiting, counted=number > 0)
        same = all(side.numbers() == sides[0].numbers() for side in sides)
        return {"same_model": same, "engines": {side.name: side.figures() for side in sides}}
    finally:
        for side in sides:
            side.close()
        connection.close()


def scaling(engines: Mapping[str, Any]) -> dict[str, Any]:
    """Ratios of rounds of the same cohort, side by side in time; their median."""
    one, two = engines["ray-1"], engines["ray-2"]
    pairs = list(zip(one["seconds"], two["seconds"], strict=True))
    speed_up = statistics.median(first / second for first, second in pairs)
    alone = one["median"]
    driver = alone["driver_cpu"]
    working = alone["clients_cpu"] + alone["training"]
    passing = alone["waiting_for_workers"] - working
    rest = alone["seconds"] - alone["waiting_for_workers"] - alone["server_cpu"] - alone["commit"]
    return {
        "speed_up": round(speed_up, 3),
        "speed_ups": [round(first / second, 3) for first, second in pairs],
        "serial_fraction_by_amdahl": round(2 / speed_up - 1, 3),
        # CPU time is about the same however busy the machine is: what the driver does, nobody can share,
        # and a round takes as long as the busiest worker.
        "speed_up_by_cpu": round(
            (driver + alone["workers_cpu"])
            / (two["median"]["driver_cpu"] + two["median"]["busiest_worker_cpu"]),
            3,
        ),
        "serial_fraction_by_cpu": round(driver / (driver + alone["workers_cpu"]), 3),
        "of_a_round_on_one_worker": {
            name: round(seconds / alone["seconds"], 3)
            for name, seconds in {
                "clients_in_the_worker": working,
                "messages_on_their_way": passing,
                "server": alone["server_cpu"],
                "store": alone["commit"],
                "planning_and_the_rest": rest,
            }.items()
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--memory-mb", type=int, default=300)
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    given = parser.parse_args()
    config = from_sections(overridden(_DEFAULTS, [f"round.clients={given.clients}", *given.set]))
    torch.set_num_threads(config.run.threads or torch.get_num_threads())
    result = measured(config, given.rounds, tuple(given.workers), given.memory_mb)
    if {"ray-1", "ray-2"} <= result["engines"].keys():
        result["scaling"] = scaling(result["engines"])
    result["where"] = {
        "cpus": os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "ray": version("ray"),
        "load": os.getloadavg()[0],
        "settings": [f"round.clients={given.clients}", *given.set],
    }
    print(json.dumps(result, indent=2))
    ray.shutdown()
    sys.exit(0 if result["same_model"] else 1)


if __name__ == "__main__":
    main()
