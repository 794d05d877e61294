"""Randomized response of a whole cohort on a device: who asks for which rows.

As in ``sfsl.privacy`` a permanent answer is a function of client, period and row, and a fresh one is drawn in
each round. The function here is a hash that a device computes fast. It hides nothing: in a simulation there
is nobody to hide from.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from sfsl_research.resident.clients import FlatRows

# Of splitmix64, as signed numbers.
_GOLDEN, _FIRST, _SECOND = (
    one - 2**64 for one in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
# Answers at once: 2^24 of 8 bytes, and a few such arrays.
_AT_ONCE = 1 << 24


@dataclass(frozen=True)
class Union:
    """The rows of all clients, once each, in order, and then fillers up to the number of rows given.

    ``at`` says where each given row stands in it.
    """

    rows: Tensor
    real: Tensor
    at: Tensor

    @classmethod
    def of(cls, row: Tensor, filler: int) -> "Union":
        """Unite these rows without asking the device how many there are."""
        ordered, source = torch.sort(row)
        fresh = torch.ones_like(ordered, dtype=torch.bool)
        fresh[1:] = ordered[1:] != ordered[:-1]
        number = fresh.cumsum(0) - 1
        rows = torch.full_like(row, filler).scatter_(0, number, ordered)
        at = torch.empty_like(row).scatter_(0, source, number)
        return cls(rows, rows != filler, at)


class Answers:
    """Draws the answers of one cohort in one round. ``chances``, [clients, 4], are each client's p1 to p4."""

    def __init__(self, keys: Tensor, chances: Tensor, generator: torch.Generator) -> None:
        self._keys, self._chances, self._generator = keys, chances, generator

    def about_own(self, rows: FlatRows) -> Tensor:
        """Draw each client's answers about rows that it really has."""
        chances = self._chances[rows.client]
        return self._drawn(self._keys[rows.client], rows.row, chances[:, 0], chances)

    def about_union(self, rows: FlatRows, union: Union, asked: Tensor) -> Iterator[Tensor]:
        """Draw which rows of the union some clients at a time ask for; ``asked`` are the answers about their
        own ``rows``."""
        clients = len(self._keys)
        together = max(1, _AT_ONCE // max(len(union.rows), 1))
        for start in range(0, clients, together):
            stop = min(start + together, clients)
            keys, chances = self._keys[start:stop].unsqueeze(1), self._chances[start:stop].unsqueeze(1)
            others = self._drawn(keys, union.rows.unsqueeze(0), chances[..., 1], chances) & union.real
            inside = (rows.client >= start) & (rows.client < stop)
            place = torch.where(inside, rows.client - start, len(others))
            every = torch.cat([others, torch.zeros_like(others[:1])])
            yield every.index_put_((place, union.at), asked)[:-1]

    def _drawn(self, keys: Tensor, rows: Tensor, permanent: Tensor, chances: Tensor) -> Tensor:
        lasting = _fraction(_mixed(keys + rows * _GOLDEN)) < permanent
        fresh = torch.rand(lasting.shape, generator=self._generator, device=keys.device, dtype=torch.float64)
        return fresh < torch.where(lasting, chances[..., 2], chances[..., 3])


def client_keys(numbers: Tensor, seed: int, period: int) -> Tensor:
    """Make the keys from which clients' permanent answers of a period follow."""
    salt = torch.full_like(numbers, (seed * 1_000_003 + period) % 2**62)
    return _mixed(_mixed(salt) + numbers * _GOLDEN)


def _mixed(x: Tensor) -> Tensor:
    """Mix as splitmix64 finishes, on signed numbers that wrap around."""
    x = (x ^ _shifted(x, 30)) * _FIRST
    x = (x ^ _shifted(x, 27)) * _SECOND
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """Shift to the right, with zeros from the left."""
    return torch.bitwise_and(x >> bits, 2 ** (64 - bits) - 1)


def _fraction(x: Tensor) -> Tensor:
    return _shifted(x, 11).to(torch.float64) * 2.0**-53
