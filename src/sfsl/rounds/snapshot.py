"""A client of a round between two messages as bytes (spec 4.5): see ``secagg.snapshot`` for its use."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from msgspec import Meta

from sfsl.codec import Codec, Message
from sfsl.crypto.identity import Identity
from sfsl.crypto.randomness import Randomness
from sfsl.errors import RemoteError, StateError, WrongPhase
from sfsl.rounds.client import Answers, Phase, RoundClient
from sfsl.rounds.params import RoundParams, RoundPolicy
from sfsl.secagg.params import Layout
from sfsl.secagg.snapshot import Blobs, SessionSnapshot, restore, snapshot
from sfsl.submodel import ModelSpec, RowMaps, RowSet

LARGEST = 1 << 30
_WAITING = (
    Phase.CHECKED_IN,
    Phase.SHARED,
    Phase.UNITING,
    Phase.AWAITS_UNION,
    Phase.REQUESTED,
    Phase.UPLOADED,
)


class RoundSnapshot(Message, frozen=True, tag="round-snapshot"):
    """``asked`` and ``positions`` are the rows it asked for, which nobody else knows for certain: they are
    here only until the update is uploaded."""

    session: SessionSnapshot
    phase: Literal["CHECKED_IN", "SHARED", "UNITING", "AWAITS_UNION", "REQUESTED", "UPLOADED"]
    params: RoundParams | None
    layout: Layout | None
    asked: dict[Annotated[str, Meta(max_length=64)], bytes]
    positions: Blobs
    union: bytes


_CODEC = Codec(RoundSnapshot)


@dataclass(frozen=True)
class Own:
    """What of a client is not in a snapshot: its terms, its memory, its source of chance.

    ``rounding`` and ``identity`` as ``RoundClient`` and ``secagg.Client`` have them.
    """

    answers: Answers
    model: ModelSpec
    maps: RowMaps
    policy: RoundPolicy
    randomness: Randomness
    rounding: Randomness | None = None
    identity: Identity | None = None
    identities: Mapping[str, bytes] | None = None


def encode(client: RoundClient) -> bytes:
    """Of a client that waits for the server's next message."""
    phase = client.phase
    if phase not in _WAITING:
        raise WrongPhase(f"a client that is {phase.name} waits for no message")
    asked = phase is Phase.REQUESTED
    kept = RoundSnapshot(
        session=snapshot(client._session),
        phase=phase.name,  # type: ignore[arg-type]
        params=None if phase in (Phase.CHECKED_IN, Phase.UPLOADED) else client._params,
        layout=client._layout if asked else None,
        asked={name: _bytes(rows.rows) for name, rows in client._asked.items()} if asked else {},
        positions=tuple(map(_bytes, client._positions)) if asked else (),
        union=client._union_digest if asked else b"",
    )
    return _CODEC.encode(kept)


def decode(data: bytes) -> RoundSnapshot:
    try:
        kept = _CODEC.decode(data, limit=LARGEST)
    except RemoteError as error:
        raise StateError(f"what was kept of a round cannot be read: {error}") from None
    assert isinstance(kept, RoundSnapshot)  # noqa: S101 -- the codec knows no other type
    return kept


def revive(kept: RoundSnapshot, own: Own) -> RoundClient:
    """The client that was."""
    try:
        session = restore(
            kept.session,
            own.policy.session,
            own.randomness,
            identity=own.identity,
            identities=own.identities,
        )
    except RemoteError as error:
        raise StateError(f"what was kept of a round cannot be used: {error}") from None
    client = RoundClient(session, own.answers, own.model, own.maps, own.policy, own.randomness, own.rounding)
    client.phase = Phase[kept.phase]
    if kept.session.roster is not None:
        client._round_id = kept.session.roster.params.round_id
    if kept.params is not None:
        client._params, client._encoding = kept.params, kept.params.union.build()
    if kept.layout is not None:
        client._layout, client._union_digest = kept.layout, kept.union
        client._asked = {name: RowSet(_rows(rows)) for name, rows in kept.asked.items()}
        client._positions = tuple(_rows(rows).astype(np.intp) for rows in kept.positions)
    return client


def _bytes(rows: np.ndarray) -> bytes:
    return rows.astype("<i8").tobytes()


def _rows(data: bytes) -> np.ndarray:
    if len(data) % 8:
        raise StateError("what was kept of a round has half a row number in it")
    return np.frombuffer(data, "<i8").astype(np.int64)
