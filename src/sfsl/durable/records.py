"""One small secret record in a file of its own: with a checksum, locked, replaced whole or not at all.

A checksum finds damage, not forgery: whoever can write the file can write the checksum too.
"""

import hashlib
import os
from typing import Generic, TypeVar

from sfsl.codec import Codec, Message
from sfsl.durable.files import OWNER_ONLY, write_whole
from sfsl.durable.lock import Closing, FileLock
from sfsl.errors import RemoteError, StateError, WrongVersion

_CHECKSUM_BYTES = 32

Record = TypeVar("Record", bound=Message)


def with_checksum(body: bytes) -> bytes:
    return hashlib.sha256(body).digest() + body


def without_checksum(data: bytes) -> bytes | None:
    """Return what ``with_checksum`` was given; None where it is damaged."""
    body = data[_CHECKSUM_BYTES:]
    return body if hashlib.sha256(body).digest() == data[:_CHECKSUM_BYTES] else None


class RecordFormat(Generic[Record]):
    """How records of one kind are kept. ``what`` names them in errors; ``lost`` says what to do where one is
    damaged."""

    def __init__(self, kind: type[Record], magic: bytes, *, largest: int, what: str, lost: str) -> None:
        self.largest = largest
        self._kind, self._magic, self._what, self._lost = kind, magic, what, lost
        self._codec = Codec(kind)

    def encode(self, record: Record) -> bytes:
        return self._magic + with_checksum(self._codec.encode(record))

    def decode(self, data: bytes, where: str) -> Record:
        """Return the record, or raise a ``StateError`` that says what the file is instead."""
        if not data.startswith(self._magic):
            raise StateError(f"{where} is not {self._what} of this package (or its first bytes are damaged)")
        body = without_checksum(data[len(self._magic) :])
        if body is None:
            raise StateError(f"{where} is damaged: its checksum does not fit. {self._lost}")
        try:
            record = self._codec.decode(body, limit=self.largest)
        except WrongVersion as error:
            raise StateError(f"{where} was written by another version of this package: {error}") from None
        except RemoteError as error:
            raise StateError(f"{where} does not hold {self._what}: {error}") from None
        assert isinstance(record, self._kind)  # noqa: S101 -- the codec knows no other type
        return record


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
