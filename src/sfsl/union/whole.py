"""Nothing is sent and nothing is hidden to be opened: the union is declared to be all of the domain.

A round over this union is full-model federated learning: everyone asks for every row.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sfsl.arrays import Indices
from sfsl.crypto.randomness import Randomness
from sfsl.crypto.ring import Z32, Ring, Words
from sfsl.errors import ParameterError
from sfsl.union.encoding import check_domain, checked_sum, index_set

LARGEST_WHOLE = 2**26


@dataclass(frozen=True)
class Whole:
    domain: int
    reason: str = "asked for by name"
    name: ClassVar[str] = "whole"
    ring: ClassVar[Ring] = Z32
    length: ClassVar[int] = 0
    false_positives_expected: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        check_domain(self.domain, capacity=1)
        if self.domain > LARGEST_WHOLE:
            raise ParameterError(f"a full model of {self.domain} rows is too much (at most {LARGEST_WHOLE})")

    @property
    def capacity(self) -> int:
        return self.domain

    def encode(self, indices: Indices, randomness: Randomness) -> Words:
        index_set(indices, self.domain, self.capacity)
        return self.ring.zeros(self.length)

    def decode(self, total: Words) -> Indices:
        checked_sum(total, self.ring, self.length)
        return np.arange(self.domain, dtype=np.int64)
