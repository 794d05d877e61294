"""Simulated clients without a server: their data, what they do by chance, and how they train.

All of it can be elsewhere than the store, in another process or on another machine.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Self

from sfsl.arrays import Values
from sfsl.client.device import Device, Learned
from sfsl.rounds import Download, Trained
from sfsl.simulate.chance import Chance, SimulatedAnswers
from sfsl.simulate.seeded import SeededRandomness
from sfsl.simulate.settings import SimulationSettings
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
