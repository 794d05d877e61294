"""Rounds of a simulated population on a cluster: the server here, the clients on its workers."""

import copy
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

from sfsl.carriers.local.engine import Cohort, PopulationEngine, course
from sfsl.durable import Closing
from sfsl.errors import InputError, ParameterError
from sfsl.rounds.record import RoundTally
from sfsl.simulate.population import Groups, Simulation
from sfsl.submodel import Commit, DenseBlock, RowBlock, RowSet, RowStore, StoreSpec
from sfsl_research.ray.cluster import ClusterSettings
from sfsl_research.ray.crew import Crew, Member
from sfsl_research.ray.pool import RayPool
from sfsl_research.ray.worker import Worker


class SharedStore(Closing):
    """Lets several threads have a store, which belongs to one: here one at a time has it."""

    def __init__(self, store: RowStore) -> None:
        self._store, self._lock = store, Lock()

    @property
    def spec(self) -> StoreSpec:
        return self._store.spec

    @property
    def round(self) -> int:
        return self._store.round

    @property
    def selection(self) -> bytes:
        return self._store.selection

    def read_rows(self, table: str, rows: RowSet) -> RowBlock:
        with self._lock:
            return self._store.read_rows(table, rows)

    def read_dense(self) -> DenseBlock:
        with self._lock:
            return self._store.read_dense()

    def touched(self, table: str) -> RowSet:
        with self._lock:
            return self._store.touched(table)

    def commit(self, commit: Commit) -> None:
        with self._lock:
            self._store.commit(commit)

    def close(self) -> None:
        with self._lock:
            self._store.close()


# Cohorts whose servers work at the same time, in threads of this process.
_SIDE_BY_SIDE = 16
# What a client costs besides training, in samples trained: its masks, about.
_CLIENT = 250


class RayEngine(PopulationEngine):
    """Runs cohorts side by side. The model is the local engine's, bit for bit, wherever clients are, as
    long as all train on CPUs of one kind. A cohort has about ``clients``."""

    def __init__(
        self,
        simulation: Simulation,
        settings: ClusterSettings,
        *,
        clients: int,
        worker: type[Worker] = Worker,
    ) -> None:
        if simulation.settings.sums != "masked":
            raise ParameterError("plain sums are quick in one process; take the local engine")
        shared = copy.copy(simulation)
        shared.store = SharedStore(simulation.store)
        super().__init__(shared)
        self._settings = settings
        passes = simulation.settings.cohorts * -(-clients // simulation.settings.together)
        self._crew = Crew(settings, simulation.population, passes, worker)

    def close(self) -> None:
        self._crew.close()

    def _run_all(self, number: int, cohorts: Sequence[Cohort], tally: RoundTally) -> None:
        members = self._crew.ready()
        groups = [self.simulation.groups(one.names) for one in cohorts]
        devices, seconds = self.simulation.devices, self._settings.seconds
        pools = [
            RayPool(self._crew, f"{number}-{place}", number, parts, devices, seconds, *course(one.plan))
            for place, (one, parts) in enumerate(zip(cohorts, self._divided(groups, members), strict=True))
        ]
        with ThreadPoolExecutor(min(len(cohorts), _SIDE_BY_SIDE)) as threads:
            running = [
                threads.submit(one.run, self.simulation, self.driver, pool)
                for one, pool in zip(cohorts, pools, strict=True)
            ]
            for one in running:
                one.result()
        lost = self._crew.lost()
        tally.workers_lost = len(lost)
        if len(lost) == len(members) and all(one.failed for one in lost):
            raise InputError(f"every worker failed, the first one with: {lost[0].lost}")
        for member in members:
            if not member.lost:
                member.actor.forget.remote()

    def _divided(self, groups: Sequence[Groups], members: Sequence[Member]) -> list[dict[Member, Groups]]:
        """Say for each cohort who has which groups: the costliest first, each to whoever has the least of
        that cohort, and then the least to do. So a lost worker costs no cohort more than its share."""
        costs = [
            (sum(_CLIENT + self.simulation.samples(name) for name in group), cohort, place)
            for cohort, some in enumerate(groups)
            for place, group in enumerate(some)
        ]
        load = dict.fromkeys(members, 0)
        parts: list[dict[Member, list[Sequence[str]]]] = [{} for _ in groups]
        for cost, cohort, place in sorted(costs, key=lambda one: (-one[0], one[1:])):
            part = parts[cohort]
            member = min(members, key=lambda one: (len(part.get(one, ())), load[one]))
            load[member] += cost
            part.setdefault(member, []).append(groups[cohort][place])
        return [dict(part) for part in parts]
