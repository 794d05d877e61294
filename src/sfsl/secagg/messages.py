"""The messages of a session, in the order in which they travel (spec 4)."""

from typing import Annotated

from msgspec import Meta

from sfsl.codec import Codec, Message
from sfsl.crypto.shamir import SHARE_BYTES
from sfsl.secagg.params import MAX_CLIENTS, MAX_SUMS, Layout, RoundId, SessionParams

MAX_ID = 64

ClientId = Annotated[str, Meta(min_length=1, max_length=MAX_ID)]
Position = Annotated[int, Meta(ge=0, lt=MAX_CLIENTS)]
Positions = Annotated[tuple[Position, ...], Meta(max_length=MAX_CLIENTS)]
SumIndex = Annotated[int, Meta(ge=0, lt=MAX_SUMS)]
Key = Annotated[bytes, Meta(min_length=32, max_length=32)]
KeyPerSum = Annotated[tuple[Key, ...], Meta(min_length=1, max_length=MAX_SUMS)]
Signature = Annotated[bytes, Meta(min_length=64, max_length=64)]
Share = Annotated[bytes, Meta(min_length=SHARE_BYTES, max_length=SHARE_BYTES)]
Box = Annotated[bytes, Meta(max_length=16 + 2 * SHARE_BYTES * MAX_SUMS)]


class Keys(Message, frozen=True, tag="keys"):
    """Client to server, with the check-in: public keys and commitments, used for one session only."""

    client: ClientId
    channel: Key
    masks: KeyPerSum
    commitments: KeyPerSum
    signature: Signature | None


class Member(Message, frozen=True, tag="member"):
    """A client's place in the roster."""

    position: Position
    keys: Keys


class Roster(Message, frozen=True, tag="roster"):
    """Server to client: the parameters and who is there (on a sparse graph: oneself and one's neighbours)."""

    params: SessionParams
    members: Annotated[tuple[Member, ...], Meta(max_length=MAX_CLIENTS)]


class SignedRequest(Message, frozen=True, tag="signed-request"):
    """Active mode: the rows one client asked for, as it signed them. Others check, not the server's word."""

    bitmaps: Annotated[tuple[bytes, ...], Meta(max_length=64)]
    signature: Signature


class SealedShares(Message, frozen=True, tag="sealed-shares"):
    """Client to server: a sealed box of shares per peer, in roster order. ``request`` holds a bitmap of rows
    per table where the first sum has tables, signed in active mode."""

    round_id: RoundId
    sender: Position
    boxes: Annotated[tuple[Box, ...], Meta(max_length=MAX_CLIENTS)]
    request: Annotated[tuple[bytes, ...], Meta(max_length=64)]
    request_signature: Signature | None


class InboundShares(Message, frozen=True, tag="inbound-shares"):
    """Server to client: the boxes meant for it, from everyone who is still there. ``requesters`` tells which
    of them asked for which of the receiver's rows; in active mode ``requests`` holds what each of them signed
    instead (spec 5.2)."""

    round_id: RoundId
    senders: Positions
    boxes: Annotated[tuple[Box, ...], Meta(max_length=MAX_CLIENTS)]
    requesters: bytes
    requests: Annotated[tuple[SignedRequest, ...], Meta(max_length=MAX_CLIENTS)]


class FromClient(Message, frozen=True):
    """Client to server: what it has to say in one sum."""

    round_id: RoundId
    sum: SumIndex
    sender: Position


class Lists(Message, frozen=True):
    """Server to client: whose vectors arrived in one sum, and whose did not."""

    round_id: RoundId
    sum: SumIndex
    survivors: Positions
    dropped: Positions


class MaskedVector(FromClient, frozen=True, tag="masked-vector"):
    """Client to server: one vector under all its masks."""

    words: bytes


class Survivors(Lists, frozen=True, tag="survivors"):
    """Server to client, active mode: whose vectors arrived, to be signed before anything is opened."""


class Consistency(FromClient, frozen=True, tag="consistency"):
    """Client to server, active mode: a signature over the lists it was shown."""

    signature: Signature


class UnmaskRequest(Lists, frozen=True, tag="unmask-request"):
    """Server to client: which masks to open. In active mode with the others' signatures."""

    signatures: Annotated[tuple[tuple[Position, Signature], ...], Meta(max_length=MAX_CLIENTS)]


class UnmaskShares(FromClient, frozen=True, tag="unmask-shares"):
    """Client to server: per client one share, of its self-mask seed or of its mask key, never both. In
    ascending order of position over survivors and dropped together."""

    shares: Annotated[tuple[Share, ...], Meta(max_length=MAX_CLIENTS)]


# What every protocol around a session carries; the roster travels bare, or inside an invitation.
SESSION: tuple[type[Message], ...] = (
    Keys,
    SealedShares,
    InboundShares,
    MaskedVector,
    Survivors,
    Consistency,
    UnmaskRequest,
    UnmaskShares,
)
CODEC = Codec(Roster, *SESSION)


def size_limit(params: SessionParams, layout: Layout, word_bytes: int) -> int:
    """No message of a session with this layout is larger; anything that is, is refused unread."""
    rows = sum(table.rows for table in layout.tables)
    announced = sum(len(one.layout.tables) for one in params.sums if one.layout)
    per_client = 512 + 2 * SHARE_BYTES * len(params.sums) + 64 * len(params.sums) + rows // 8
    per_table = 64 + 8 * params.clients  # in the roster, and a request's header and last byte
    return 4096 + params.clients * per_client + announced * per_table + layout.words * word_bytes
