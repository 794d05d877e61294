"""Encodings of index sets that need no hashing: a word for each index, or the whole domain.

For every encoding, the distribution of the sum depends on the union alone: each owner adds an independent
uniform factor, and a sum of one or more of those is uniform (paper Thm. 4). So factors may be zero: a
draw that avoids zero would make the number of owners show. The price is that an index of the union is
missed, undetectably, with the small probability that its factor is zero.

A round over this union is full-model federated learning: everyone asks for every row.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn, Protocol

import numpy as np

from sfsl.arrays import LARGEST_DOMAIN, Indices, whole_numbers
from sfsl.crypto.ring import Z32, Ring, Words, uniform
from sfsl.crypto.secret import Randomness
from sfsl.errors import InputError, ParameterError, UnionFailed


class Encoding(Protocol):
    """How one round represents index sets. Everybody in the round has the same."""

    @property
    def name(self) -> str: ...
    @property
    def ring(self) -> Ring: ...
    @property
    def length(self) -> int:
        """Words of a vector."""

    @property
    def domain(self) -> int:
        """Indices are 0..domain - 1."""

    @property
    def capacity(self) -> int:
        """The largest union that is sure to decode, but for a stated small probability."""

    @property
    def reason(self) -> str:
        """Why this encoding, in words."""

    @property
    def false_positives_expected(self) -> float:
        """Indices that a union at capacity gains, at most, on average."""

    def encode(self, indices: Indices, randomness: Randomness) -> Words:
        """One client's vector. Duplicates count once; anything that cannot be held is an ``InputError``."""

    def decode(self, total: Words) -> Indices:
        """The union, ascending, from the sum of all vectors; ``UnionFailed`` instead of a part of it."""


def check_domain(domain: int, capacity: int) -> None:
    for what, value in (("domain", domain), ("capacity", capacity)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ParameterError(f"{what}: {value!r} is not a whole number from 1")
    if domain > LARGEST_DOMAIN:
        raise ParameterError(f"a domain has at most 2^63 indices, not {domain}")


def index_set(indices: Any, domain: int, capacity: int) -> Indices:
    """A caller's indices, checked, ascending, each once."""
    elements = np.unique(whole_numbers(indices, "indices of a set", domain, flat=True))
    if len(elements) > capacity:
        # Never trimmed to fit: what is left out would depend on the client's data (spec 9.3).
        raise InputError(
            f"a set of {len(elements)} indices where the whole union may have {capacity}; "
            f"a capacity of {len(elements)} or more is needed"
        )
    return elements


def checked_sum(total: Any, ring: Ring, length: int) -> Words:
    words = ring.vector(total, "sum of encoded sets")
    if words.shape != (length,):
        raise InputError(f"a sum of encoded sets has {length} words, not shape {words.shape}")
    return words


def fail(why: str, estimate: float, domain: int, capacity: int) -> NoReturn:
    """Raise ``UnionFailed`` with a capacity that would do: the estimate and a tenth, if that is more."""
    if estimate <= capacity:
        raise UnionFailed(
            f"{why}; the sum holds about {estimate:.0f} elements, within the capacity of {capacity}: someone "
            f"sent noise, or the hash seed was unlucky. Start a new round with a new seed",
            capacity=capacity,
        )
    enough = min(domain, int(1.1 * estimate) + 1)
    raise UnionFailed(
        f"{why}; the sum holds about {estimate:.0f} elements or more, over the capacity of {capacity}. "
        f"Start a new round with a capacity of {enough}",
        capacity=max(capacity, enough),
    )


LARGEST_IDENTITY = LARGEST_WHOLE = 2**26


@dataclass(frozen=True)
class _Unhashed:
    """An encoding that holds any set of its domain."""

    domain: int
    reason: str = "asked for by name"
    ring: ClassVar[Ring] = Z32
    _too_much: ClassVar[str]
    false_positives_expected: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        check_domain(self.domain, capacity=1)
        if self.domain > LARGEST_WHOLE:
            raise ParameterError(self._too_much.format(self.domain, LARGEST_WHOLE))

    @property
    def capacity(self) -> int:
        return self.domain


class Identity(_Unhashed):
    """A word for each index: exact, but for an index missed with probability 2^-32. Any vector is a valid
    sum: noise is not seen."""

    name: ClassVar[str] = "identity"
    _too_much: ClassVar[str] = "one cell for each of {} indices is too much (at most {}); use 'sketch'"

    @property
    def length(self) -> int:
        return self.domain

    def encode(self, indices: Indices, randomness: Randomness) -> Words:
        elements = index_set(indices, self.domain, self.capacity)
        vector = self.ring.zeros(self.length)
        vector[elements] = uniform(self.ring, len(elements), randomness)
        return vector

    def decode(self, total: Words) -> Indices:
        return np.flatnonzero(checked_sum(total, self.ring, self.length)).astype(np.int64)


class Whole(_Unhashed):
    """The whole domain as the union, whatever the sets are: nobody sends a word."""

    name: ClassVar[str] = "whole"
    _too_much: ClassVar[str] = "a full model of {} rows is too much (at most {})"
    length: ClassVar[int] = 0

    def encode(self, indices: Indices, randomness: Randomness) -> Words:
        index_set(indices, self.domain, self.capacity)
        return self.ring.zeros(self.length)

    def decode(self, total: Words) -> Indices:
        checked_sum(total, self.ring, self.length)
        return np.arange(self.domain, dtype=np.int64)
