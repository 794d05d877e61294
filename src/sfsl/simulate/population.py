"""A simulated population, and the store against which it trains.

A population can be elsewhere than the store, in another process or on another machine.
"""

import copy
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Self

import numpy as np

from sfsl.arrays import Values
from sfsl.client.device import Device
from sfsl.rounds import Download, IndexSpace, Trained
from sfsl.rounds.record import Learned, RoundTally
from sfsl.simulate.chance import Chance, SeededRandomness, SimulatedAnswers
from sfsl.simulate.settings import SimulationSettings
from sfsl.submodel import Commit, RowBlock, RowSet, RowStore
from sfsl.training import ClientWork, rebuild_client, rebuild_cohort, train_client, train_cohort
from sfsl.training.task import Task

Groups = Sequence[Sequence[str]]
# By client and table, in the order of the device's personal rows.
Personal = Mapping[str, Mapping[str, Values]]


class Population:
    """Simulated devices without a store, so that they can live in another process.

    ``seed`` makes all that they do by chance, except keys and masks: their permanent answers, their fresh
    ones, rounding, the order of training samples. With ``alone`` they train one by one, as on a network,
    which differs from a pass for many in the last bits.
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
        self.task, self.devices, self.settings = task, devices, settings
        self.chance = Chance(task, devices, seed)
        self._alone, self._device = alone, "cpu"

    def on(self, device: str) -> Self:
        """Return the same clients, which train on this device."""
        moved = copy.copy(self)
        moved._device = device
        return moved

    def answers(self, name: str, number: int) -> SimulatedAnswers:
        """Return what a device says about its rows in a round: permanent answers last for a period."""
        settings = self.settings
        return self.chance.answers(name, number, settings.privacy[name], every=settings.period)

    def rounding(self, name: str, number: int) -> SeededRandomness:
        """Return the randomness by which a device rounds its update in a round."""
        return self.chance.rounding(name, number)

    def train(
        self, number: int, groups: Groups, downloads: Mapping[str, Download], personal: Personal
    ) -> tuple[dict[str, Trained], dict[str, Learned]]:
        """Train each group in one pass, as far as its clients are there.

        Return what each client uploads, and what it has learned.
        """
        task, local, last = self.task, self.settings.local, number - 1
        trained, learned = dict[str, Trained](), dict[str, Learned]()
        for group in groups:
            names = [name for name in group if name in downloads]
            if not names:
                continue
            dense = downloads[names[0]].dense
            works = [
                self.devices[name].work(downloads[name], personal[name], self.chance.shuffle(name, number))
                for name in names
            ]
            if self._alone:
                updates = [train_client(task, dense, work, local, round_number=last) for work in works]
            else:
                updates = train_cohort(
                    task,
                    dense,
                    works,
                    local,
                    round_number=last,
                    together=len(works),
                    device=self._device,
                )
            scored = self._scored_with(dict(zip(names, works, strict=True)), downloads, personal)
            for name, work, update in zip(names, works, updates, strict=True):
                device = self.devices[name]
                trained[name] = device.trained(work, update, downloads[name], scored[name])
                own = {table: (work.rows[table], update.rows[table]) for table in device.personal}
                learned[name] = Learned(update.samples, update.loss, update.diverged, device.unknown, own)
        return trained, learned

    def _scored_with(
        self, works: Mapping[str, ClientWork], downloads: Mapping[str, Download], personal: Personal
    ) -> Personal:
        """Return the personal rows with which clients score, as ``DeviceTrainer`` has them."""
        task, local, first = self.task, self.settings.local, downloads[next(iter(works))]
        if not local.rebuild or first.scores is None:
            return personal
        own = list(works.values())
        if self._alone:
            rows = [rebuild_client(task, first.dense, work, local) for work in own]
        else:
            rows = rebuild_cohort(task, first.dense, own, local, together=len(own), device=self._device)
        return {
            name: self.devices[name].rebuilt(work, one)
            for (name, work), one in zip(works.items(), rows, strict=True)
        }


class Simulation:
    """A population of devices and a store, which keeps their personal rows too and is only read.

    ``seed`` and ``alone`` are those of ``Population``.
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
        self.task, self.devices, self.store, self.settings = task, devices, store, settings
        self.seed = seed
        self.space = IndexSpace(task.spec)
        self.shared = tuple(table.name for table in task.tables if table.kind == "shared")
        self._sizes: dict[str, tuple[int, int]] = {}

    def union_seed(self, number: int) -> bytes:
        """Return the seed of the union's hash functions, which say what a Bloom filter adds."""
        return self.population.chance.union_seed(number)

    def largest_set(self, cohort: Iterable[str]) -> int:
        """Return the most rows that a client brings to the union."""
        return max(1, *(self._size(name)[1] for name in cohort))

    def samples(self, name: str) -> int:
        """Return how many samples a client trains on if it gets all rows it needs."""
        return self._size(name)[0]

    def groups(self, cohort: Iterable[str]) -> Groups:
        """Say who trains in one pass: neighbours in the order of their samples, so that few wait for others.

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
        """Read what is stored for the devices, by client and table."""
        return {
            name: {
                table: self.store.read_rows(table, RowSet(own)).values
                for table, own in self.devices[name].personal.items()
            }
            for name in names
        }

    def with_personal(self, commit: Commit, learned: Mapping[str, Learned]) -> Commit:
        """Add what devices learned about themselves, which they keep whether or not their upload arrived."""
        tables = dict(commit.tables)
        personal = [one.personal for one in learned.values()]
        for table in personal[0] if personal else ():
            rows, moves = (np.concatenate([own[table][part] for own in personal]) for part in (0, 1))
            if len(rows):
                order = np.argsort(rows)  # a personal row belongs to one client: each occurs once
                old = self.store.read_rows(table, RowSet(rows[order]))
                tables[table] = RowBlock(old.rows, old.values + moves[order], old.state)
        return replace(commit, tables=tables)

    def _size(self, name: str) -> tuple[int, int]:
        """Count a client's samples and shared rows, once: a device is made from its data again and again."""
        if name not in self._sizes:
            device = self.devices[name]
            self._sizes[name] = len(device.train), sum(len(device.needed[table]) for table in self.shared)
        return self._sizes[name]
