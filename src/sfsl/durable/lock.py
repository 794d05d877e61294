"""One process at a time on one store (spec submodel 7.3)."""

import fcntl
import os
from pathlib import Path

from sfsl.errors import StoreError, StoreInUse


class StoreLock:
    """Holds the lock beside a path from construction to ``close``, or to the end of the process.

    The lock goes with the process however it ends, so a crash leaves nothing to clean up.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._process = os.getpid()
        try:
            self._lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreError(
                f"cannot lock {path}: {error.strerror}; its folder must exist and be writable"
            ) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            self._lock = -1
            if isinstance(error, BlockingIOError):
                raise StoreInUse(
                    f"{path} is open elsewhere; end that run or wait for it, then try again"
                ) from None
            raise StoreError(f"cannot lock {path}: {error.strerror}; use a local disk") from None

    def require(self) -> None:
        """Raise unless this process holds the lock."""
        if self._lock < 0:
            raise StoreError(f"{self._path} was closed; open it again")
        if os.getpid() != self._process:
            raise StoreInUse(
                f"{self._path} was opened before a fork; only the process that opened it may use it"
            )

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
