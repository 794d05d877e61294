"""One round of a run as its server sees it, and beside that what really happened.

The round is a real one, on the same objects as any other: the server's half is read off the frames that
clients send it and off the sums it opens, the truth off the simulated clients.
"""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from sfsl.arrays import Bits, Counts, Indices, Positions, Reals
from sfsl.carriers.local.engine import MESSAGE_LIMIT, Cohort, LocalPool, PopulationEngine, Reply, course
from sfsl.crypto.secret import SystemRandomness
from sfsl.errors import Aborted
from sfsl.privacy import IndexPrivacy
from sfsl.rounds import Download, RoundParams, RoundSums, Trained
from sfsl.rounds.exchanges import CODEC, Exchange, Request
from sfsl.rounds.hot import HotSet, HotState
from sfsl.rounds.hot_server import HotRound, HotSums
from sfsl.rounds.record import Learned, RoundTally
from sfsl.run.fleet import Fleet, client_privacy
from sfsl.run.setup import simulation_settings
from sfsl.secagg.masking import parse_request
from sfsl.service.driver import Journal
from sfsl.settings.run import RunConfig
from sfsl.simulate.population import Groups, Personal, Population, Simulation
from sfsl.submodel import RowSet, RowStore


@dataclass(frozen=True)
class SeenTable:
    """What a server sees of one table in one round: the opened ``rows``, which client ``asked`` for which
    [clients, rows], and each row's sum [rows, width] and ``weights``, which may tell how many clients moved
    it (``counted``). A scheme in which nobody asks has ``asked`` true everywhere: any client may be behind
    any row. Where no weights are opened they are 1.

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
            frames_up = {name: reply.frame for name, reply in replies.items() if reply.frame is not None}
            messages = {name: CODEC.decode(up, limit=MESSAGE_LIMIT) for name, up in frames_up.items()}
            self.requests = {name: one for name, one in messages.items() if isinstance(one, Request)}
        return replies


class _WatchedEngine(PopulationEngine):
    """Runs rounds as the local engine does, and keeps what was seen of each cohort that trained.

    ``given``: the answers about rows that clients would give at this level are handed to a server of a round
    over hot rows, in which nobody is asked.
    """

    def __init__(
        self, simulation: Simulation, population: _WatchedPopulation, given: IndexPrivacy | None
    ) -> None:
        super().__init__(simulation)
        simulation.population = self._population = population
        self._given = given
        self.seen: list[WatchedRound] = []

    def _run_all(self, number: int, cohorts: Sequence[Cohort], tally: RoundTally) -> None:
        simulation, population = self.simulation, self._population
        with ThreadPoolExecutor(os.cpu_count()) as workers:
            for one in cohorts:
                pool = None
                if simulation.settings.sums == "masked":
                    groups = simulation.groups(one.names)
                    pool = _WatchedPool(
                        population, number, groups, SystemRandomness(), workers, *course(one.plan)
                    )
                one.run(simulation, self.driver, pool)
                if one.sums is None:
                    raise Aborted(f"the round that was to be attacked was aborted: {one.aborted}")
                if isinstance(one.plan, HotRound) and isinstance(one.sums, HotSums):
                    if one.plan.published is not None:
                        self.seen.append(self._watched_hot(one.plan, one.sums))
                elif isinstance(one.plan, RoundParams) and isinstance(one.sums, RoundSums):
                    if pool is None:
                        asked = {name: own.asked for name, own in population.downloads.items()}
                    else:
                        asked = _asked(one.plan, one.sums, pool.requests)
                    self.seen.append(self._watched(one.sums, asked))

    def _watched(self, sums: RoundSums, asked: Mapping[str, Mapping[str, RowSet]]) -> WatchedRound:
        counted = self.simulation.settings.rules.update.averaging.weights == "owners"
        unions, tables = sums.model.unions, {}
        for name, union in unions.items():
            wanted = _bits(union, [asked[client][name].rows for client in sums.survivors])
            total, follows = sums.model.rows[name], self._follows(name, unions)
            tables[name] = SeenTable(union.rows, wanted, total.values, total.weights, counted, follows)
        return WatchedRound(sums.survivors, tables, self._trained(unions, sums.survivors))

    def _watched_hot(self, plan: HotRound, sums: HotSums) -> WatchedRound:
        """Read the opened vector as the server does: dense part, hot rows by table, histograms."""
        assert plan.published is not None  # noqa: S101 -- only rounds that train are watched
        params, tables = plan.params, {}
        values: Reals = (sums.words * (params.clip / params.levels)).astype(np.float64)
        sets, start = plan.published.hot.sets(params.model), params.model.dense
        asked = self._as_if_asked(sets, sums.survivors)
        for table in params.model.summed:
            rows = sets[table.name]
            end = start + len(rows) * table.width
            part, start = values[start:end].reshape(-1, table.width), end
            one = np.ones(len(rows), np.int64)
            follows = self._follows(table.name, sets)
            tables[table.name] = SeenTable(rows.rows, asked[table.name], part, one, follows=follows)
        return WatchedRound(sums.survivors, tables, self._trained(sets, sums.survivors))

    def _as_if_asked(self, sets: Mapping[str, RowSet], clients: Sequence[str]) -> dict[str, Bits]:
        if self._given is None:
            return {name: np.ones((len(clients), len(rows)), np.bool_) for name, rows in sets.items()}
        number, chance, maps = self.driver.number, self._population.chance, self.task.row_maps
        shared = {name: sets[name].rows for name in self.simulation.shared}
        asked = []
        for client in clients:
            chosen = chance.answers(client, number, self._given, every=0).answer(b"", shared)
            rows = maps.with_derived({name: sets[name].at(chosen[name]) for name in shared})
            asked.append({name: rows[name].common(sets[name]).rows for name in sets})
        return {name: _bits(rows, [one[name] for one in asked]) for name, rows in sets.items()}

    def _trained(self, sets: Mapping[str, RowSet], clients: Sequence[str]) -> dict[str, Bits]:
        uploads, moved = self._population.uploads, {}
        for name, rows in sets.items():
            own = [uploads[client].rows[name] for client in clients]
            moved[name] = _bits(rows, [one.rows.rows[np.asarray(one.counts) > 0] for one in own])
        return moved

    def _follows(self, name: str, sets: Mapping[str, RowSet]) -> tuple[str, Positions] | None:
        """Say where the rows of the source lead to; those that lead nowhere lead beyond the last row."""
        source = self.task.spec.table(name).source
        if source is None:
            return None
        led, places = self.task.row_maps.rows_of(name, sets[source].rows), np.arange(len(sets[source]))
        there = sets[name].holds(led)
        places[:] = len(sets[name])
        places[there] = sets[name].positions_of(led[there])
        return source, places


def watch_round(
    config: RunConfig,
    fleet: Fleet,
    store: RowStore,
    cohort: Sequence[str],
    *,
    everything: bool = False,
    given: IndexPrivacy | None = None,
) -> list[WatchedRound]:
    """Run the next round of a run, commit nothing, and return what its server saw, cohort by cohort.

    In a run over hot rows, surveys come first where they are not done yet. ``everything`` makes all rows of
    the cohort hot instead, and ``given`` hands the server answers about them at this level, as if it had
    asked: both are worse than any such run can be.
    """
    settings = simulation_settings(config, client_privacy(config, sorted(fleet.devices)))
    seed, kept = config.run.seed, Journal(store).kept
    simulation = Simulation(fleet.task, fleet.devices, store, settings, seed=seed)
    population = _WatchedPopulation(fleet.task, fleet.devices, settings, seed=seed)
    engine = _WatchedEngine(simulation, population, given)
    hot = kept.hot
    if settings.rules.hot is not None and everything:
        hot = HotState(surveys=settings.rules.hot.surveys, hot=_all_hot(simulation, cohort).encode())
    while not engine.seen:
        result = engine.run(cohort, scores=kept.scores, hot=hot)
        hot = hot if result.outcome is None or result.outcome.hot is None else result.outcome.hot
    return engine.seen


def _all_hot(simulation: Simulation, cohort: Sequence[str]) -> HotSet:
    needed = [simulation.devices[name].needed for name in cohort]
    shared = {name: RowSet.of(np.concatenate([own[name] for own in needed])) for name in simulation.shared}
    rows = simulation.task.row_maps.with_derived(shared)
    return HotSet.of(
        1,
        len(cohort),
        {name: one.rows for name, one in rows.items()},
        {name: np.ones(len(one)) for name, one in rows.items()},
    )


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


def _bits(rows: RowSet, sets: Sequence[Indices]) -> Bits:
    """Return which of the rows are in each set [sets, rows]."""
    found = np.zeros((len(sets), len(rows)), np.bool_)
    for place, some in enumerate(sets):
        found[place, rows.positions_of(some)] = True
    return found
