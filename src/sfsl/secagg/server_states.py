"""What the server of a session knows in each phase, and how it gets from one to the next (spec 4.3).

A phase in which the server waits for its clients has an inbox. It grows by one message at a time, and each
is put there when all of it has been checked; the state itself is replaced when the phase is closed.
"""

from enum import Enum
from typing import Any

from sfsl.arrays import Bits
from sfsl.secagg import messages
from sfsl.secagg.masking import Opened, RunningTotal
from sfsl.secagg.messages import Layout
from sfsl.secagg.moves import Move, State

Phase = Enum("Phase", "SHARES MASKED CONSISTENCY UNMASK OPENED ABORTED")
# A phase, the number of its sum, and the position of a client.
Slot = tuple[Enum, int, int]

MOVES = (
    Move(Phase.SHARES, messages.SealedShares, (Phase.MASKED, Phase.ABORTED)),
    Move(Phase.MASKED, messages.MaskedVector, (Phase.CONSISTENCY, Phase.ABORTED), active=True),
    Move(Phase.CONSISTENCY, messages.Consistency, (Phase.UNMASK, Phase.ABORTED), active=True),
    Move(Phase.MASKED, messages.MaskedVector, (Phase.UNMASK, Phase.ABORTED), active=False),
    Move(Phase.UNMASK, messages.UnmaskShares, (Phase.OPENED, Phase.ABORTED)),
    # With its layout the next sum starts, if there is one.
    Move(Phase.OPENED, Layout, (Phase.MASKED, Phase.ABORTED)),
)
PHASE_OF = {move.takes: move.phase for move in MOVES}


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
    phase = Phase.SHARES
    inbox: dict[int, Sealed]


class Summing(Waiting, frozen=True):
    """Vectors are added to the ``total`` as they come, and are not kept."""

    total: RunningTotal


class Masking(Summing, frozen=True):
    phase = Phase.MASKED
    inbox: dict[int, None]


class Listed(Summing, frozen=True):
    """The vectors of ``survivors`` are in the total, those of ``dropped`` are not."""

    survivors: tuple[int, ...]
    dropped: tuple[int, ...]


class Confirming(Listed, frozen=True):
    """It waits for signatures over the two lists."""

    phase = Phase.CONSISTENCY
    inbox: dict[int, bytes]


class Unmasking(Listed, frozen=True):
    """It waits for shares: by holder, and by whose secret they belong to."""

    phase = Phase.UNMASK
    inbox: dict[int, dict[int, int]]


class SumOpen(ServerState, frozen=True):
    """``answered``: who has answered every exchange of the sum."""

    phase = Phase.OPENED
    opened: Opened
    answered: frozenset[int]


class Stopped(ServerState, frozen=True):
    phase = Phase.ABORTED
