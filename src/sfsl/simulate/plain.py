"""One round without the protocol: the same integers, summed in the open. For experiments only.

Every choice is the one the protocol makes (who is left, which rows are left out, how numbers are rounded),
so that the sums, and the model, are those of ``masked`` word for word. Nothing is hidden from anyone.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from sfsl.crypto.ring import ring_named
from sfsl.crypto.secret import SystemRandomness
from sfsl.errors import NotFinite, Refused, TooFewClients
from sfsl.privacy.noise import DiscreteGaussian
from sfsl.rounds import (
    Download,
    RoundParams,
    RoundSums,
    Trained,
    as_downloaded,
    histogram_words,
    read_sums,
    require_rows,
)
from sfsl.rounds.exchanges import Exchange
from sfsl.rounds.hot import Published
from sfsl.rounds.hot_client import learned_vector, open_published, survey_vector
from sfsl.rounds.hot_server import HotRound, HotSums
from sfsl.rounds.record import Learned, RoundTally
from sfsl.simulate.population import Simulation
from sfsl.submodel import RowSet, encode_update

_INDEX_BYTES = 4


class _Plain:
    """Knows who of a cohort is still there, and tallies who is not."""

    def __init__(self, simulation: Simulation, cohort: Sequence[str], number: int, tally: RoundTally) -> None:
        self._simulation, self._number, self._tally = simulation, number, tally
        self._there = list(cohort)
        self._threshold = simulation.settings.rules.threshold_of(len(cohort))
        self._groups = simulation.groups(cohort)
        self.learned: dict[str, Learned] = {}

    def _exchange(self, exchange: str) -> None:
        self._vanish(exchange)
        self._late(exchange)

    def _vanish(self, exchange: str) -> None:
        vanished = self._simulation.settings.faults.vanish(self._number, exchange, self._there)
        self._tally.drop(exchange, len(vanished))
        self._leave(vanished)

    def _late(self, exchange: str) -> None:
        """Leave out who is too slow; after that the phase is over, and enough must be left."""
        slow = self._simulation.settings.faults.slow(self._number, exchange, self._there)
        self._tally.late += len(slow)
        self._leave(slow)
        self._require_enough()

    def _leave(self, gone: set[str]) -> None:
        self._there = [name for name in self._there if name not in gone]

    def _require_enough(self) -> None:
        if len(self._there) < self._threshold:
            raise TooFewClients(f"{len(self._there)} clients are left, {self._threshold} are needed")


class PlainHot(_Plain):
    """Runs a round over hot rows in the open: the vectors that clients would make, and the noise of all of
    them drawn at once."""

    def __init__(
        self, simulation: Simulation, cohort: Sequence[str], plan: HotRound, tally: RoundTally
    ) -> None:
        super().__init__(simulation, cohort, plan.number, tally)
        self._plan = plan

    def sums(self) -> HotSums:
        """Run the round up to its sum; ``learned`` is there afterwards."""
        params, total = self._plan.params, np.zeros(self._plan.params.length, np.int64)
        self._exchange(Exchange.INVITATION)
        self._vanish(Exchange.INBOUND)
        vectors = self._surveyed() if self._plan.published is None else self._trained(self._plan.published)
        self._late(Exchange.INBOUND)
        self._there = [name for name in self._there if name in vectors]
        self._require_enough()
        for name in self._there:
            total += vectors[name]
        if params.deviation:
            noise = DiscreteGaussian(params.deviation * math.sqrt(len(self._there)))
            total += noise.draw(len(total), self._simulation.population.chance.noise(self._number))
        survivors = tuple(self._there)
        self._exchange(Exchange.UNMASK_UPDATE)
        self._tally.answered = dict.fromkeys((Exchange.INBOUND,), len(survivors))
        return HotSums(total, survivors)

    def _surveyed(self) -> dict[str, NDArray[np.int64]]:
        population = self._simulation.population
        return {
            name: survey_vector(
                self._plan.params,
                population.answers(name, self._number).owned(),
                population.rounding(name, self._number),
            )
            for name in self._there
        }

    def _trained(self, published: Published) -> dict[str, NDArray[np.int64]]:
        params, population = self._plan.params, self._simulation.population
        download = open_published(params, published)
        trained, self.learned = self._simulation.train(
            self._number, dict.fromkeys(self._there, download), self._tally, self._groups
        )
        return {
            name: learned_vector(params, download.asked, one, population.rounding(name, self._number))
            for name, one in trained.items()
        }


class PlainCohort(_Plain):
    """Runs one cohort's round in the open, and tallies it as the protocol would."""

    def __init__(
        self, simulation: Simulation, cohort: Sequence[str], params: RoundParams, tally: RoundTally
    ) -> None:
        super().__init__(simulation, cohort, params.number, tally)
        self._params, self._ring = params, ring_named(params.update.rows.ring)

    def sums(self) -> RoundSums:
        """Run the round up to its sums; ``learned`` is there afterwards."""
        self._exchange(Exchange.INVITATION)
        self._exchange(Exchange.INBOUND)
        unions = self._unite()
        self._exchange(Exchange.UNMASK_UNION)
        self._vanish(Exchange.UNION)
        asked = self._ask(unions)
        self._late(Exchange.UNION)
        asked = {name: asked[name] for name in self._there}
        self._vanish(Exchange.SUBMODEL)
        downloads = self._download(unions, {name: asked[name] for name in self._there})
        trained, self.learned = self._simulation.train(
            self._params.number, downloads, self._tally, self._groups
        )
        self._late(Exchange.SUBMODEL)
        return self._sum(unions, asked, {name: trained[name] for name in self._there})

    def _unite(self) -> dict[str, RowSet]:
        simulation = self._simulation
        if self._params.union.encoding == "whole":
            union = np.arange(simulation.space.domain)
        else:
            devices = [simulation.devices[name].needed for name in self._there]
            union = np.unique(np.concatenate([simulation.space.indices(needed) for needed in devices]))
            require_rows(union)
            if self._params.union.encoding == "bloom":  # it adds rows that nobody has, and always the same
                encoding = self._params.union.build()
                union = encoding.decode(encoding.encode(union, SystemRandomness()))
        return simulation.task.row_maps.with_derived(simulation.space.rows(union))

    def _ask(self, unions: Mapping[str, RowSet]) -> dict[str, Mapping[str, RowSet]]:
        """Say which rows each client asks for; one that finds them too many declines."""
        simulation, whole = self._simulation, self._params.union.encoding == "whole"
        shared = {table: unions[table].rows for table in simulation.shared}
        asked: dict[str, Mapping[str, RowSet]] = {}
        for name in self._there:
            rows = unions
            if not whole:
                chosen = simulation.population.answers(name, self._params.number).answer(b"", shared)
                rows = simulation.task.row_maps.with_derived(
                    {table: unions[table].at(chosen[table]) for table in shared}
                )
            if sum(map(len, rows.values())) > simulation.settings.max_rows:
                self._tally.decline(Refused())
            else:
                asked[name] = rows
        self._there = list(asked)
        return asked

    def _download(
        self, unions: Mapping[str, RowSet], asked: Mapping[str, Mapping[str, RowSet]]
    ) -> dict[str, Download]:
        store, params = self._simulation.store, self._params
        dense = store.read_dense().values
        values = {
            name: as_downloaded(store.read_rows(name, rows).values, params.precision).astype(np.float32)
            for name, rows in unions.items()
        }
        downloads = {}
        for name, own in asked.items():
            rows = {
                table: values[table]
                if len(some) == len(unions[table])
                else values[table][unions[table].positions_of(some.rows)]
                for table, some in own.items()
            }
            downloads[name] = Download(dict(own), rows, dense, dict(params.training), params.scores)
        self._bill(asked)
        return downloads

    def _sum(
        self,
        unions: Mapping[str, RowSet],
        asked: Mapping[str, Mapping[str, RowSet]],
        trained: Mapping[str, Trained],
    ) -> RoundSums:
        params, dtype = self._params, self._ring.dtype
        layout, summed = params.layout(dict(unions)), params.model.summed
        dense = np.zeros(layout.dense, dtype)
        tables = [np.zeros((shape.rows, shape.width), dtype) for shape in layout.tables]
        contributors = [np.zeros(shape.rows, np.int64) for shape in layout.tables]
        places = {
            name: [unions[table.name].positions_of(own[table.name].rows) for table in summed]
            for name, own in asked.items()
        }
        survivors = []
        for name, one in trained.items():
            try:
                words = encode_update(
                    params.model,
                    params.update,
                    dense=one.dense,
                    samples=one.samples,
                    trained=one.rows,
                    randomness=self._simulation.population.rounding(name, params.number),
                )
            except NotFinite as reason:
                self._tally.decline(reason)
                continue
            survivors.append(name)
            dense += np.concatenate([words.dense, histogram_words(one.scores, params.bins, dtype)])
            for place, table in enumerate(summed):
                at = unions[table.name].positions_of(words.rows[place].rows)
                tables[place][at] += words.trained[place]
                if words.idle:
                    tables[place][places[name][place], -1] += dtype.type(words.idle)
                    tables[place][at, -1] -= dtype.type(words.idle)
                contributors[place][places[name][place]] += 1
        for place, shape in enumerate(layout.tables):
            requesters = np.zeros(shape.rows, np.int64)
            for own in places.values():
                requesters[own[place]] += 1
            few = requesters < params.min_contributors
            tables[place][few] = 0
            contributors[place][few] = 0
        self._there = survivors
        self._require_enough()
        self._exchange(Exchange.UNMASK_UPDATE)
        return read_sums(params, unions, dense, tables, contributors, tuple(survivors))

    def _bill(self, asked: Mapping[str, Mapping[str, RowSet]]) -> None:
        """Count what sending it all in the clear takes: row numbers up, rows down, rows and weights up."""
        params, tally, clients, word = self._params, self._tally, max(1, len(asked)), self._ring.word_bytes
        whole = params.union.encoding == "whole"
        up = down = numbers = 0
        for own in asked.values():
            for table in params.model.summed:
                rows = len(own[table.name])
                down += rows * table.width * np.dtype(params.precision).itemsize
                up += rows * (table.width if whole else table.words) * word
                numbers += 0 if whole or table.kind == "derived" else rows * _INDEX_BYTES
        dense, scores = params.model.dense * 4, 2 * params.bins * word
        tally.answered = dict.fromkeys((Exchange.UNION, Exchange.SUBMODEL), clients)
        tally.bytes_up = {Exchange.UNION: numbers, Exchange.SUBMODEL: up + clients * (dense + word + scores)}
        tally.bytes_down = {Exchange.SUBMODEL: down + clients * dense}
