"""The messages of a round, and its order as data: each exchange once, and all that is known of it (spec
round 1).

Client, server, driver, carriers, faults, plan, metrics, benchmarks and the diagram in the spec read the table
of exchanges; no other place names one. The messages of the two secure sums are the session's own.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from sfsl.codec import Codec, Message
from sfsl.rounds.hot import HotParams
from sfsl.rounds.params import RoundParams
from sfsl.secagg.messages import (
    MAX_CLIENTS,
    SESSION,
    Consistency,
    InboundShares,
    MaskedVector,
    Position,
    Positions,
    Roster,
    RoundId,
    SealedShares,
    Signature,
    SignedRequest,
    Survivors,
    UnmaskRequest,
    UnmaskShares,
)
from sfsl.submodel.tables import MAX_TABLES
from sfsl.union.protocol import Union

Root = Annotated[bytes, Meta(min_length=20, max_length=20)]
Blobs = Annotated[tuple[bytes, ...], Meta(max_length=MAX_TABLES)]


class Invitation(Message, frozen=True, tag="invitation"):
    """Server to client: who is there, and what the round is about."""

    roster: Roster
    round: RoundParams


class HotInvitation(Message, frozen=True, tag="hot-invitation"):
    """Server to client: the same of a round over hot rows."""

    roster: Roster
    round: HotParams


class Request(Message, frozen=True, tag="request"):
    """Client to server: the rows it asks for, a bitmap over the union of each table that is summed."""

    round_id: RoundId
    sender: Position
    bitmaps: Blobs
    signature: Signature | None


class Submodel(Message, frozen=True, tag="submodel"):
    """Server to client: the rows it asked for, the dense part, who takes part, and who asked for what.
    ``root`` commits to the rows of the whole union; in active mode ``proof`` shows that these are of them."""

    round_id: RoundId
    participants: Positions
    rows: Blobs
    dense: bytes
    requesters: bytes
    requests: Annotated[tuple[SignedRequest, ...], Meta(max_length=MAX_CLIENTS)]
    root: Root
    proof: bytes


CODEC = Codec(Invitation, *SESSION, Union, Request, Submodel, HotInvitation)


# The two sums of a round, by number.
UNION_SUM, UPDATE_SUM = 0, 1
SUMS = 2


class Exchange(StrEnum):
    """The name of an exchange is the name of what the server sends; a client's check-in comes before all."""

    CHECK_IN = "check-in"
    INVITATION = "invitation"
    INBOUND = "inbound"
    SURVIVORS_UNION = "survivors-union"
    UNMASK_UNION = "unmask-union"
    UNION = "union"
    SUBMODEL = "submodel"
    SURVIVORS_UPDATE = "survivors-update"
    UNMASK_UPDATE = "unmask-update"

    def __repr__(self) -> str:
        """In a message to people an exchange is its name."""
        return repr(self.value)


@dataclass(frozen=True)
class Step:
    """One exchange of a round. The server sends ``message`` and the client answers with ``answer``, which
    belongs to the sum ``sum``. ``handler`` is the method of ``RoundClient`` that takes the message. Active
    mode alone has the steps marked ``active``."""

    exchange: Exchange
    message: type[Message]
    answer: type[Message]
    sum: int
    handler: str
    active: bool = False


STEPS = (
    Step(Exchange.INVITATION, Invitation, SealedShares, UNION_SUM, "handle_invitation"),
    Step(Exchange.INBOUND, InboundShares, MaskedVector, UNION_SUM, "handle_inbound"),
    Step(Exchange.SURVIVORS_UNION, Survivors, Consistency, UNION_SUM, "handle_survivors", active=True),
    Step(Exchange.UNMASK_UNION, UnmaskRequest, UnmaskShares, UNION_SUM, "handle_unmask"),
    Step(Exchange.UNION, Union, Request, UPDATE_SUM, "handle_union"),
    Step(Exchange.SUBMODEL, Submodel, MaskedVector, UPDATE_SUM, "handle_submodel"),
    Step(Exchange.SURVIVORS_UPDATE, Survivors, Consistency, UPDATE_SUM, "handle_survivors", active=True),
    Step(Exchange.UNMASK_UPDATE, UnmaskRequest, UnmaskShares, UPDATE_SUM, "handle_unmask"),
)
# A round over hot rows has one sum, and its survey nobody to train.
SURVEY_STEPS = (
    Step(Exchange.INVITATION, HotInvitation, SealedShares, 0, "handle_invitation"),
    Step(Exchange.INBOUND, InboundShares, MaskedVector, 0, "handle_survey"),
    Step(Exchange.SURVIVORS_UPDATE, Survivors, Consistency, 0, "handle_survivors", active=True),
    Step(Exchange.UNMASK_UPDATE, UnmaskRequest, UnmaskShares, 0, "handle_unmask"),
)
HOT_STEPS = tuple(
    replace(step, handler="handle_model") if step.exchange is Exchange.INBOUND else step
    for step in SURVEY_STEPS
)


@dataclass(frozen=True)
class Course:
    """The exchanges of one kind of round. Clients train between the message of ``trains`` and its answer; the
    answers to ``exposes`` are the first that a client has exposed anything with."""

    steps: tuple[Step, ...]
    trains: Exchange | None
    exposes: Exchange = Exchange.INBOUND

    def order(self, active: bool = False) -> tuple[Exchange, ...]:
        """Return the exchanges in the order in which they happen."""
        return tuple(step.exchange for step in self.steps if active or not step.active)

    def step(self, exchange: Exchange) -> Step:
        return next(step for step in self.steps if step.exchange is exchange)


SUBMODELS = Course(STEPS, Exchange.SUBMODEL)
SURVEY = Course(SURVEY_STEPS, None)
HOT = Course(HOT_STEPS, Exchange.INBOUND)


def course_of(params: RoundParams | HotParams) -> Course:
    """Return how a round with these parameters goes."""
    if isinstance(params, RoundParams):
        return SUBMODELS
    return SURVEY if params.kind == "survey" else HOT


# A client may decline aloud here, and nowhere else.
MAY_DECLINE = Exchange.INVITATION

# What most of the system needs: a round of submodels.
STEP = {step.exchange: step for step in STEPS}
EXPOSES, TRAINS = SUBMODELS.exposes, Exchange.SUBMODEL
order = SUBMODELS.order
ORDER = order()
