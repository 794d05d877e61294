"""The messages of a round, in the order in which they travel (spec round 1).

Those of the two secure sums are the session's own.
"""

from typing import Annotated

from msgspec import Meta

from sfsl.codec import Codec, Message
from sfsl.rounds.params import RoundParams
from sfsl.secagg.messages import SESSION, Position, Positions, Roster, Signature, SignedRequest
from sfsl.secagg.params import MAX_CLIENTS, RoundId
from sfsl.submodel.tables import MAX_TABLES
from sfsl.union.protocol import Union

Blobs = Annotated[tuple[bytes, ...], Meta(max_length=MAX_TABLES)]


class Invitation(Message, frozen=True, tag="invitation"):
    """Server to client: who is there, and what the round is about."""

    roster: Roster
    round: RoundParams


class Request(Message, frozen=True, tag="request"):
    """Client to server: the rows it asks for, a bitmap over the union of each table that is summed."""

    round_id: RoundId
    sender: Position
    bitmaps: Blobs
    signature: Signature | None


class Submodel(Message, frozen=True, tag="submodel"):
    """Server to client: the rows it asked for, the dense part, who takes part, and who asked for what."""

    round_id: RoundId
    participants: Positions
    rows: Blobs
    dense: bytes
    requesters: bytes
    requests: Annotated[tuple[SignedRequest, ...], Meta(max_length=MAX_CLIENTS)]


CODEC = Codec(Invitation, *SESSION, Union, Request, Submodel)
