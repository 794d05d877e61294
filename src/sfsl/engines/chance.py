"""All that devices do by chance, except keys and masks, from one seed.

So the same seed gives the same model whether its sums are masked or plain, in one process or on a network.
"""

from collections.abc import Mapping

from sfsl.crypto.kdf import digest
from sfsl.crypto.secret import Secret
from sfsl.engines.device import Device, SimulatedAnswers
from sfsl.engines.noise import SimulatedNoise
from sfsl.privacy import IndexPrivacy, Perturber, Tables
from sfsl.training.task import Task

# Streams of a device's noise, told apart by their first number.
_ANSWERS, _ROUNDING, _SHUFFLE = 1, 2, 3


class Chance:
    """Of these devices; their places in the order of names are part of it."""

    def __init__(self, task: Task, devices: Mapping[str, Device], seed: int) -> None:
        names: dict[str, list[str]] = {"shared": [], "derived": [], "personal": []}
        for table in task.tables:
            names[table.kind].append(table.name)
        self._tables = Tables(**{kind: tuple(some) for kind, some in names.items()})
        self._devices = devices
        self._seed = seed
        self._places = {name: place for place, name in enumerate(sorted(devices))}

    def answers(self, name: str, number: int, privacy: IndexPrivacy, *, every: int) -> SimulatedAnswers:
        """What a device says about its rows in a round. Permanent answers are drawn anew after ``every``
        rounds; 0: never."""
        period = (number - 1) // every if every else 0
        key = Secret(digest("simulated device", f"{self._seed} {period} {name}".encode()))
        real = {table: self._devices[name].needed[table] for table in self._tables.shared}
        perturber = Perturber(key, privacy, self._tables, real)
        return SimulatedAnswers(perturber, self._noise(_ANSWERS, name, number))

    def rounding(self, name: str, number: int) -> SimulatedNoise:
        return self._noise(_ROUNDING, name, number)

    def union_seed(self, number: int) -> bytes:
        """Public randomness of a round, which a deployed server draws afresh."""
        return digest("simulated union", f"{self._seed} {number}".encode())

    def shuffle(self, name: str, number: int) -> int:
        """The seed of the order of a device's training samples."""
        return self._noise(_SHUFFLE, name, number).integer()

    def _noise(self, stream: int, name: str, number: int) -> SimulatedNoise:
        return SimulatedNoise(stream, self._seed, number, self._places[name])
