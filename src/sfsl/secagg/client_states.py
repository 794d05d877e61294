"""What a client of a session knows in each phase, and how it gets from one to the next (spec 4.3).

A state holds of the client's secrets only what it still needs: the channel key until the boxes are sealed, a
sum's own secrets until the client has masked with them, a sum's shares until it has opened some.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from sfsl.arrays import Bits, Positions
from sfsl.crypto.secret import SHARE_BYTES, KeyPair, Secret, parse_share
from sfsl.errors import InvalidMessage
from sfsl.secagg import messages
from sfsl.secagg.messages import Layout, SessionParams, binding
from sfsl.secagg.moves import Move, State

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
MOVES = (
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
