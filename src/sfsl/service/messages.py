"""What travels besides the messages of a round (spec network 4)."""

from typing import Annotated

import msgspec
from msgspec import Meta

from sfsl.codec import Codec, Message
from sfsl.rounds.exchanges import CODEC as ROUND
from sfsl.secagg.messages import Keys

Digest = Annotated[bytes, Meta(min_length=32, max_length=32)]
RoundId = Annotated[bytes, Meta(min_length=16, max_length=16)]
Ticket = Annotated[bytes, Meta(min_length=16, max_length=16)]
Signature = Annotated[bytes, Meta(min_length=64, max_length=64)]
ClientId = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]
Size = Annotated[int, Meta(ge=0, le=2**40)]
MOST_PROVEN = 1024


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


class Signed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """A head's signature, and the public key that made it."""

    key: Digest
    signature: Signature


class LogHead(Message, frozen=True, tag="log-head"):
    """Server to client: the log of a deployment had ``size`` entries and this ``root``, at ``time`` by the
    server's clock. The log's key signs it, and so do witnesses (spec log 3)."""

    deployment: RoundId
    size: Size
    root: Digest
    time: Annotated[int, Meta(ge=0, le=2**49)]
    signatures: Annotated[tuple[Signed, ...], Meta(max_length=64)] = ()


class LogEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """An enrolled identity. ``voucher``: an enrolment authority's signature, or empty."""

    public_key: Digest
    voucher: Annotated[bytes, Meta(max_length=64)] = b""


class LogQuery(Message, frozen=True, tag="log-query"):
    """Client to server: are these in the log? ``since``: the size of the last head that it knows; 0: none."""

    since: Size
    clients: Annotated[tuple[ClientId, ...], Meta(max_length=MOST_PROVEN)]


class LogProof(Message, frozen=True, tag="log-proof"):
    """Server to client: a head, the hashes by which it continues the one that the client knows, and for each
    client it asked about an entry with its place, in order of place, and the hashes that lead to the root."""

    head: LogHead
    consistency: Annotated[bytes, Meta(max_length=32 * 128)]
    places: Annotated[tuple[Size, ...], Meta(max_length=MOST_PROVEN)] = ()
    entries: Annotated[tuple[LogEntry, ...], Meta(max_length=MOST_PROVEN)] = ()
    inclusion: Annotated[bytes, Meta(max_length=32 * 40 * MOST_PROVEN)] = b""


CODEC = Codec(Enrol, CheckIn, CheckedIn, Decline, LogHead, LogQuery, LogProof, *ROUND.types)
