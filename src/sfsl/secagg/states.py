"""State machines of a session as data: in which phase each side takes what, which phase may follow, and what
it knows there (spec 4.3).

A machine holds one frozen state. A step that the table has no move for is refused. A step that it has
checks all that it was given, computes, and at its end enters the next state in one assignment: whatever is
refused on the way has changed nothing.

A client's state holds of its secrets only what it still needs: the channel key until the boxes are sealed, a
sum's own secrets until the client has masked with them, a sum's shares until it has opened some.

A snapshot is a client between two messages as bytes, for engines that keep no process alive between them
(spec 4.5). It holds secrets, and of them only what its client still needs. It must be used once: two answers
from one snapshot would be two vectors under the same masks. Whoever keeps it sees to that, durably, as
``privacy.ClientState`` does.

A phase in which the server waits for its clients has an inbox. It grows by one message at a time, and each
is put there when all of it has been checked; the state itself is replaced when the phase is closed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar

import numpy as np
from msgspec import Meta, Struct

from sfsl.arrays import Bits, Positions
from sfsl.codec import Message
from sfsl.crypto.secret import SHARE_BYTES, KeyPair, Secret, parse_share
from sfsl.errors import ConflictingMessage, InvalidMessage, WrongPhase, WrongRound
from sfsl.secagg import messages
from sfsl.secagg.masking import Opened, RunningTotal
from sfsl.secagg.messages import Layout, SessionParams, binding


class State(Struct, frozen=True, eq=False):
    """What a machine knows in one phase. Two states are the same only if they are one value; what is in
    one, secrets among it, is never printed."""

    phase: ClassVar[Enum]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self.__struct_fields__)})"


@dataclass(frozen=True)
class Move:
    """In ``phase`` a machine takes ``takes``, and thereupon, or when the phase is closed, it is in one of
    ``after``. ``active`` is the mode in which this is so; None is both."""

    phase: Enum
    takes: type
    after: tuple[Enum, ...]
    active: bool | None = None


S = TypeVar("S", bound=State)
T = TypeVar("T", bound=State)


class Machine(Generic[S]):
    """Holds one ``state`` and follows its table ``moves``."""

    moves: ClassVar[tuple[Move, ...]]

    def __init__(self, state: S, *, active: bool = False) -> None:
        self._state = state
        self._possible = [move for move in self.moves if move.active in (None, active)]

    @property
    def state(self) -> S:
        """All that changes about this machine, as one value; the next step replaces it as a whole."""
        return self._state

    @property
    def phase(self) -> Enum:
        return self._state.phase

    def _due(self, takes: type, kind: type[T]) -> T:
        """The state, if this machine takes such a thing now."""
        state: State = self._state
        phases = [move.phase for move in self._possible if move.takes is takes]
        if state.phase not in phases:
            needed = " or ".join(phase.name for phase in phases) or "another mode"
            raise WrongPhase(f"{self!r} takes no {takes.__name__} now; that needs {needed}")
        assert isinstance(state, kind)  # noqa: S101 -- the table and the step agree
        return state

    def _enter(self, state: S) -> None:
        """Every step ends with this one assignment."""
        ways = [move.after for move in self._possible if move.phase is self.phase]
        assert any(state.phase in after for after in ways)  # noqa: S101 -- the table and the step agree
        self._state = state


def require_round(round_id: bytes, due: bytes, what: str) -> None:
    if round_id != due:
        raise WrongRound(f"{what} is of another round")


def require_same(message: object, accepted: object, client: str) -> None:
    """Two different vectors under one mask would be a two-time pad; a repeated message is nothing new."""
    if message != accepted:
        raise ConflictingMessage(f"a second, different message from client {client!r}")


Phase = Enum("Phase", "NEW CHECKED_IN SHARED READY MASKED CONFIRMED FINISHED")


@dataclass(frozen=True)
class Start:
    """What a client must know before it masks: who takes part, over which layout, and for each table
    its own rows (ascending) and which other participants asked for them (participants x own rows).
    ``context`` and, in active mode, the digest of all ``requests`` are bound into the masks."""

    layout: Layout
    participants: tuple[int, ...]
    rows: tuple[Positions, ...] = ()
    requesters: tuple[Bits, ...] = ()
    context: bytes = b""
    requests: bytes = b""


_OPENED = (Phase.READY, Phase.FINISHED)
CLIENT_MOVES = (
    Move(Phase.NEW, messages.Keys, (Phase.CHECKED_IN,)),
    Move(Phase.CHECKED_IN, messages.Roster, (Phase.SHARED,)),
    Move(Phase.SHARED, messages.InboundShares, (Phase.READY,)),
    Move(Phase.READY, Start, (Phase.MASKED,)),
    Move(Phase.MASKED, messages.Survivors, (Phase.CONFIRMED,), active=True),
    Move(Phase.CONFIRMED, messages.UnmaskRequest, _OPENED, active=True),
    Move(Phase.MASKED, messages.UnmaskRequest, _OPENED, active=False),
)


class SumSecrets(State, frozen=True):
    """A client's own secrets of one sum. Its peers hold shares of both."""

    mask: KeyPair
    seed: Secret


class Place(State, frozen=True):
    """What follows from a roster that a client has accepted."""

    roster: messages.Roster
    own: int
    binding: bytes
    members: Mapping[int, messages.Keys]

    @classmethod
    def of(cls, client: str, roster: messages.Roster) -> "Place":
        own = next(member.position for member in roster.members if member.keys.client == client)
        members = {member.position: member.keys for member in roster.members}
        return cls(roster, own, binding(roster), members)

    @property
    def params(self) -> SessionParams:
        return self.roster.params

    @property
    def peers(self) -> list[int]:
        return [position for position in self.members if position != self.own]


class New(State, frozen=True):
    """``secrets``: one after the other those of all sums."""

    phase = Phase.NEW
    channel: KeyPair
    secrets: tuple[SumSecrets, ...]


class CheckedIn(New, frozen=True):
    phase = Phase.CHECKED_IN
    keys: messages.Keys


class Joined(State, frozen=True):
    """``secrets`` are those of the sums that are not masked yet, and ``shares`` by dealer the shares of the
    sums that are not opened yet; ``sum`` is the current one."""

    place: Place
    sum: int
    secrets: tuple[SumSecrets, ...]
    shares: Mapping[int, Secret]


class Shared(Joined, frozen=True):
    """``inbound_keys`` open what the peers seal. ``asked``: the client's rows per table of the first sum."""

    phase = Phase.SHARED
    inbound_keys: Mapping[int, Secret]
    asked: tuple[Positions, ...]


class Ready(Joined, frozen=True):
    """``alive``: who may take part in the current sum."""

    phase = Phase.READY
    alive: tuple[int, ...]


class Masked(Joined, frozen=True):
    """``alive``: with whom this client has masked, and itself."""

    phase = Phase.MASKED
    alive: tuple[int, ...]


class Confirmed(Masked, frozen=True):
    """``confirmed``: the lists of survivors and dropouts that this client has signed."""

    phase = Phase.CONFIRMED
    confirmed: tuple[tuple[int, ...], tuple[int, ...]]


class Finished(State, frozen=True):
    """Nothing of the session is needed again, but where this client stood."""

    phase = Phase.FINISHED
    position: int


def parse_box(plain: bytes, sums: int) -> Secret:
    """The shares that one dealer gave to this client: per sum one of the mask key and one of the seed."""
    if len(plain) != 2 * sums * SHARE_BYTES:
        raise InvalidMessage("a box of the wrong length")
    for start in range(0, len(plain), SHARE_BYTES):
        parse_share(plain[start : start + SHARE_BYTES])
    return Secret(plain)


def share(box: Secret, alive: bool) -> bytes:
    """One share of the current sum: a survivor's seed is opened, a dropout's mask key, never both."""
    start = SHARE_BYTES if alive else 0
    return box.reveal()[start : start + SHARE_BYTES]


def without_current(shares: Mapping[int, Secret]) -> dict[int, Secret]:
    return {dealer: Secret(box.reveal()[2 * SHARE_BYTES :]) for dealer, box in shares.items()}


Blobs = Annotated[tuple[bytes, ...], Meta(max_length=64)]
KeysOfSums = Annotated[tuple[messages.Key, ...], Meta(max_length=messages.MAX_SUMS)]
P = TypeVar("P")


class SessionSnapshot(Message, frozen=True, kw_only=True, tag="session-snapshot"):
    """A client's state in bytes. ``holders`` dealt the ``boxes``, and
    ``inbound_keys`` are in roster order."""

    phase: Literal["CHECKED_IN", "SHARED", "READY", "MASKED", "CONFIRMED"]
    sum: Annotated[int, Meta(ge=0, lt=messages.MAX_SUMS)] = 0
    keys: messages.Keys
    channel: messages.Key | None = None
    masks: KeysOfSums
    seeds: KeysOfSums
    roster: messages.Roster | None = None
    inbound_keys: Annotated[tuple[messages.Key, ...], Meta(max_length=messages.MAX_CLIENTS)] = ()
    holders: messages.Positions = ()
    boxes: Annotated[tuple[messages.Box, ...], Meta(max_length=messages.MAX_CLIENTS)] = ()
    asked: Blobs = ()
    alive: messages.Positions = ()
    confirmed: tuple[messages.Positions, messages.Positions] | None = None


def snapshot(state: State) -> SessionSnapshot:
    """The state of a client that waits for a message, as it is kept."""
    if not isinstance(state, CheckedIn | Joined):
        raise WrongPhase(f"a client that is {state.phase.name} waits for no message")
    known: dict[str, Any] = {}
    if isinstance(state, CheckedIn):
        known |= {"keys": state.keys, "channel": state.channel.private.reveal()}
    else:
        place, dealers = state.place, tuple(sorted(state.shares))
        boxes = tuple(state.shares[dealer].reveal() for dealer in dealers)
        known |= {"sum": state.sum, "keys": place.members[place.own], "roster": place.roster}
        known |= {"holders": dealers, "boxes": boxes}
    if isinstance(state, Shared):
        known["inbound_keys"] = tuple(state.inbound_keys[peer].reveal() for peer in state.place.peers)
        known["asked"] = tuple(rows.astype("<i8").tobytes() for rows in state.asked)
    if isinstance(state, Ready | Masked):
        known["alive"] = state.alive
    if isinstance(state, Confirmed):
        known["confirmed"] = state.confirmed
    return SessionSnapshot(
        phase=state.phase.name,  # type: ignore[arg-type]
        masks=tuple(one.mask.private.reveal() for one in state.secrets),
        seeds=tuple(one.seed.reveal() for one in state.secrets),
        **known,
    )


def restored(kept: SessionSnapshot) -> State:
    """The state that was. The policy and the identities of its client are not part of a snapshot."""
    secrets = tuple(
        SumSecrets(KeyPair(Secret(mask)), Secret(seed))
        for mask, seed in _pairs(kept.masks, kept.seeds, "seeds of masks")
    )
    if kept.channel is not None:
        return CheckedIn(KeyPair(Secret(kept.channel)), secrets, kept.keys)
    if kept.roster is None:
        raise InvalidMessage("a snapshot of a client that joined, without its roster")
    place, left = Place.of(kept.keys.client, kept.roster), len(kept.keys.masks) - kept.sum
    shares = {
        dealer: parse_box(box, left) for dealer, box in _pairs(kept.holders, kept.boxes, "boxes of shares")
    }
    if kept.phase == "SHARED":
        keys = _pairs(place.peers, kept.inbound_keys, "keys of peers")
        asked = tuple(np.frombuffer(rows, "<i8").astype(np.intp) for rows in kept.asked)
        return Shared(place, 0, secrets, shares, {peer: Secret(key) for peer, key in keys}, asked)
    if kept.phase == "CONFIRMED" and kept.confirmed is not None:
        return Confirmed(place, kept.sum, secrets, shares, kept.alive, kept.confirmed)
    return (Ready if kept.phase == "READY" else Masked)(place, kept.sum, secrets, shares, kept.alive)


def _pairs(places: Sequence[P], values: Sequence[bytes], what: str) -> "zip[tuple[P, bytes]]":
    if len(places) != len(values):
        raise InvalidMessage(f"a snapshot with {len(values)} {what} of {len(places)}")
    return zip(places, values, strict=True)


ServerPhase = Enum("ServerPhase", "SHARES MASKED CONSISTENCY UNMASK OPENED ABORTED")
# A phase, the number of its sum, and the position of a client.
Slot = tuple[Enum, int, int]

_STOP = ServerPhase.ABORTED
SERVER_MOVES = (
    Move(ServerPhase.SHARES, messages.SealedShares, (ServerPhase.MASKED, _STOP)),
    Move(ServerPhase.MASKED, messages.MaskedVector, (ServerPhase.CONSISTENCY, _STOP), active=True),
    Move(ServerPhase.CONSISTENCY, messages.Consistency, (ServerPhase.UNMASK, _STOP), active=True),
    Move(ServerPhase.MASKED, messages.MaskedVector, (ServerPhase.UNMASK, _STOP), active=False),
    Move(ServerPhase.UNMASK, messages.UnmaskShares, (ServerPhase.OPENED, _STOP)),
    # With its layout the next sum starts, if there is one.
    Move(ServerPhase.OPENED, Layout, (ServerPhase.MASKED, _STOP)),
)
PHASE_OF = {move.takes: move.phase for move in SERVER_MOVES}


class ServerState(State, frozen=True):
    """``accepted`` has a fingerprint of every message that was taken in this session so far."""

    sum: int
    accepted: dict[Slot, bytes]


class Waiting(ServerState, frozen=True):
    """``awaited`` may answer in this phase; what they said is in the ``inbox``, by position."""

    awaited: frozenset[int]
    inbox: dict[int, Any]


class Sealed(State, frozen=True):
    """One client's boxes by receiver, and the rows it asks for."""

    boxes: dict[int, bytes]
    request: tuple[Bits, ...]
    signed: messages.SignedRequest | None


class Sharing(Waiting, frozen=True):
    phase = ServerPhase.SHARES
    inbox: dict[int, Sealed]


class Summing(Waiting, frozen=True):
    """Vectors are added to the ``total`` as they come, and are not kept."""

    total: RunningTotal


class Masking(Summing, frozen=True):
    phase = ServerPhase.MASKED
    inbox: dict[int, None]


class Listed(Summing, frozen=True):
    """The vectors of ``survivors`` are in the total, those of ``dropped`` are not."""

    survivors: tuple[int, ...]
    dropped: tuple[int, ...]


class Confirming(Listed, frozen=True):
    """It waits for signatures over the two lists."""

    phase = ServerPhase.CONSISTENCY
    inbox: dict[int, bytes]


class Unmasking(Listed, frozen=True):
    """It waits for shares: by holder, and by whose secret they belong to."""

    phase = ServerPhase.UNMASK
    inbox: dict[int, dict[int, int]]


class SumOpen(ServerState, frozen=True):
    """``answered``: who has answered every exchange of the sum."""

    phase = ServerPhase.OPENED
    opened: Opened
    answered: frozenset[int]


class Stopped(ServerState, frozen=True):
    phase = ServerPhase.ABORTED
