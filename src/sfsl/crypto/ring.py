"""Words of a ring, and streams of them under a key."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import NDArray

from sfsl.crypto.secret import Randomness, Secret
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


# Small enough for the second-level cache, large enough that a call costs nothing beside its bytes.
CHUNK_BYTES = 1 << 18
_ZEROS = memoryview(bytes(CHUNK_BYTES))
_REDRAW_SHIFT = 96


class MaskStream:
    """The words of one stream, in order. A key makes one stream, ever: the counter starts at zero."""

    __slots__ = ("_encryptor", "_key", "_position", "_ring")

    def __init__(self, key: Secret, ring: Ring) -> None:
        self._key = key
        self._ring = ring
        self._encryptor = _counter_mode(key, 0)
        self._position = 0

    def fill(self, out: Words) -> None:
        """Overwrite a contiguous array of the ring's words with the next words of the stream."""
        if out.ndim != 1 or out.dtype != self._ring.dtype:
            raise ParameterError(f"a stream of {self._ring.name} fills flat arrays of its words only")
        raw = out.view(np.uint8).data
        for start in range(0, len(raw), CHUNK_BYTES):
            piece = raw[start : start + CHUNK_BYTES]
            self._encryptor.update_into(_ZEROS[: len(piece)], piece)
        if self._ring.modulus == F31.modulus:
            self._reject(out)
        self._position += len(out)

    def _reject(self, out: Words) -> None:
        """Keep 31 bits of each word; a word equal to p is redrawn, so every element is equally likely."""
        np.bitwise_and(out, np.uint32(F31.modulus), out=out)
        if not len(out) or int(out.max()) != F31.modulus:  # all but once in 2^31 words
            return
        for index in np.flatnonzero(out == F31.modulus):
            out[index] = self._redraw(self._position + int(index))

    def _redraw(self, position: int) -> int:
        """Word ``position``, attempt t = 1, 2, …: the first word of counter block t * 2^96 + position."""
        for attempt in count(1):
            block = _counter_mode(self._key, (attempt << _REDRAW_SHIFT) + position).update(bytes(4))
            word = int.from_bytes(block, "little") & F31.modulus
            if word != F31.modulus:
                break
        return word

    def __repr__(self) -> str:
        return f"MaskStream({self._ring.name}, redacted)"


def _counter_mode(key: Secret, counter: int):  # type: ignore[no-untyped-def]
    return Cipher(AES256(key.reveal()), CTR(counter.to_bytes(16, "big"))).encryptor()


def uniform(ring: Ring, count: int, randomness: Randomness) -> Words:
    """``count`` fresh uniform words of a ring."""
    words = ring.zeros(count)
    MaskStream(Secret(randomness.bytes(32)), ring).fill(words)
    return words
