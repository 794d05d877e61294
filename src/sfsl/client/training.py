"""The standard trainer: local steps of torch on a task and a device's samples."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import Lock

from sfsl.arrays import Indices, Values
from sfsl.client.device import Device
from sfsl.client.trainer import Lesson
from sfsl.errors import Refused
from sfsl.rounds import Download
from sfsl.training import LocalSettings, train_client


@dataclass(frozen=True)
class TrainingLimits:
    """What a client does for a server at the most. It declines what goes beyond, and trims nothing."""

    epochs: int = 20
    batch_size: int = 1 << 16
    rate: float = 1e3


@dataclass(frozen=True)
class DeviceTrainer:
    """Trains on the succinct part of a submodel, after scoring the held-out samples with it.

    ``seed`` gives that of the order of samples by the round's number. Of the hyperparameters of a round,
    ``rate`` is the learning rate in it; ``batch_size``, ``epochs`` and ``clip`` count where they are given.
    """

    device: Device
    seed: Callable[[int], int]
    settings: LocalSettings = field(default_factory=LocalSettings)
    limits: TrainingLimits = field(default_factory=TrainingLimits)
    # A cancelled round's training may still run when the next one's begins.
    _alone: Lock = field(default_factory=Lock, repr=False, compare=False)

    @property
    def personal(self) -> Mapping[str, Indices]:
        return self.device.personal

    def require(self, training: Mapping[str, float]) -> None:
        self._local(training)

    def train(self, download: Download, personal: Mapping[str, Values], number: int) -> Lesson:
        device = self.device
        work = device.work(download, personal, self.seed(number))
        with self._alone:
            update = train_client(device.task, download.dense, work, self._local(download.training))
            trained = device.trained(work, update, download, personal)
        kept = {name: (work.rows[name], work.values[name] + update.rows[name]) for name in device.personal}
        return Lesson(trained, kept)

    def _local(self, asked: Mapping[str, float]) -> LocalSettings:
        own, limits = self.settings, self.limits
        rate = asked.get("rate", own.learning_rate)
        batch, epochs, clip = (
            asked.get(name, getattr(own, name)) for name in ("batch_size", "epochs", "clip")
        )
        if not (0 < rate <= limits.rate and 0 < clip < math.inf):
            raise Refused(
                f"a learning rate of {rate:g} and a clip of {clip:g}, which this client does not take"
            )
        for name, value, most in (
            ("batch_size", batch, limits.batch_size),
            ("epochs", epochs, limits.epochs),
        ):
            if not 1 <= value <= most or value != int(value):
                raise Refused(f"{name} = {value:g}; this client takes whole numbers up to {most}")
        return LocalSettings(int(batch), int(epochs), rate, 1.0, clip)
