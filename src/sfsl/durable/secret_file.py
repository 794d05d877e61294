"""One small secret file that is replaced whole or not at all, by one process at a time (spec privacy 6.2)."""

import fcntl
import os
from pathlib import Path

from sfsl.errors import StateError

_OWNER_ONLY = 0o600


class DurableFile:
    """Holds the lock on a path from construction to ``close``.

    ``replace`` returns when the new bytes would survive a power cut. If it fails, the disk holds the old
    bytes or the new ones and nobody knows which, so the object refuses all further use.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        # Two names of one file must meet at one lock.
        self.path = Path(os.path.realpath(path))
        self._usable = True
        self._process = os.getpid()
        try:
            self._lock = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _OWNER_ONLY)
        except OSError as error:
            raise StateError(
                f"cannot lock {self.path}: {error.strerror}; its folder must exist and be writable"
            ) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            if isinstance(error, BlockingIOError):
                raise StateError(
                    f"{self.path} is in use by another process; two must never answer from one state"
                ) from None
            raise StateError(f"cannot lock {self.path}: {error.strerror}; use a local disk") from None

    def exists(self) -> bool:
        return self.path.exists()

    def read(self, limit: int) -> bytes:
        try:
            with open(self.path, "rb") as file:
                data = file.read(limit + 1)
        except OSError as error:
            raise StateError(f"cannot read {self.path}: {error.strerror}") from None
        if len(data) > limit:
            raise StateError(f"{self.path} has more than {limit} bytes: it is not a state of this package")
        return data

    def replace(self, data: bytes) -> None:
        if not self._usable:
            raise StateError(f"an earlier write to {self.path} failed or it was closed; open it again")
        if os.getpid() != self._process:
            raise StateError(f"{self.path} was opened before a fork; only that process may write to it")
        self._usable = False
        try:
            self._replace(data)
        except OSError as error:
            raise StateError(
                f"cannot write {self.path}: {error.strerror}; nothing was answered. Check the disk, then "
                "open the state again"
            ) from None
        self._usable = True

    def _replace(self, data: bytes) -> None:
        """Write aside, flush, rename, flush the folder: each step is durable before the next one starts."""
        fresh = f"{self.path}.new"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(fresh, flags, _OWNER_ONLY)
        try:
            os.fchmod(file, _OWNER_ONLY)  # a leftover of an earlier crash may have other rights
            written = 0
            while written < len(data):
                written += os.write(file, data[written:])
            _flush(file)
        finally:
            os.close(file)
        os.rename(fresh, self.path)
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _flush(folder)
        finally:
            os.close(folder)

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
        self._usable = False


def _flush(descriptor: int) -> None:
    """macOS keeps fsynced data in the drive's cache unless asked in its own way."""
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is None:
        os.fsync(descriptor)
    else:
        fcntl.fcntl(descriptor, full)
