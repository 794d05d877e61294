"""The messages of a private set union: those of the secure sum, and one before and one after (spec 9.2)."""

from typing import Annotated

from msgspec import Meta

from sfsl.codec import Codec, Message
from sfsl.secagg.messages import SESSION, Roster
from sfsl.secagg.params import RoundId
from sfsl.union.params import UnionParams


class Invitation(Message, frozen=True, tag="union-invitation"):
    """Server to client: who is there, and what is to be united."""

    roster: Roster
    union: UnionParams


class Union(Message, frozen=True, tag="union"):
    """Server to client: the union, packed."""

    round_id: RoundId
    count: Annotated[int, Meta(ge=0, le=2**40)]
    packed: bytes


CODEC = Codec(Invitation, *SESSION, Union)
