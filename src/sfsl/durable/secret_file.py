"""One small secret file that is replaced whole or not at all, by one process at a time (spec privacy 6.2)."""

import os

from sfsl.durable.closing import Closing
from sfsl.durable.files import OWNER_ONLY, write_whole
from sfsl.durable.lock import FileLock
from sfsl.errors import StateError


class DurableFile(Closing):
    """Holds the lock on a path from construction to ``close``.

    ``replace`` returns when the new bytes would survive a power cut. If it fails, the disk holds the old
    bytes or the new ones and nobody knows which, so the object refuses all further use.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        busy = "is in use by another process; two must never answer from one state"
        self._lock = FileLock(path, error=StateError, in_use=StateError, busy=busy)
        self.path = self._lock.path
        self._usable = True

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
        self._lock.require()
        if not self._usable:
            raise StateError(f"an earlier write to {self.path} failed; open it again")
        self._usable = False
        try:
            write_whole(self.path, data, mode=OWNER_ONLY)
        except OSError as error:
            raise StateError(
                f"cannot write {self.path}: {error.strerror}; nothing was answered. Check the disk, then "
                "open the state again"
            ) from None
        self._usable = True

    def close(self) -> None:
        self._lock.close()
