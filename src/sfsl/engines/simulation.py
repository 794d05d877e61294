"""A fleet in this process: what every way of running its rounds has in common."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from sfsl.engines.chance import Chance
from sfsl.engines.device import Device, SimulatedAnswers
from sfsl.engines.noise import SimulatedNoise
from sfsl.engines.settings import RoundReport, RoundSettings
from sfsl.rounds import Download, IndexSpace, Trained
from sfsl.submodel import Commit, RowBlock, RowSet, RowStore
from sfsl.training import ClientWork, LocalUpdate, train_client, train_cohort
from sfsl.training.task import Task, Values


class Simulation:
    """Devices and a store, which keeps their personal rows too and is only read.

    ``seed`` makes all that devices do by chance, except keys and masks: their permanent answers, their
    fresh ones, rounding, the order of training samples. So the same seed gives the same model whether its
    sums are masked or plain. ``alone``: devices train one by one, as on a network, which differs from one
    pass for all in the last bits.
    """

    def __init__(
        self,
        task: Task,
        devices: Mapping[str, Device],
        store: RowStore,
        settings: RoundSettings,
        *,
        seed: int,
        alone: bool = False,
    ) -> None:
        self.task = task
        self.devices = devices
        self.store = store
        self.settings = settings
        self.space = IndexSpace(task.spec)
        self.shared = tuple(table.name for table in task.tables if table.kind == "shared")
        self._personal = tuple(table.name for table in task.tables if table.kind == "personal")
        self._chance = Chance(task, devices, seed)
        self._alone = alone

    def answers(self, name: str, number: int) -> SimulatedAnswers:
        """What a device says about its rows in a round: permanent answers last for a period."""
        settings = self.settings
        return self._chance.answers(name, number, settings.privacy[name], every=settings.period)

    def rounding(self, name: str, number: int) -> SimulatedNoise:
        return self._chance.rounding(name, number)

    def union_seed(self, number: int) -> bytes:
        """Of the union's hash functions, which say what a Bloom filter adds."""
        return self._chance.union_seed(number)

    def train(
        self, downloads: Mapping[str, Download], report: RoundReport
    ) -> tuple[dict[str, Trained], dict[str, tuple[ClientWork, LocalUpdate]]]:
        """The whole cohort in one pass: what each client uploads, and what it has learned."""
        start, number, settings = time.perf_counter(), report.number, self.settings
        personal = {name: self._personal_rows(name) for name in downloads}
        works = {
            name: self.devices[name].work(download, personal[name], self._chance.shuffle(name, number))
            for name, download in downloads.items()
        }
        dense = next(iter(downloads.values())).dense if downloads else np.zeros(0, np.float32)
        if self._alone:
            updates = [
                train_client(self.task, dense, work, settings.local, round_number=number - 1)
                for work in works.values()
            ]
        else:
            updates = train_cohort(
                self.task, dense, list(works.values()), settings.local, round_number=number - 1
            )
        learned = dict(zip(works, zip(works.values(), updates, strict=True), strict=True))
        trained = {
            name: self.devices[name].trained(work, update, downloads[name], personal[name])
            for name, (work, update) in learned.items()
        }
        report.training_seconds = time.perf_counter() - start
        report.samples = sum(update.samples for update in updates)
        report.unknown_rows = sum(self.devices[name].unknown for name in works)
        report.diverged = sum(update.diverged for update in updates)
        losses = [update.loss * update.samples for update in updates if update.samples]
        report.loss = sum(losses) / report.samples if report.samples else float("nan")
        return trained, learned

    def with_personal(self, commit: Commit, learned: Mapping[str, tuple[ClientWork, LocalUpdate]]) -> Commit:
        """Devices keep what they learned about themselves, whether or not their upload arrived."""
        tables = dict(commit.tables)
        for table in self._personal:
            rows = np.concatenate(
                [np.zeros(0, np.int64), *(work.rows[table] for work, _ in learned.values())]
            )
            if not len(rows):
                continue
            moves = np.concatenate([update.rows[table] for _, update in learned.values()])
            order = np.argsort(rows)  # a personal row belongs to one client: each occurs once
            old = self.store.read_rows(table, RowSet(rows[order]))
            tables[table] = RowBlock(old.rows, old.values + moves[order], old.state)
        return replace(commit, tables=tables)

    def vanish(self, report: RoundReport, exchange: str, clients: Sequence[str]) -> set[str]:
        """Who of these does not answer, by the fault plan; counted."""
        vanished = self.settings.faults.vanish(report.number, exchange, clients)
        report.dropped[exchange] = len(vanished)
        return vanished

    def _personal_rows(self, name: str) -> dict[str, Values]:
        rows = self.devices[name].personal
        return {table: self.store.read_rows(table, RowSet(own)).values for table, own in rows.items()}
