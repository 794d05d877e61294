"""What travels over Flower besides the messages of a round (docs/guide/flower.md)."""

from typing import Annotated

from msgspec import Meta

from sfsl.codec import Codec, Message
from sfsl.rounds.messages import CODEC as ROUND
from sfsl.secagg.messages import Key
from sfsl.service.messages import CheckIn, Decline, Digest, RoundId


class Call(Message, frozen=True, tag="call"):
    """Server to client: who would be in a round of this model? It is answered by ``CheckIn``.

    ``acknowledged`` as in ``CheckedIn``: how many masked sets of this client the server has ever received.
    """

    deployment: RoundId
    model: Digest
    acknowledged: Annotated[int, Meta(ge=0, le=2**63 - 1)]


class Over(Message, frozen=True, tag="over"):
    """Server to client: what it kept since it checked in with this channel key can go. It says it back."""

    channel: Key


CODEC = Codec(Call, Over, CheckIn, Decline, *ROUND.types)
