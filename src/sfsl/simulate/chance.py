"""All that simulated devices do by chance, except keys and masks, from one seed.

So the same seed gives the same model whether its sums are masked or plain, in one process or on a network.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfsl.arrays import Indices
from sfsl.client.device import Device
from sfsl.crypto.secret import Randomness, Secret, digest
from sfsl.privacy import IndexPrivacy, Perturber, Tables
from sfsl.training.task import Task


class SeededRandomness:
    """Bytes from numpy's generator under the given numbers. Whoever knows them can predict every byte."""

    def __init__(self, *seed: int) -> None:
        self._generator = np.random.default_rng(seed)

    def bytes(self, count: int, /) -> bytes:
        return self._generator.bytes(count)

    def integer(self) -> int:
        """Draw one number below 2^31, such as a seed."""
        return int(self._generator.integers(2**31))


# Streams of a device's noise, told apart by their first number.
_ANSWERS, _ROUNDING, _SHUFFLE, _TOGETHER = 1, 2, 3, 4


class SimulatedAnswers:
    """A device's answers about its indices, without the durable state of a deployed one.

    The run's summary counts rounds and exposures; a deployed client has ``ClientState``, which enforces
    its limits. ``noise`` makes its fresh answers, so that a seed repeats them.
    """

    def __init__(self, perturber: Perturber, noise: Randomness, real: Mapping[str, Indices]) -> None:
        self._perturber, self._noise, self._real = perturber, noise, real

    def spend(self, round_id: bytes, rho: float) -> None:
        """Debit nothing: the run keeps the books."""

    def owned(self) -> Mapping[str, Indices]:
        return self._real

    def expose(self, round_id: bytes) -> Mapping[str, Indices]:
        return self._perturber.union_input()

    def answer(
        self, round_id: bytes, unions: Mapping[str, ArrayLike], randomness: Randomness | None = None
    ) -> Mapping[str, NDArray[np.bool_]]:
        return self._perturber.answer(unions, self._noise)


class Chance:
    """All that these devices do by chance; their places in the order of names are part of it."""

    def __init__(self, task: Task, devices: Mapping[str, Device], seed: int) -> None:
        kinds = ("shared", "derived", "personal")
        self._tables = Tables(
            **{kind: tuple(one.name for one in task.tables if one.kind == kind) for kind in kinds}
        )
        self._devices, self._seed = devices, seed
        self._places = {name: place for place, name in enumerate(sorted(devices))}

    def answers(self, name: str, number: int, privacy: IndexPrivacy, *, every: int) -> SimulatedAnswers:
        """Return what a device says about its rows in a round.

        Permanent answers are drawn anew after ``every`` rounds; with 0 never.
        """
        period = (number - 1) // every if every else 0
        key = Secret(digest("simulated device", f"{self._seed} {period} {name}".encode()))
        real = {table: self._devices[name].needed[table] for table in self._tables.shared}
        perturber = Perturber(key, privacy, self._tables, real)
        return SimulatedAnswers(perturber, self._noise(_ANSWERS, name, number), real)

    def rounding(self, name: str, number: int) -> SeededRandomness:
        """Return the randomness by which a device rounds its update in a round."""
        return self._noise(_ROUNDING, name, number)

    def noise(self, number: int) -> SeededRandomness:
        """Return what draws the noise of all clients of a round together, where sums are plain."""
        return SeededRandomness(_TOGETHER, self._seed, number)

    def union_seed(self, number: int) -> bytes:
        """Return the public randomness of a round, which a deployed server draws afresh."""
        return digest("simulated union", f"{self._seed} {number}".encode())

    def shuffle(self, name: str, number: int) -> int:
        """Return the seed of the order of a device's training samples."""
        return self._noise(_SHUFFLE, name, number).integer()

    def _noise(self, stream: int, name: str, number: int) -> SeededRandomness:
        return SeededRandomness(stream, self._seed, number, self._places[name])
