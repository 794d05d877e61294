"""Which held-out samples choose the model, and which say what it is worth."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfsl.arrays import Bits, Indices
from sfsl.run.fleet import Devices, Fleet
from sfsl.settings.run import RunConfig
from sfsl.simulate.engine import Pool
from sfsl.training.task import ClientData

TEST, VALID = "test", "valid"
# By fewer clicks, or non-clicks, it is chance that chooses a model.
LEAST = 10


@dataclass(frozen=True)
class Part:
    """The samples of a pool that lie at ``positions``."""

    pool: Pool
    positions: Indices

    def __len__(self) -> int:
        return len(self.positions)

    def samples(self, positions: Indices) -> ClientData:
        return self.pool.samples(self.positions[positions])

    def column(self, name: str) -> NDArray[Any] | None:
        values = self.pool.column(name)
        return None if values is None else values[self.positions]

    def owners(self) -> tuple[Sequence[object] | NDArray[Any], Indices]:
        names, which = self.pool.owners()
        return names, which[self.positions]


def split_held_out(config: RunConfig, fleet: Fleet) -> dict[str, Pool]:
    """Return the pools that a run evaluates on. ``valid`` has the held-out samples of a share of devices
    (``data.validation``) that the run's seed draws, and ``test`` those of all others; no device is in both.

    There is only ``test``, with everyone's samples, where no share is asked for, and with very few devices:
    where the test set would lack clicks or non-clicks, or ``valid`` would have fewer than ``LEAST`` of them.
    """
    pool, share = fleet.test, config.data.validation
    labels = pool.column("label") if share else None
    if labels is None or not len(labels):
        return {TEST: pool}
    chosen = _draw_devices(pool, share, config.run.seed)
    parts = {TEST: np.flatnonzero(~chosen), VALID: np.flatnonzero(chosen)}
    clicks = {name: np.count_nonzero(labels[part] == 1) for name, part in parts.items()}
    fewest = {name: min(clicks[name], len(part) - clicks[name]) for name, part in parts.items()}
    if not fewest[TEST] or fewest[VALID] < LEAST:
        return {TEST: pool}
    return {name: Part(pool, part) for name, part in parts.items()}


def choosing(pools: Mapping[str, Pool], fleet: Fleet) -> set[str]:
    """Name the devices whose samples are in ``valid``."""
    if VALID not in pools:
        return set()
    names, which = pools[VALID].owners()
    numbers = set(np.unique(which).tolist())
    if isinstance(fleet.devices, Devices):  # theirs are the numbers of the data
        return {name for name, number in fleet.devices.numbers.items() if number in numbers}
    return {str(names[number]) for number in numbers}


def _draw_devices(pool: Pool, share: float, seed: int) -> Bits:
    """Say which samples are of a device that is drawn. That follows from its name and the seed alone, so that
    it stays when other devices come or go."""
    names, which = pool.owners()
    present = np.unique(which)
    drawn = np.zeros(len(names), dtype=bool)
    drawn[present] = [_fraction(seed, names[number]) < share for number in present.tolist()]
    return np.asarray(drawn[which])


def _fraction(seed: int, name: object) -> float:
    """Return a number from 0 to 1 that is drawn for a device once and for all."""
    return (
        int.from_bytes(blake2b(f"{seed}/{name}".encode(errors="surrogatepass"), digest_size=8).digest())
        / 2**64
    )
