"""Hash functions that public randomness seeds, and texts as indices.

One function, for a 32-byte seed, a purpose and a number (spec: docs/spec/union-sizing.md §1)::

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

The server sees 63-bit hashes. Whoever guesses a string can hash it and see whether it is in the union:
that is what a union reveals anyway. Strings that nobody guesses stay unknown to the server; a client maps
back those it holds itself. A keyed hash would keep guessing from outsiders, not from any member.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from sfsl.arrays import Indices
from sfsl.crypto.secret import digest
from sfsl.errors import InputError, ParameterError

SEED_BYTES = 32
LARGEST_BOUND = 2**32

_HALF = np.uint64(32)
_FIRST_MULTIPLIER = np.uint64(0xBF58476D1CE4E5B9)
_SECOND_MULTIPLIER = np.uint64(0x94D049BB133111EB)


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


STRING_DOMAIN = 2**63


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
