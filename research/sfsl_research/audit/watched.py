"""One round of a run as its server sees it, and beside that what really happened.

The round is a real one, on the same objects as any other: the server's half is read off the frames that clients
send it and off the sums it opens, the truth off the simulated clients.
"""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from sfsl.arrays import Bits, Counts, Indices, Positions, Reals
from sfsl.carriers.local.engine import MESSAGE_LIMIT, Cohort, LocalPool, PopulationEngine, Reply
from sfsl.crypto.secret import SystemRandomness
from sfsl.errors import Aborted
from sfsl.rounds import Download, RoundParams, RoundSums, Trained
from sfsl.rounds.exchanges import CODEC, Exchange, Request
from sfsl.rounds.record import Learned, RoundTally
from sfsl.run.fleet import Fleet, client_privacy
from sfsl.run.setup import simulation_settings
from sfsl.secagg.masking import parse_request
from sfsl.settings.run import RunConfig
from sfsl.simulate.population import Groups, Personal, Population, Simulation
from sfsl.submodel import RowSet, RowStore


@dataclass(frozen=True)
class SeenTable:
    """What a server sees of one table in one round: the opened ``rows``, which client ``asked`` for which
    [clients, rows], and each row's sum [rows, width] and ``weights``, which may tell how many clients moved it
    (``counted``). A scheme in which nobody asks has ``asked`` true everywhere: any client may be behind any
    row. Where no weights are opened they are 1.

    ``follows``: the table whose rows these follow from, and the place here of each of its rows.
    """

    rows: Indices
    asked: Bits
    sums: Reals
    weights: Counts
    counted: bool = False
    follows: tuple[str, Positions] | None = None


@dataclass(frozen=True)
class WatchedRound:
    """One cohort's round: the ``clients`` whose updates are in the sums, and what the server sees by table.

    ``trained`` is the truth, which no server knows: by table, who moved which row [clients, rows].
    """

    clients: tuple[str, ...]
    tables: Mapping[str, SeenTable]
    trained: Mapping[str, Bits]


class _WatchedPopulation(Population):
    """Trains as any population does, and remembers who asked for what and who moved what."""

    downloads: Mapping[str, Download]
    uploads: Mapping[str, Trained]

    def train(
        self, number: int, groups: Groups, downloads: Mapping[str, Download], personal: Personal
    ) -> tuple[dict[str, Trained], dict[str, Learned]]:
        trained, learned = super().train(number, groups, downloads, personal)
        self.downloads, self.uploads = dict(downloads), trained
        return trained, learned


class _WatchedPool(LocalPool):
    """Answers as any pool does, and remembers the requests, which a server reads in the clear."""

    def answer(self, exchange: Exchange, frames: Mapping[str, bytes]) -> dict[str, Reply]:
        replies = super().answer(exchange, frames)
        if exchange is Exchange.UNION:
            self.requests = {
                name: CODEC.decode(reply.frame, limit=MESSAGE_LIMIT)
                for name, reply in replies.items()
                if reply.frame is not None
            }
        return replies


class _WatchedEngine(PopulationEngine):
    """Runs rounds as the local engine does, and keeps what was seen of each cohort."""

    def __init__(self, simulation: Simulation, population: _WatchedPopulation) -> None:
        super().__init__(simulation)
        simulation.population = self._population = population
        self.seen: list[WatchedRound] = []

    def _run_all(self, number: int, cohorts: Sequence[Cohort], tally: RoundTally) -> None:
        simulation, population = self.simulation, self._population
        with ThreadPoolExecutor(os.cpu_count()) as workers:
            for one in cohorts:
                pool = None
                if simulation.settings.sums == "masked":
                    groups = simulation.groups(one.names)
                    pool = _WatchedPool(population, number, groups, SystemRandomness(), workers)
                one.run(simulation, self.driver, pool)
                if one.sums is None:
                    raise Aborted(f"the round that was to be attacked was aborted: {one.aborted}")
                if pool is None:
                    asked = {name: own.asked for name, own in population.downloads.items()}
                else:
                    asked = _asked(one.params, one.sums, pool.requests)
                self.seen.append(self._watched(one.sums, asked))

    def _watched(self, sums: RoundSums, asked: Mapping[str, Mapping[str, RowSet]]) -> WatchedRound:
        clients, task, tables, trained = sums.survivors, self.task, {}, {}
        counted = self.simulation.settings.rules.update.averaging.weights == "owners"
        unions, sources = sums.model.unions, {table.name: table.source for table in task.tables}
        for name, union in unions.items():
            wanted, moved = (np.zeros((len(clients), len(union)), np.bool_) for _ in range(2))
            for place, client in enumerate(clients):
                wanted[place, union.positions_of(asked[client][name].rows)] = True
                own = self._population.uploads[client].rows[name]
                touched = own.rows.rows[np.asarray(own.counts) > 0]
                moved[place, union.positions_of(touched)] = True
            follows = None
            if source := sources[name]:
                follows = source, union.positions_of(task.row_maps.rows_of(name, unions[source].rows))
            total = sums.model.rows[name]
            tables[name] = SeenTable(union.rows, wanted, total.values, total.weights, counted, follows)
            trained[name] = moved
        return WatchedRound(clients, tables, trained)


def watch_round(
    config: RunConfig, fleet: Fleet, store: RowStore, cohort: Sequence[str]
) -> list[WatchedRound]:
    """Run the next round of a run, commit nothing, and return what its server saw, cohort by cohort."""
    settings = simulation_settings(config, client_privacy(config, sorted(fleet.devices)))
    seed = config.run.seed
    simulation = Simulation(fleet.task, fleet.devices, store, settings, seed=seed)
    engine = _WatchedEngine(
        simulation, _WatchedPopulation(fleet.task, fleet.devices, settings, seed=seed)
    )
    engine.run(cohort)
    return engine.seen


def _asked(
    params: RoundParams, sums: RoundSums, requests: Mapping[str, Request]
) -> dict[str, dict[str, RowSet]]:
    """Read the rows that clients asked for off their requests, as the server does."""
    unions = sums.model.unions
    layout, names = params.layout(unions), [table.name for table in params.model.summed]
    return {
        client: {
            name: unions[name].at(bits)
            for name, bits in zip(names, parse_request(layout, request.bitmaps), strict=True)
        }
        for client, request in requests.items()
    }

