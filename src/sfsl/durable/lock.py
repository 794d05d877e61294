"""Locks that a crash releases, and what is closed at the end of a with."""

import fcntl
import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Self

from sfsl.errors import LocalError, StoreError, StoreInUse


class Closing(ABC):
    """Whoever has a ``close`` can be used in a ``with``, which calls it however the block ends."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class FileLock(Closing):
    """Holds the lock beside a path from construction to ``close``, or to the end of the process.

    The lock goes with the process however it ends, so a crash leaves nothing to clean up. ``error``,
    ``in_use`` and ``busy`` say what to raise, and in which words, where what is locked is not a store.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        error: type[LocalError] = StoreError,
        in_use: type[LocalError] = StoreInUse,
        busy: str = "is open elsewhere; end that run or wait for it, then try again",
    ) -> None:
        self.path = Path(os.path.realpath(path))  # two names of one file must meet at one lock
        self._error, self._in_use = error, in_use
        self._process = os.getpid()
        try:
            self._lock = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as failure:
            raise error(
                f"cannot lock {self.path}: {failure.strerror}; its folder must exist and be writable"
            ) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as failure:
            self.close()
            if isinstance(failure, BlockingIOError):
                raise in_use(f"{self.path} {busy}") from None
            raise error(f"cannot lock {self.path}: {failure.strerror}; use a local disk") from None

    def require(self) -> None:
        """Raise unless this process holds the lock."""
        if self._lock < 0:
            raise self._error(f"{self.path} was closed; open it again")
        if os.getpid() != self._process:
            raise self._in_use(
                f"{self.path} was opened before a fork; only the process that opened it may use it"
            )

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
