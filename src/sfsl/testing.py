"""A deterministic randomness source for tests and vectors.

No module of this package imports this one (an import contract sees to it): deployed code cannot reach
it by accident. Whoever knows the seed knows every secret drawn from it.
"""

import hashlib

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR


class SeededRandomness:
    """AES-256-CTR under SHA-256 of a seed: the same seed gives the same bytes everywhere."""

    def __init__(self, seed: str | int) -> None:
        key = hashlib.sha256(f"sfsl test randomness {seed}".encode()).digest()
        self._stream = Cipher(AES256(key), CTR(bytes(16))).encryptor()

    def bytes(self, count: int, /) -> bytes:
        return self._stream.update(bytes(count))
