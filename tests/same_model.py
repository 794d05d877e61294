"""The model of another engine against the local one's, word for word: what every engine is held to.

What devices do by chance follows from a seed (``engines.chance``), so it does not matter who runs them.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from sfsl.carriers.local.engine import LocalEngine
from sfsl.run.fleet import Fleet, client_privacy
from sfsl.run.setup import resolved, simulation_settings
from sfsl.settings.rounds import store_spec
from sfsl.settings.run import RunConfig
from sfsl.simulate.population import Simulation
from sfsl.simulate.settings import FaultPlan
from sfsl.submodel import LmdbStore, MemoryStore, RowSet, RowStore


@dataclass(frozen=True)
class Vanishing(FaultPlan):
    """Who vanishes before which exchange of which round, by name."""

    gone: Mapping[tuple[int, str], Collection[str]] = field(default_factory=dict)

    def vanish(self, round_number: int, exchange: str, clients: Collection[str]) -> set[str]:
        return set(self.gone.get((round_number, exchange), ())) & set(clients)


@dataclass(frozen=True)
class Local:
    """What the local engine made of the same rounds."""

    store: MemoryStore
    samples: list[int]
    unions: list[dict[str, int]]
    fleet: Fleet


def one_by_one(
    run: RunConfig, fleet: Fleet, gone: Mapping[tuple[int, str], Collection[str]] | None = None
) -> Simulation:
    """Clients that train alone, as those on a network do, and a store of memory."""
    chosen = resolved(run, fleet)
    spec = store_spec(chosen, fleet.task.spec, devices=True)
    store = MemoryStore(spec, fleet.task.initial_dense())
    settings = simulation_settings(chosen, client_privacy(chosen, sorted(fleet.devices)))
    object.__setattr__(settings, "faults", Vanishing(gone=gone or {}))
    return Simulation(fleet.task, fleet.devices, store, settings, seed=chosen.run.seed, alone=True)


def local_rounds(
    run: RunConfig,
    fleet: Fleet,
    cohorts: Collection[Collection[str]],
    gone: Mapping[tuple[int, str], Collection[str]] | None = None,
) -> Local:
    """One round for each cohort."""
    simulation = one_by_one(run, fleet, gone)
    engine, store = LocalEngine(simulation), simulation.store
    assert isinstance(store, MemoryStore)
    samples, unions, hot = [], [], None
    for cohort in cohorts:
        report = engine.run(sorted(cohort), hot=hot)
        assert report.record.aborted is None, report.record.aborted
        assert report.outcome is not None
        samples.append(report.record.samples)
        unions.append({name: len(rows) for name, rows in report.outcome.union.items()})
        store.commit(report.commit)
        hot = report.outcome.hot
    return Local(store, samples, unions, fleet)


def require_same_model(path: Path, local: Local) -> None:
    """The store at ``path`` holds the local engine's model: dense part, rows, optimizer state, who moved."""
    with LmdbStore.open(path) as remote:
        require_same_stores(remote, local)


def require_same_stores(remote: RowStore, local: Local) -> None:
    ours = local.store
    assert remote.round == ours.round
    assert np.array_equal(remote.read_dense().values, ours.read_dense().values)
    for table in local.fleet.task.spec.summed:
        rows = RowSet(np.arange(table.rows))
        assert len(ours.touched(table.name))
        assert np.array_equal(remote.touched(table.name).rows, ours.touched(table.name).rows)
        for part in ("values", "state"):
            one, other = (getattr(store.read_rows(table.name, rows), part) for store in (ours, remote))
            assert np.array_equal(one, other)
