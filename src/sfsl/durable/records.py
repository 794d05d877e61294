"""The bytes of a file that holds one record: what kind of file it is, a checksum, the record.

A checksum finds damage, not forgery: whoever can write the file can write the checksum too.
"""

import hashlib
from typing import Generic, TypeVar

from sfsl.codec import Codec, Message
from sfsl.errors import RemoteError, StateError, WrongVersion

_CHECKSUM_BYTES = 32

Record = TypeVar("Record", bound=Message)


def with_checksum(body: bytes) -> bytes:
    return hashlib.sha256(body).digest() + body


def without_checksum(data: bytes) -> bytes | None:
    """What ``with_checksum`` was given; None where it is damaged."""
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
        """The record, or a ``StateError`` that says what the file is instead."""
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
