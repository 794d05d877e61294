"""What the two sides of a round know in each phase, and how they get from one to the next (spec round 1).

What they know of the round's two sums is the state of their sessions.
"""

from enum import Enum

from sfsl.arrays import Bits, Positions
from sfsl.rounds.exchanges import HotInvitation, Invitation, Request, Submodel
from sfsl.rounds.hot import HotParams
from sfsl.rounds.params import RoundParams
from sfsl.rounds.record import RoundOutcome, RoundSums
from sfsl.secagg import messages
from sfsl.secagg.client import Start
from sfsl.secagg.messages import Layout
from sfsl.secagg.states import Move, State
from sfsl.submodel import RowSet
from sfsl.union.encoding import Encoding
from sfsl.union.protocol import Union

Phase = Enum("Phase", "NEW CHECKED_IN SHARED UNITING AWAITS_UNION REQUESTED TRAINING UPLOADED FINISHED LEFT")
# Whoever fails after something of it was exposed or drawn has left: neither is made twice.
CLIENT_MOVES = (
    Move(Phase.NEW, messages.Keys, (Phase.CHECKED_IN,)),
    Move(Phase.CHECKED_IN, Invitation, (Phase.SHARED,)),
    Move(Phase.SHARED, messages.InboundShares, (Phase.UNITING, Phase.LEFT)),
    Move(Phase.UNITING, messages.Survivors, (Phase.UNITING,)),
    Move(Phase.UNITING, messages.UnmaskRequest, (Phase.AWAITS_UNION,)),
    Move(Phase.AWAITS_UNION, Union, (Phase.REQUESTED, Phase.LEFT)),
    Move(Phase.REQUESTED, Submodel, (Phase.TRAINING,)),
    Move(Phase.TRAINING, Start, (Phase.UPLOADED,)),
    Move(Phase.UPLOADED, messages.Survivors, (Phase.UPLOADED,)),
    Move(Phase.UPLOADED, messages.UnmaskRequest, (Phase.FINISHED,)),
)


HOT_MOVES = (
    Move(Phase.NEW, messages.Keys, (Phase.CHECKED_IN,)),
    Move(Phase.CHECKED_IN, HotInvitation, (Phase.SHARED,)),
    Move(Phase.SHARED, messages.InboundShares, (Phase.TRAINING,)),
    Move(Phase.TRAINING, Start, (Phase.UPLOADED, Phase.LEFT)),
    Move(Phase.UPLOADED, messages.Survivors, (Phase.UPLOADED,)),
    Move(Phase.UPLOADED, messages.UnmaskRequest, (Phase.FINISHED,)),
)


class New(State, frozen=True):
    phase = Phase.NEW


class CheckedIn(State, frozen=True):
    phase = Phase.CHECKED_IN


class Invited(State, frozen=True):
    """What a client was told about the round when it joined."""

    params: RoundParams
    encoding: Encoding
    round_id: bytes


class Shared(Invited, frozen=True):
    phase = Phase.SHARED


class Uniting(Invited, frozen=True):
    phase = Phase.UNITING


class AwaitsUnion(Invited, frozen=True):
    phase = Phase.AWAITS_UNION


class Requested(Invited, frozen=True):
    """What a client that asked for rows knows: ``asked`` are the rows, by table, and ``positions`` where they
    stand in the union: nobody else knows them for certain. ``union`` is the digest of the union."""

    phase = Phase.REQUESTED
    layout: Layout
    asked: dict[str, RowSet]
    positions: tuple[Positions, ...]
    union: bytes


class Training(State, frozen=True):
    phase = Phase.TRAINING
    params: RoundParams
    asked: dict[str, RowSet]
    start: Start


class HotShared(State, frozen=True):
    """A client of a round over hot rows, once it has joined; ``rho`` is what taking part costs it."""

    phase = Phase.SHARED
    params: HotParams
    round_id: bytes
    rho: float


class HotTraining(State, frozen=True):
    """It knows all that goes into its vector but what it learns; ``sets`` are the hot rows by table."""

    phase = Phase.TRAINING
    params: HotParams
    round_id: bytes
    rho: float
    start: Start
    sets: dict[str, RowSet]


class Uploaded(State, frozen=True):
    phase = Phase.UPLOADED


class Finished(State, frozen=True):
    phase = Phase.FINISHED


class Left(State, frozen=True):
    phase = Phase.LEFT


ServerPhase = Enum("ServerPhase", "UNITING REQUESTS UPDATING DONE ABORTED")
SERVER_MOVES = (
    Move(ServerPhase.UNITING, messages.UnmaskShares, (ServerPhase.REQUESTS, ServerPhase.ABORTED)),
    Move(ServerPhase.REQUESTS, Request, (ServerPhase.UPDATING, ServerPhase.ABORTED)),
    Move(ServerPhase.UPDATING, messages.UnmaskShares, (ServerPhase.DONE, ServerPhase.ABORTED)),
)


class ServerState(State, frozen=True):
    """What the server knows in every phase: the ``requests`` that were taken, by client."""

    requests: dict[str, Request]


class UnitingSets(ServerState, frozen=True):
    phase = ServerPhase.UNITING


class Requests(ServerState, frozen=True):
    """The server takes requests: ``asked`` has the rows of each, per table; ``union`` is a digest of it."""

    phase = ServerPhase.REQUESTS
    unions: dict[str, RowSet]
    layout: Layout
    union: bytes
    asked: dict[str, tuple[Bits, ...]]


class Updating(ServerState, frozen=True):
    phase = ServerPhase.UPDATING
    unions: dict[str, RowSet]


class Done(ServerState, frozen=True):
    """The sums are open; ``outcome`` is None where this cohort is not the whole round."""

    phase = ServerPhase.DONE
    sums: RoundSums
    outcome: RoundOutcome | None


class Stopped(ServerState, frozen=True):
    phase = ServerPhase.ABORTED
