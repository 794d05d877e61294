"""What a client keeps from round to round, and its bytes (spec privacy 6.1)."""

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import ArrayLike

from sfsl.codec import Message
from sfsl.crypto.secret import digest
from sfsl.durable.records import RecordFormat
from sfsl.privacy.ledger import Ledger
from sfsl.privacy.parameters import IndexPrivacy
from sfsl.privacy.period import Calendar
from sfsl.privacy.response import Decoys, Tables

MAGIC = b"sfsl state\r\n\x1a\n\x00\x00"  # 16 bytes; a text-mode copy would break them

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


def freeze(
    number: int,
    key: bytes,
    privacy: IndexPrivacy,
    tables: Tables,
    real: Mapping[str, ArrayLike],
    decoys: Decoys | None,
) -> FrozenPeriod:
    """Return what a period fixes. The digests are keyed: nobody can try out sets without the period's key."""
    rows = tables.per_shared_table(real, "the real set")
    sets = [part for name in rows for part in (name.encode(), np.unique(rows[name]).astype(">u8").tobytes())]
    plan = []
    if decoys is not None:
        plan = [decoys.draws.to_bytes(8, "big")]
        for name in sorted(decoys.domain):
            plan += [name.encode(), decoys.domain[name].to_bytes(8, "big")]
    return FrozenPeriod(
        number=number,
        key=key,
        p1=privacy.p1,
        p2=privacy.p2,
        snapshot=digest("period-snapshot", key, *sets),
        decoys=digest("period-decoys", key, *plan),
    )


class StateRecord(Message, frozen=True, tag="client-state", omit_defaults=True):
    """All that a client keeps from round to round. ``going_on``: the digest of what another keeps of a round
    under way, the last thing that was kept of it (``ClientState.keep``)."""

    client: ClientName
    calendar: Calendar
    ledger: Ledger
    period: FrozenPeriod | None
    going_on: Digest | None = None


FORMAT = RecordFormat(
    StateRecord,
    MAGIC,
    largest=1 << 24,
    what="a client state",
    lost="Do not restore an old copy, which has lost count; sit out until the next period and create a new "
    "state then",
)
