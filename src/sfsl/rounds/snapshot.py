"""A client of a round between two messages as bytes (spec 4.5): see ``secagg.snapshot`` for its use."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from msgspec import Meta, field

from sfsl.codec import Codec, Message
from sfsl.crypto.secret import Identity, Randomness
from sfsl.errors import RemoteError, StateError, WrongPhase
from sfsl.rounds import states
from sfsl.rounds.client import Answers, RoundClient
from sfsl.rounds.params import RoundParams, RoundPolicy
from sfsl.secagg.messages import Layout
from sfsl.secagg.moves import State
from sfsl.secagg.snapshot import Blobs, SessionSnapshot, restore, snapshot
from sfsl.submodel import ModelSpec, RowMaps, RowSet

LARGEST = 1 << 30


class RoundSnapshot(Message, frozen=True, kw_only=True, tag="round-snapshot"):
    """A state in bytes: see ``states`` for what its parts mean and which phase needs them."""

    session: SessionSnapshot
    phase: Literal["CHECKED_IN", "SHARED", "UNITING", "AWAITS_UNION", "REQUESTED", "UPLOADED"]
    params: RoundParams | None = None
    layout: Layout | None = None
    asked: dict[Annotated[str, Meta(max_length=64)], bytes] = field(default_factory=dict)
    positions: Blobs = ()
    union: bytes = b""


_CODEC = Codec(RoundSnapshot)


@dataclass(frozen=True)
class Own:
    """What of a client is not in a snapshot: its terms, its memory, its source of chance.

    ``rounding`` and ``identity`` are as ``RoundClient`` and ``secagg.Client`` have them.
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
    """Encode the state of a client that waits for the server's next message."""
    state, known = client.state, dict[str, Any]()
    if isinstance(state, states.New | states.Training | states.Finished | states.Left):
        raise WrongPhase(f"a client that is {client.phase.name} waits for no message")
    if isinstance(state, states.Invited):
        known["params"] = state.params
    if isinstance(state, states.Requested):
        known |= {"layout": state.layout, "union": state.union}
        known["asked"] = {name: _bytes(rows.rows) for name, rows in state.asked.items()}
        known["positions"] = tuple(map(_bytes, state.positions))
    phase: Any = state.phase.name
    return _CODEC.encode(RoundSnapshot(session=snapshot(client.session), phase=phase, **known))


def decode(data: bytes) -> RoundSnapshot:
    try:
        kept = _CODEC.decode(data, limit=LARGEST)
    except RemoteError as error:
        raise StateError(f"what was kept of a round cannot be read: {error}") from None
    assert isinstance(kept, RoundSnapshot)  # noqa: S101 -- the codec knows no other type
    return kept


def revive(kept: RoundSnapshot, own: Own) -> RoundClient:
    """Return the client that was."""
    try:
        session = restore(
            kept.session, own.policy.session, own.randomness, identity=own.identity, identities=own.identities
        )
    except RemoteError as error:
        raise StateError(f"what was kept of a round cannot be used: {error}") from None
    return RoundClient(
        session, own.answers, own.model, own.maps, own.policy, own.randomness, own.rounding, _state(kept)
    )


def _state(kept: RoundSnapshot) -> State:
    if kept.params is None or kept.session.roster is None:
        return states.CheckedIn() if kept.phase == "CHECKED_IN" else states.Uploaded()
    told = (kept.params, kept.params.union.build(), kept.session.roster.params.round_id)
    if kept.layout is None:
        return {"SHARED": states.Shared, "UNITING": states.Uniting}.get(kept.phase, states.AwaitsUnion)(*told)
    asked = {name: RowSet(_rows(rows)) for name, rows in kept.asked.items()}
    positions = tuple(_rows(rows).astype(np.intp) for rows in kept.positions)
    return states.Requested(*told, kept.layout, asked, positions, kept.union)


def _bytes(rows: np.ndarray) -> bytes:
    return rows.astype("<i8").tobytes()


def _rows(data: bytes) -> np.ndarray:
    if len(data) % 8:
        raise StateError("what was kept of a round has half a row number in it")
    return np.frombuffer(data, "<i8").astype(np.int64)
