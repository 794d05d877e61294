"""Clients of rounds between two messages, as bytes (spec 4.5). What a snapshot is for, and that it is used
once, ``secagg.states`` says."""

from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from msgspec import Meta, field

from sfsl.codec import Codec, Message
from sfsl.errors import RemoteError, StateError, WrongPhase
from sfsl.rounds import states
from sfsl.rounds.client import AnyClient, Own
from sfsl.rounds.hot import HotParams
from sfsl.rounds.hot_client import HotClient
from sfsl.rounds.params import RoundParams
from sfsl.secagg.messages import Layout
from sfsl.secagg.states import Blobs, SessionSnapshot, State, restored, snapshot
from sfsl.submodel import RowSet

_LARGEST = 1 << 30


class RoundSnapshot(Message, frozen=True, kw_only=True, tag="round-snapshot"):
    """A state in bytes: see ``states`` for what its parts mean and which phase needs them."""

    session: SessionSnapshot
    phase: Literal["CHECKED_IN", "SHARED", "UNITING", "AWAITS_UNION", "REQUESTED", "UPLOADED"]
    params: RoundParams | None = None
    layout: Layout | None = None
    asked: dict[Annotated[str, Meta(max_length=64)], bytes] = field(default_factory=dict)
    positions: Blobs = ()
    union: bytes = b""


class HotSnapshot(Message, frozen=True, kw_only=True, tag="hot-snapshot"):
    """The same of a client of a round over hot rows. ``params`` and ``rho``: until it has masked."""

    session: SessionSnapshot
    phase: Literal["CHECKED_IN", "SHARED", "UPLOADED"]
    params: HotParams | None = None
    rho: float = 0.0


Snapshot = RoundSnapshot | HotSnapshot
Client = TypeVar("Client", bound=AnyClient[Any])
_CODEC = Codec(RoundSnapshot, HotSnapshot)


def encode_client(client: AnyClient[Any]) -> bytes:
    """Encode the state of a client that waits for the server's next message."""
    state, known = client.state, dict[str, Any]()
    if client.phase.name in ("NEW", "TRAINING", "FINISHED", "LEFT"):
        raise WrongPhase(f"a client that is {client.phase.name} waits for no message")
    if isinstance(state, states.HotShared):
        known |= {"params": state.params, "rho": state.rho}
    if isinstance(state, states.Invited):
        known["params"] = state.params
    if isinstance(state, states.Requested):
        known |= {"layout": state.layout, "union": state.union}
        known["asked"] = {name: _bytes(rows.rows) for name, rows in state.asked.items()}
        known["positions"] = tuple(map(_bytes, state.positions))
    kind: type[Snapshot] = HotSnapshot if isinstance(client, HotClient) else RoundSnapshot
    phase: Any = state.phase.name
    return _CODEC.encode(kind(session=snapshot(client.session.state), phase=phase, **known))


def decode_client(data: bytes) -> Snapshot:
    try:
        kept = _CODEC.decode(data, limit=_LARGEST)
    except RemoteError as error:
        raise StateError(f"what was kept of a round cannot be read: {error}") from None
    assert isinstance(kept, RoundSnapshot | HotSnapshot)  # noqa: S101 -- the codec knows no other type
    return kept


def revive(kind: type[Client], kept: Snapshot, own: Own[Any]) -> Client:
    """Return the client that was, of a kind that goes with the snapshot."""
    try:
        return kind.join(kept.session.keys.client, own, restored(kept.session), _state(kept))
    except RemoteError as error:
        raise StateError(f"what was kept of a round cannot be used: {error}") from None


def _state(kept: Snapshot) -> State:
    if kept.params is None or kept.session.roster is None:
        return states.CheckedIn() if kept.phase == "CHECKED_IN" else states.Uploaded()
    round_id = kept.session.roster.params.round_id
    if isinstance(kept, HotSnapshot):
        return states.HotShared(kept.params, round_id, kept.rho)
    told = (kept.params, kept.params.union.build(), round_id)
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
