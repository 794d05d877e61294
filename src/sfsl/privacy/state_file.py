"""The bytes of a client's state (spec privacy 6.1)."""

import hashlib
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from sfsl.codec import Codec, Message
from sfsl.errors import RemoteError, StateError, WrongVersion
from sfsl.privacy.ledger import Ledger
from sfsl.privacy.period import Calendar

MAGIC = b"sfsl state\r\n\x1a\n\x00\x00"  # 16 bytes; a text-mode copy would break them
LARGEST = 1 << 24

ClientName = Annotated[str, Meta(min_length=1, max_length=128)]
Digest = Annotated[bytes, Meta(min_length=32, max_length=32)]
Chance = Annotated[float, Meta(ge=0, le=1)]


class FrozenPeriod(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a period fixes: the key of its permanent answers, the data and settings they were drawn for.

    ``barred``: the state was rolled back in this period, so its key may be a second one.
    """

    number: int
    key: Digest
    p1: Chance
    p2: Chance
    snapshot: Digest
    decoys: Digest
    barred: bool = False

    def __repr__(self) -> str:
        return f"FrozenPeriod(number={self.number}, redacted)"

    def __rich_repr__(self) -> Any:
        yield repr(self)


class StateRecord(Message, frozen=True, tag="client-state", omit_defaults=True):
    """All that a client keeps from round to round. ``going_on``: the digest of what another keeps of a round
    under way, the last thing that was kept of it (``ClientState.keep``)."""

    client: ClientName
    calendar: Calendar
    ledger: Ledger
    period: FrozenPeriod | None
    going_on: Digest | None = None


_CODEC = Codec(StateRecord)


def encode(record: StateRecord) -> bytes:
    body = _CODEC.encode(record)
    return MAGIC + hashlib.sha256(body).digest() + body


def decode(data: bytes, where: str) -> StateRecord:
    """Return the record, or say what the file is instead."""
    if not data.startswith(MAGIC):
        raise StateError(f"{where} is not a client state of this package (or its first bytes are damaged)")
    checksum, body = data[len(MAGIC) : len(MAGIC) + 32], data[len(MAGIC) + 32 :]
    if hashlib.sha256(body).digest() != checksum:
        raise StateError(
            f"{where} is damaged: its checksum does not fit. Do not restore an old copy, which has lost "
            "count; sit out until the next period and create a new state then"
        )
    try:
        record = _CODEC.decode(body, limit=LARGEST)
    except WrongVersion as error:
        raise StateError(f"{where} was written by another version of this package: {error}") from None
    except RemoteError as error:
        raise StateError(f"{where} does not hold a client state: {error}") from None
    assert isinstance(record, StateRecord)  # noqa: S101 -- the codec knows no other type
    return record
