"""Hash functions that public randomness seeds, and texts as indices."""

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
