"""The order of a round as data: each exchange once, and all that is known of it (spec round 1).

Client, server, driver, carriers, faults, plan, metrics, benchmarks and the diagram in the spec read this
table; no other place names an exchange.
"""

from dataclasses import dataclass
from enum import StrEnum

from sfsl.codec import Message
from sfsl.rounds.messages import Invitation, Request, Submodel
from sfsl.secagg.messages import (
    Consistency,
    InboundShares,
    MaskedVector,
    SealedShares,
    Survivors,
    UnmaskRequest,
    UnmaskShares,
)
from sfsl.union.protocol import Union

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
    """One exchange of a round.

    The server sends ``message`` and the client answers with ``answer``, which belongs to the sum ``sum``.
    ``handler`` is the method of ``RoundClient`` that takes the message. Active mode alone has the steps
    marked ``active``.
    """

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
STEP = {step.exchange: step for step in STEPS}
HANDLERS = {step.message: step.handler for step in STEPS}
# A client may decline aloud here, and nowhere else.
MAY_DECLINE = Exchange.INVITATION
# The answers to this are masked sets: from here on a client has exposed something.
EXPOSES = Exchange.INBOUND
# Clients train between this message and its answer.
TRAINS = Exchange.SUBMODEL


def order(active: bool) -> tuple[Exchange, ...]:
    """Return the exchanges of a round in the order in which they happen."""
    return tuple(step.exchange for step in STEPS if active or not step.active)


# What most of the system needs: a round outside active mode.
ORDER = order(active=False)
LAST = ORDER[-1]
