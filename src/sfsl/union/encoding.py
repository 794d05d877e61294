"""How index sets become vectors: what all encodings share, and those that need no table of cells.

For every encoding, the distribution of the sum depends on the union alone: each owner adds an independent
uniform factor, and a sum of one or more of those is uniform (paper Thm. 4). So factors may be zero: a
draw that avoids zero would make the number of owners show. The price is that an index of the union is
missed, undetectably, with the small probability that its factor is zero.

Public randomness seeds one hash function, for a 32-byte seed, a purpose and a number
(docs/spec/union-sizing.md §1)::

    key    = SHA-256(frame("union hash", seed, purpose, number))      sfsl.crypto.secret.digest
    a, b   = the first and second 8 bytes of the key, little-endian
    mix(z) = z ^= z >> 30; z *= 0xBF58476D1CE4E5B9; z ^= z >> 27; z *= 0x94D049BB133111EB; z ^= z >> 31
    hash   = mix(mix(x ^ a) ^ b)                                      on 64-bit words that wrap
    below  = ((hash >> 32) * bound) >> 32                             a value in [0, bound)

mix is the finaliser of SplitMix64.

What it claims: for a set of indices, however structured, that was fixed before the seed was drawn, the
values of differently numbered functions behave as independent uniform ones, to the accuracy that the
tests and the sizing can see. No value is an affine function of x over any ring. The bias of ``below`` is
at most bound / 2^32 relative, 1e-4 for the largest table.

What it does not claim: to be a pseudorandom function. The seed is public, and whoever picks indices
after seeing it finds collisions at will. A client that does so makes the union of its round fail, which
any client can do by sending noise.

Texts are indices by their 63-bit hashes, which the server sees. Whoever guesses a string can hash it and see
whether it is in the union: that is what a union reveals anyway. Strings that nobody guesses stay unknown to
the server; a client maps back those it holds itself. A keyed hash would keep guessing from outsiders, not
from any member.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from sfsl.arrays import LARGEST_DOMAIN, Indices, whole_numbers
from sfsl.crypto.ring import Z32, Ring, Words, uniform
from sfsl.crypto.secret import Randomness, digest
from sfsl.errors import InputError, ParameterError, UnionFailed

LARGEST_IDENTITY = LARGEST_WHOLE = 2**26
SEED_BYTES = 32
LARGEST_BOUND = 2**32
_HALF = np.uint64(32)
_FIRST_MULTIPLIER = np.uint64(0xBF58476D1CE4E5B9)
_SECOND_MULTIPLIER = np.uint64(0x94D049BB133111EB)
STRING_DOMAIN = 2**63


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


def estimated_elements(occupied: int, cells: int, bins: int, throws: int = 1) -> float:
    """How many elements leave ``occupied`` of ``cells`` cells non-empty; each is thrown into ``bins`` bins
    ``throws`` times. When every cell is occupied, no more than a lower bound can be said."""
    empty = max(cells - occupied, 0.5) / cells
    return math.log(empty) / (throws * math.log1p(-1 / bins)) if bins > 1 else float(occupied > 0)


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
    """The whole domain as the union, whatever the sets are: nobody sends a word. A round over this union is
    full-model federated learning: everyone asks for every row."""

    name: ClassVar[str] = "whole"
    _too_much: ClassVar[str] = "a full model of {} rows is too much (at most {})"
    length: ClassVar[int] = 0

    def encode(self, indices: Indices, randomness: Randomness) -> Words:
        index_set(indices, self.domain, self.capacity)
        return self.ring.zeros(self.length)

    def decode(self, total: Words) -> Indices:
        checked_sum(total, self.ring, self.length)
        return np.arange(self.domain, dtype=np.int64)


class KeyedHash:
    """One hash function of 63-bit indices."""

    __slots__ = ("_first", "_second")

    def __init__(self, seed: bytes, purpose: str, number: int = 0) -> None:
        if len(seed) != SEED_BYTES:
            raise ParameterError(f"a hash seed has {SEED_BYTES} bytes, not {len(seed)}")
        key = digest("union hash", seed, purpose.encode("ascii"), number.to_bytes(4, "big"))
        self._first = np.uint64(int.from_bytes(key[:8], "little"))
        self._second = np.uint64(int.from_bytes(key[8:16], "little"))

    def words(self, indices: Indices) -> NDArray[np.uint64]:
        """64 bits for each index."""
        z = indices.astype(np.uint64)
        z ^= self._first
        _mix(z)
        z ^= self._second
        _mix(z)
        return z

    def below(self, indices: Indices, bound: int) -> Indices:
        """A number in [0, bound) for each index; ``bound`` is at most 2^32."""
        if not 0 < bound <= LARGEST_BOUND:
            raise ParameterError(f"a hash has 1 to {LARGEST_BOUND} values, not {bound}")
        z = self.words(indices)
        z >>= _HALF
        z *= np.uint64(bound)
        z >>= _HALF
        return z.view(np.int64)


def _mix(z: NDArray[np.uint64]) -> None:
    z ^= z >> np.uint64(30)
    z *= _FIRST_MULTIPLIER
    z ^= z >> np.uint64(27)
    z *= _SECOND_MULTIPLIER
    z ^= z >> np.uint64(31)


def hash_strings(strings: Iterable[str], domain: int = STRING_DOMAIN) -> dict[int, str]:
    """A local dictionary from index to string; two strings of one client on one index are an error."""
    found: dict[int, str] = {}
    for string in strings:
        index = string_index(string, domain)
        if found.setdefault(index, string) != string:
            raise InputError(
                f"two strings fall on one index of a domain of {domain}; use a larger domain (up to 2^63)"
            )
    return found


def string_index(string: str, domain: int = STRING_DOMAIN) -> int:
    return int.from_bytes(digest("string", string.encode())[:16], "big") % domain
