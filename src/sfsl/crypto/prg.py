"""Mask streams: AES-256-CTR read as uniform words of a ring (spec 2.5)."""

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR

from sfsl.crypto.randomness import Randomness
from sfsl.crypto.ring import F31, Ring, Words
from sfsl.crypto.secret import Secret
from sfsl.errors import ParameterError

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
        attempt = 1
        while True:
            block = _counter_mode(self._key, (attempt << _REDRAW_SHIFT) + position).update(bytes(4))
            word = int.from_bytes(block, "little") & F31.modulus
            if word != F31.modulus:
                return word
            attempt += 1

    def __repr__(self) -> str:
        return f"MaskStream({self._ring.name}, redacted)"


def _counter_mode(key: Secret, counter: int):  # type: ignore[no-untyped-def]
    return Cipher(AES256(key.reveal()), CTR(counter.to_bytes(16, "big"))).encryptor()


def uniform(ring: Ring, count: int, randomness: Randomness) -> Words:
    """``count`` fresh uniform words of a ring."""
    words = ring.zeros(count)
    MaskStream(Secret(randomness.bytes(32)), ring).fill(words)
    return words
