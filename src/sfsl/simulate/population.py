"""A simulated population, and the store against which it trains."""

import copy
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Self

import numpy as np

from sfsl.arrays import Values
from sfsl.client.device import Device, Learned
from sfsl.rounds import Download, IndexSpace, Trained
from sfsl.rounds.record import RoundTally
from sfsl.simulate.chance import Chance, SeededRandomness, SimulatedAnswers
from sfsl.simulate.settings import SimulationSettings
from sfsl.submodel import Commit, RowBlock, RowSet, RowStore
from sfsl.training import ClientWork, LocalUpdate, train_client, train_cohort
from sfsl.training.task import Task

Groups = Sequence[Sequence[str]]
# By client and table, in the order of the device's personal rows.
Personal = Mapping[str, Mapping[str, Values]]


class Population:
    """``seed`` makes all that devices do by chance, except keys and masks: their permanent answers, their
    fresh ones, rounding, the order of training samples. ``alone``: devices train one by one, as on a
    network, which differs from a pass for many in the last bits.
    """

    def __init__(
        self,
        task: Task,
        devices: Mapping[str, Device],
        settings: SimulationSettings,
        *,
        seed: int,
        alone: bool = False,
    ) -> None:
        self.task = task
        self.devices = devices
        self.settings = settings
        self.chance = Chance(task, devices, seed)
        self._alone = alone
        self._device = "cpu"
        self._personal = tuple(table.name for table in task.tables if table.kind == "personal")

    def on(self, device: str) -> Self:
        """The same clients, which train on this device."""
        moved = copy.copy(self)
        moved._device = device
        return moved

    def answers(self, name: str, number: int) -> SimulatedAnswers:
        """What a device says about its rows in a round: permanent answers last for a period."""
        settings = self.settings
        return self.chance.answers(name, number, settings.privacy[name], every=settings.period)

    def rounding(self, name: str, number: int) -> SeededRandomness:
        return self.chance.rounding(name, number)

    def train(
        self, number: int, groups: Groups, downloads: Mapping[str, Download], personal: Personal
    ) -> tuple[dict[str, Trained], dict[str, Learned]]:
        """Each group in one pass, as far as its clients are there: what each uploads, and what it has
        learned."""
        trained, learned = dict[str, Trained](), dict[str, Learned]()
        for group in groups:
            works = {
                name: self.devices[name].work(
                    downloads[name], personal[name], self.chance.shuffle(name, number)
                )
                for name in group
                if name in downloads
            }
            updates = self._updates(number, works, downloads)
            for (name, work), update in zip(works.items(), updates, strict=True):
                device = self.devices[name]
                trained[name] = device.trained(work, update, downloads[name], personal[name])
                own = {table: (work.rows[table], update.rows[table]) for table in self._personal}
                learned[name] = Learned(update.samples, update.loss, update.diverged, device.unknown, own)
        return trained, learned

    def _updates(
        self, number: int, works: Mapping[str, ClientWork], downloads: Mapping[str, Download]
    ) -> list[LocalUpdate]:
        if not works:
            return []
        task, local, dense = self.task, self.settings.local, downloads[next(iter(works))].dense
        if self._alone:
            return [
                train_client(task, dense, work, local, round_number=number - 1) for work in works.values()
            ]
        return train_cohort(
            task,
            dense,
            list(works.values()),
            local,
            round_number=number - 1,
            together=len(works),
            device=self._device,
        )


class Simulation:
    """A population of devices and a store, which keeps their personal rows too and is only read.

    ``seed`` and ``alone`` are the population's.
    """

    def __init__(
        self,
        task: Task,
        devices: Mapping[str, Device],
        store: RowStore,
        settings: SimulationSettings,
        *,
        seed: int,
        alone: bool = False,
    ) -> None:
        self.population = Population(task, devices, settings, seed=seed, alone=alone)
        self.task = task
        self.devices = devices
        self.store = store
        self.settings = settings
        self.space = IndexSpace(task.spec)
        self.shared = tuple(table.name for table in task.tables if table.kind == "shared")
        self._personal = tuple(table.name for table in task.tables if table.kind == "personal")
        self._sizes: dict[str, tuple[int, int]] = {}

    def answers(self, name: str, number: int) -> SimulatedAnswers:
        return self.population.answers(name, number)

    def rounding(self, name: str, number: int) -> SeededRandomness:
        return self.population.rounding(name, number)

    def union_seed(self, number: int) -> bytes:
        """Of the union's hash functions, which say what a Bloom filter adds."""
        return self.population.chance.union_seed(number)

    def largest_set(self, cohort: Iterable[str]) -> int:
        """The most rows that a client brings to the union."""
        return max(1, *(self._size(name)[1] for name in cohort))

    def samples(self, name: str) -> int:
        """That a client trains on, if it gets all rows it needs."""
        return self._size(name)[0]

    def groups(self, cohort: Iterable[str]) -> Groups:
        """Who trains in one pass: neighbours in the order of their samples, so that few wait for others.

        It follows from the cohort alone, not from who is still there or where clients live, since passes
        of other clients give other last bits.
        """
        ordered = sorted(cohort, key=lambda name: (-self._size(name)[0], name))
        count = -(-len(ordered) // self.settings.together)
        cuts = [place * len(ordered) // count for place in range(count + 1)]
        return [ordered[start:stop] for start, stop in pairwise(cuts)]

    def train(
        self, number: int, downloads: Mapping[str, Download], tally: RoundTally, groups: Groups
    ) -> tuple[dict[str, Trained], dict[str, Learned]]:
        """Train in round ``number``: return what each client uploads, and what it has learned; tally it."""
        start = time.perf_counter()
        trained, learned = self.population.train(number, groups, downloads, self.personal_rows(downloads))
        learned = {name: learned[name] for name in downloads}
        tally.learn(learned.values(), time.perf_counter() - start)
        return {name: trained[name] for name in downloads}, learned

    def personal_rows(self, names: Iterable[str]) -> dict[str, dict[str, Values]]:
        """By client and table, what is stored for the devices."""
        return {
            name: {
                table: self.store.read_rows(table, RowSet(own)).values
                for table, own in self.devices[name].personal.items()
            }
            for name in names
        }

    def with_personal(self, commit: Commit, learned: Mapping[str, Learned]) -> Commit:
        """Devices keep what they learned about themselves, whether or not their upload arrived."""
        tables = dict(commit.tables)
        for table in self._personal:
            rows = np.concatenate(
                [np.zeros(0, np.int64), *(one.personal[table][0] for one in learned.values())]
            )
            if not len(rows):
                continue
            moves = np.concatenate([one.personal[table][1] for one in learned.values()])
            order = np.argsort(rows)  # a personal row belongs to one client: each occurs once
            old = self.store.read_rows(table, RowSet(rows[order]))
            tables[table] = RowBlock(old.rows, old.values + moves[order], old.state)
        return replace(commit, tables=tables)

    def _size(self, name: str) -> tuple[int, int]:
        """Samples and shared rows of a client. Kept: a device is made from its data again and again."""
        if name not in self._sizes:
            device = self.devices[name]
            self._sizes[name] = (
                len(device.train),
                sum(len(device.needed[table]) for table in self.shared),
            )
        return self._sizes[name]
