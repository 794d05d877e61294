"""Noise that a seed repeats: for how simulated devices answer and round, and never for keys or masks."""

import numpy as np


class SeededRandomness:
    """Bytes from numpy's generator under the given numbers. Whoever knows them can predict every byte."""

    def __init__(self, *seed: int) -> None:
        self._generator = np.random.default_rng(seed)

    def bytes(self, count: int, /) -> bytes:
        return self._generator.bytes(count)

    def integer(self) -> int:
        """One number below 2^31, such as a seed."""
        return int(self._generator.integers(2**31))
