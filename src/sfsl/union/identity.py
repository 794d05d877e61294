"""One cell for each index of a small domain (paper §V, where it replaces the Bloom filter)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sfsl.arrays import Indices
from sfsl.crypto.prg import uniform
from sfsl.crypto.randomness import Randomness
from sfsl.crypto.ring import Z32, Ring, Words
from sfsl.errors import ParameterError
from sfsl.union.encoding import check_domain, checked_sum, index_set

LARGEST_IDENTITY = 2**26


@dataclass(frozen=True)
class Identity:
    """Exact, but for an index missed with probability 2^-32. Any vector is a valid sum: noise is not seen."""

    domain: int
    reason: str = "asked for by name"
    name: ClassVar[str] = "identity"
    ring: ClassVar[Ring] = Z32

    def __post_init__(self) -> None:
        check_domain(self.domain, capacity=1)
        if self.domain > LARGEST_IDENTITY:
            raise ParameterError(
                f"one cell for each of {self.domain} indices is too much (at most {LARGEST_IDENTITY}); "
                f"use 'sketch'"
            )

    @property
    def length(self) -> int:
        return self.domain

    @property
    def capacity(self) -> int:
        return self.domain

    @property
    def false_positives_expected(self) -> float:
        return 0.0

    def encode(self, indices: Indices, randomness: Randomness) -> Words:
        elements = index_set(indices, self.domain, self.capacity)
        vector = self.ring.zeros(self.length)
        vector[elements] = uniform(self.ring, len(elements), randomness)
        return vector

    def decode(self, total: Words) -> Indices:
        return np.flatnonzero(checked_sum(total, self.ring, self.length)).astype(np.int64)
