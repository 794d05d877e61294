"""What travels besides the messages of a round (spec network 4)."""

from typing import Annotated

from msgspec import Meta

from sfsl.codec import Codec, Message
from sfsl.rounds.exchanges import CODEC as ROUND
from sfsl.secagg.messages import Keys

Digest = Annotated[bytes, Meta(min_length=32, max_length=32)]
RoundId = Annotated[bytes, Meta(min_length=16, max_length=16)]
Ticket = Annotated[bytes, Meta(min_length=16, max_length=16)]


class Enrol(Message, frozen=True, tag="enrol"):
    """Client to server: its identity's public key. The request is signed with it."""

    public_key: Digest


class CheckIn(Message, frozen=True, tag="check-in"):
    """Client to server: it is ready for one round of this model, with keys that are used once."""

    model: Digest
    keys: Keys


class CheckedIn(Message, frozen=True, tag="checked-in"):
    """Server to client: under ``ticket`` the server will speak to it, in one round at most. ``acknowledged``:
    how many masked sets of this client the server has ever received. A client that remembers fewer has an old
    copy of its state."""

    ticket: Ticket
    acknowledged: Annotated[int, Meta(ge=0, le=2**63 - 1)]


class Decline(Message, frozen=True, tag="decline"):
    """Client to server, in place of its answer to the invitation: this client's policy forbids the round. It
    has no room for a reason. Only what the invitation and fixed settings decide is announced; whatever
    depends on data must look like silence (spec network 5.2)."""

    round_id: RoundId


CODEC = Codec(Enrol, CheckIn, CheckedIn, Decline, *ROUND.types)
