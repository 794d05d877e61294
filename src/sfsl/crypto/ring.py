"""The rings that vectors live in (spec 2.5): Z_2^32, Z_2^64 and the prime field F_(2^31-1)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfsl.errors import InputError, InvalidMessage, ParameterError

Words = NDArray[np.unsignedinteger[Any]]

_P31 = np.uint32(2**31 - 1)


@dataclass(frozen=True)
class Ring:
    """Addition modulo ``modulus`` on little-endian unsigned words. ``add`` and ``sub`` work in place."""

    name: str
    modulus: int
    dtype: np.dtype[Any]
    add: Callable[[Words, Words], None]
    sub: Callable[[Words, Words], None]

    @property
    def word_bytes(self) -> int:
        return int(self.dtype.itemsize)

    def zeros(self, count: int) -> Words:
        return np.zeros(count, self.dtype)

    def vector(self, values: Any, what: str) -> Words:
        """A checked copy of a caller's values: whole numbers in [0, modulus)."""
        try:
            array = np.asarray(values)
        except (ValueError, OverflowError) as error:
            raise InputError(f"{what}: not an array of numbers ({error})") from None
        if array.size == 0:
            return np.zeros(array.shape, self.dtype)
        if array.dtype.kind not in "ui" and not isinstance(values, np.ndarray):
            array = _whole(values, array)
        if array.dtype.kind not in "ui":
            raise InputError(
                f"{what}: whole numbers are needed, not {array.dtype}; quantize first "
                f"(unsigned words below {self.modulus})"
            )
        low, high = int(array.min()), int(array.max())
        if low < 0 or high >= self.modulus:
            raise InputError(
                f"{what}: values {low}..{high} do not fit the ring {self.name} (0..{self.modulus - 1})"
            )
        return array.astype(self.dtype)

    def to_bytes(self, words: Words) -> bytes:
        return words.tobytes()

    def from_bytes(self, data: bytes, count: int) -> Words:
        """Untrusted bytes as ``count`` words, or ``InvalidMessage``. The result is read-only."""
        if len(data) != count * self.word_bytes:
            raise InvalidMessage(f"{len(data)} bytes where {count} words of {self.word_bytes} bytes are due")
        words: Words = np.frombuffer(data, self.dtype)
        if self.modulus < 256**self.word_bytes and count and int(words.max()) >= self.modulus:
            raise InvalidMessage(f"a word outside the ring {self.name}")
        return words


def _whole(values: Any, array: NDArray[Any]) -> NDArray[Any]:
    """A list of whole numbers of which some exceed 2^63 comes as floats; take it as what it is."""
    exact = np.asarray(values, object)
    if all(type(value) is int and 0 <= value < 2**64 for value in exact.flat):
        return exact.astype(np.uint64)
    return array


def _wrapping_add(acc: Words, words: Words) -> None:
    np.add(acc, words, out=acc)


def _wrapping_sub(acc: Words, words: Words) -> None:
    np.subtract(acc, words, out=acc)


def _field_add(acc: Words, words: Words) -> None:
    np.add(acc, words, out=acc)  # below 2^32: no wrap
    np.minimum(acc, acc - _P31, out=acc)  # acc - p wraps to a huge value exactly when acc < p


def _field_sub(acc: Words, words: Words) -> None:
    _field_add(acc, _P31 - words)


Z32 = Ring("z32", 2**32, np.dtype("<u4"), _wrapping_add, _wrapping_sub)
Z64 = Ring("z64", 2**64, np.dtype("<u8"), _wrapping_add, _wrapping_sub)
F31 = Ring("f31", 2**31 - 1, np.dtype("<u4"), _field_add, _field_sub)

RINGS = {ring.name: ring for ring in (Z32, Z64, F31)}


def ring_named(name: str) -> Ring:
    try:
        return RINGS[name]
    except (KeyError, TypeError):
        raise ParameterError(f"no ring {name!r}; there are {', '.join(RINGS)}") from None
