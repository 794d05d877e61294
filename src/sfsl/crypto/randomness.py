"""Where randomness comes from. It is always an argument, never a global.

The deterministic source for tests and vectors is in ``sfsl.testing``, which an import contract keeps
out of every other module of this package.
"""

import os
from typing import Protocol


class Randomness(Protocol):
    def bytes(self, count: int, /) -> bytes:
        """Return ``count`` fresh uniform bytes."""


class SystemRandomness:
    """The operating system's generator."""

    def bytes(self, count: int, /) -> bytes:
        return os.urandom(count)
