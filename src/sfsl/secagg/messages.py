"""What a session agrees on and what it says: its public parameters, its messages, and what of them is bound,
signed and checked (spec 3 and 4)."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from sfsl.codec import Checked, Codec, Message
from sfsl.crypto.secret import SHARE_BYTES, KeyPair, Secret, derive, digest, require_canonical, verify
from sfsl.errors import AuthenticationFailed, InvalidMessage, KeyMismatch, ParameterError, Refused

MAX_COMPLETE = 512  # clients on a complete graph; a larger fleet runs several cohorts
MAX_CLIENTS = 65_535
MAX_SUMS = 8

RoundId = Annotated[bytes, Meta(min_length=16, max_length=16)]
Count = Annotated[int, Meta(ge=0, le=2**40)]
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


class TableShape(Checked, frozen=True):
    """A table of rows, of which each client uploads the ones it asked for."""

    rows: Count
    width: Annotated[int, Meta(ge=1, le=2**24)]


class Layout(Checked, frozen=True):
    """What one summed vector is made of: dense words, then tables in declared order."""

    dense: Count
    tables: Annotated[tuple[TableShape, ...], Meta(max_length=64)] = ()

    @property
    def words(self) -> int:
        return self.dense + sum(table.rows * table.width for table in self.tables)


class SumParams(Checked, frozen=True):
    """One sum of the session. ``layout`` is absent where it is known only when the sum starts."""

    label: Annotated[str, Meta(pattern=r"^[a-z][a-z0-9-]{0,31}\Z")]
    ring: Literal["z32", "z64", "f31"]
    min_contributors: Annotated[int, Meta(ge=1, le=MAX_CLIENTS)]
    layout: Layout | None


class SessionParams(Checked, frozen=True, omit_defaults=True):
    """Everything about a session that its members must agree on (spec 4.1). ``clients`` is the size of the
    roster, ``threshold`` the number of shares that open a secret; ``neighbours`` is None on the complete
    graph and the degree aimed at on a sparse one. ``least_survivors``: with fewer vectors in a sum on a
    sparse graph nobody opens it; on the complete graph the threshold says so."""

    round_id: RoundId
    clients: Annotated[int, Meta(ge=2, le=MAX_CLIENTS)]
    threshold: Annotated[int, Meta(ge=2, le=MAX_CLIENTS)]
    neighbours: Annotated[int, Meta(ge=2, le=MAX_CLIENTS)] | None
    active: bool
    sums: Annotated[tuple[SumParams, ...], Meta(min_length=1, max_length=MAX_SUMS)]
    least_survivors: Annotated[int, Meta(ge=2, le=MAX_CLIENTS)] | None = None

    @property
    def fewest(self) -> int:
        """How few clients of the cohort may be left for their sum to be opened."""
        return max(self.threshold, self.least_survivors or 0)

    @property
    def first_layout(self) -> Layout:
        """The layout of the first sum, which is always announced."""
        layout = self.sums[0].layout
        assert layout is not None  # noqa: S101 - require_sound has seen to it
        return layout

    def require_sound(self) -> None:
        labels = [one.label for one in self.sums]
        if len(set(labels)) != len(labels):
            raise ParameterError(f"two sums of one session have the same label: {labels}")
        if self.sums[0].layout is None:
            raise ParameterError("the first sum starts with the session, so its layout must be announced")
        if self.threshold > self.clients:
            raise ParameterError(f"threshold {self.threshold} is more than all {self.clients} clients")
        if (self.least_survivors or 0) > self.clients:
            raise ParameterError(f"{self.least_survivors} survivors are more than all {self.clients} clients")
        if self.neighbours is None:
            if self.least_survivors is not None:
                raise ParameterError("on the complete graph the threshold says how many must survive")
            if self.clients > MAX_COMPLETE:
                raise ParameterError(
                    f"{self.clients} clients on a complete graph; above {MAX_COMPLETE} run several cohorts, "
                    "or one aligned sum on a sparse graph (neighbours=…)"
                )
            if self.active and self.threshold < default_threshold(self.clients):
                raise ParameterError(
                    f"active mode needs a threshold above two thirds: at least "
                    f"{default_threshold(self.clients)} of {self.clients}, not {self.threshold}"
                )
            return
        if self.neighbours % 2 or self.neighbours >= self.clients:
            raise ParameterError(
                f"{self.neighbours} neighbours among {self.clients} clients: "
                "an even number below the cohort size is needed"
            )
        if self.neighbours > MAX_COMPLETE:
            raise ParameterError(f"{self.neighbours} neighbours, at most {MAX_COMPLETE} can be asked for")
        if self.active:
            raise ParameterError(
                "active mode needs the complete graph: who survived is signed by all (spec 4.6)"
            )
        if any(one.layout is None or one.layout.tables for one in self.sums):
            raise ParameterError("misaligned rows need the complete graph (spec 5.2)")


class Policy(Checked, frozen=True):
    """What a client insists on, whatever the server says. It declines a session that does not fit.
    ``company``: in active mode it opens no sum of rows where a row may have been left with one of those who
    asked for it, that is, where more clients are declared dropped than the least contributors but two."""

    min_clients: Annotated[int, Meta(ge=2, le=MAX_CLIENTS)]
    min_threshold: Annotated[int, Meta(ge=2, le=MAX_CLIENTS)]
    min_contributors: Annotated[int, Meta(ge=1, le=MAX_CLIENTS)]
    max_words: Count
    company: bool = False


def default_threshold(group: int) -> int:
    """More than two thirds of those who hold shares of one secret (Bonawitz et al. 2017, §4)."""
    return 2 * group // 3 + 1


def require_policy(params: SessionParams, policy: Policy, sums: int, *, active: bool) -> None:
    """Decline a session that does not fit the client's own terms; they are never negotiated."""
    if params.active != active:
        raise Refused("the server and this client disagree about active mode")
    if len(params.sums) != sums:
        raise Refused(f"keys for {sums} sums, a session of {len(params.sums)}")
    if params.clients < policy.min_clients:
        raise Refused(f"a cohort of {params.clients}, this client wants at least {policy.min_clients}")
    if params.threshold < policy.min_threshold:
        raise Refused(f"a threshold of {params.threshold}, this client wants {policy.min_threshold}")
    for one in params.sums:
        tables = one.layout.tables if one.layout else ()
        dense = one.layout.dense if one.layout else 0
        # Before anything of that size is allocated. Rows are asked for in a bitmap over all of them.
        largest = max(dense, sum(table.rows for table in tables) // 32)
        if largest > policy.max_words:
            raise Refused(f"a sum of {largest} words or more, this client allows {policy.max_words}")
        if (one.layout is None or tables) and one.min_contributors < policy.min_contributors:
            raise Refused(
                f"rows with {one.min_contributors} contributors would be opened, "
                f"this client wants at least {policy.min_contributors}"
            )


def ascending(positions: Sequence[int]) -> bool:
    return all(one < other for one, other in pairwise(positions))


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


class Roster(Message, frozen=True, tag="roster", omit_defaults=True):
    """Server to client: the parameters and who is there. On a sparse graph these are oneself and one's
    neighbours; ``root`` is a digest of everyone there is, and ``proof`` shows that the members are in it
    (spec 6.2)."""

    params: SessionParams
    members: Annotated[tuple[Member, ...], Meta(max_length=MAX_CLIENTS)]
    root: Key | None = None
    proof: bytes = b""


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


class UnmaskRequest(Lists, frozen=True, tag="unmask-request", omit_defaults=True):
    """Server to client: which masks to open. In active mode with the others' signatures. On a sparse graph
    ``cohort`` has a bit for every position, set for those who survived: the lists hold only neighbours."""

    signatures: Annotated[tuple[tuple[Position, Signature], ...], Meta(max_length=MAX_CLIENTS)]
    cohort: bytes = b""


class UnmaskShares(FromClient, frozen=True, tag="unmask-shares"):
    """Client to server: per client one share, of its self-mask seed or of its mask key, never both. In
    ascending order of position over survivors and dropped together."""

    shares: Annotated[tuple[Share, ...], Meta(max_length=MAX_CLIENTS)]


# What every protocol around a session carries; the roster travels bare, or inside an invitation.
SESSION: tuple[type[Message], ...] = (
    Keys, SealedShares, InboundShares, MaskedVector, Survivors, Consistency, UnmaskRequest, UnmaskShares,
)  # fmt: skip
CODEC = Codec(Roster, *SESSION)


def size_limit(params: SessionParams, layout: Layout, word_bytes: int) -> int:
    """No message of a session with this layout is larger; anything that is, is refused unread."""
    rows = sum(table.rows for table in layout.tables)
    announced = sum(len(one.layout.tables) for one in params.sums if one.layout)
    per_client = 512 + 2 * SHARE_BYTES * len(params.sums) + 64 * len(params.sums) + rows // 8
    per_table = 64 + 8 * params.clients  # in the roster, and a request's header and last byte
    return 4096 + params.clients * per_client + announced * per_table + layout.words * word_bytes


def point(position: int) -> int:
    """Where the client at a roster position evaluates the sharing polynomials; zero is the secret's."""
    return position + 1


def commitment(seed: Secret) -> bytes:
    """The commitment goes out with the keys; the seed is uniform, so its hash hides it."""
    return digest("seed-commitment", seed.reveal())


def binding(roster: Roster) -> bytes:
    """A digest of parameters and roster, which every derived key is bound to. Members of a sparse graph see
    different parts of the roster, so there its root stands for all of it."""
    if roster.params.neighbours is not None:
        roster = Roster(roster.params, (), roster.root)
    return digest("roster", CODEC.encode(roster))


def sum_context(
    label: str, layout: Layout, participants: Sequence[int] | None, context: bytes, requests: bytes = b""
) -> bytes:
    """What one sum's masks are bound to. ``participants`` is None on a sparse graph, where each client
    sees only its own neighbours; ``context`` is the caller's, e.g. hashes of the union and the model;
    ``requests`` is the digest of all requests for rows, in active mode."""
    listed = b"neighbours" if participants is None else position_bytes(participants)
    parts = [label.encode(), msgspec.msgpack.encode(layout), listed, context]
    return digest("sum", *parts, *([requests] if requests else []))


def requests_digest(bitmaps: Sequence[Sequence[bytes]]) -> bytes:
    """A digest of all requests, in order of position. It is bound into the masks, so that a client that signs
    two requests cannot make others see different ones."""
    return digest("requests", *(bitmap for request in bitmaps for bitmap in request))


def self_mask_key(seed: Secret, bound: bytes, context: bytes, position: int) -> Secret:
    return derive(seed, "self-mask", bound, context, position.to_bytes(4, "big"))


def keys_parts(keys: Keys) -> list[bytes]:
    """What a client signs at check-in."""
    return [keys.client.encode(), keys.channel, b"".join(keys.masks), b"".join(keys.commitments)]


def lists_parts(
    bound: bytes, sum_index: int, survivors: Sequence[int], dropped: Sequence[int]
) -> list[bytes]:
    """What a survivor signs before anything is opened."""
    return [bound, bytes((sum_index,)), position_bytes(survivors), position_bytes(dropped)]


def request_parts(bound: bytes, sum_index: int, bitmaps: Sequence[bytes]) -> list[bytes]:
    """What a client signs with its request for rows."""
    return [bound, bytes((sum_index,)), *bitmaps]


def verify_request(
    public: bytes, bound: bytes, sum_index: int, bitmaps: Sequence[bytes], signature: bytes | None
) -> None:
    """Active mode: a request for rows is the client's own word, or it is none."""
    if signature is None:
        raise AuthenticationFailed("an unsigned request for rows in active mode")
    verify(public, signature, "request", *request_parts(bound, sum_index, bitmaps))


def position_bytes(positions: Sequence[int]) -> bytes:
    return b"".join(position.to_bytes(4, "big") for position in positions)


def require_keys(keys: Keys, sums: int, identities: Mapping[str, bytes] | None) -> None:
    """Require one mask key and one commitment per sum and, in active mode, the owner's signature."""
    if not len(keys.masks) == len(keys.commitments) == sums:
        raise InvalidMessage(f"keys of client {keys.client!r} are not for {sums} sums")
    for public in (keys.channel, *keys.masks):
        require_canonical(public)
    if identities is None:
        return
    public = identities.get(keys.client, b"")
    if keys.signature is None or not public:
        raise AuthenticationFailed(f"client {keys.client!r} is unknown or did not sign its keys")
    verify(public, keys.signature, "keys", *keys_parts(keys))


def require_distinct(keys: Sequence[Keys]) -> None:
    """No key may occur twice: two clients with one key would share a mask stream."""
    publics = [public for one in keys for public in (one.channel, *one.masks)]
    names = [one.client for one in keys]
    if len(set(publics)) != len(publics) or len(set(names)) != len(names):
        raise Refused("a client or a public key is listed twice")


def require_members(roster: Roster, own: Keys, identities: Mapping[str, bytes] | None) -> None:
    """Require a roster in order, of the announced size, without doubles, with our keys as we sent them."""
    params, members = roster.params, roster.members
    positions = [member.position for member in members]
    if not ascending(positions) or not all(position < params.clients for position in positions):
        raise InvalidMessage("roster positions are not in order")
    if params.neighbours is None and len(members) != params.clients:
        raise InvalidMessage(f"a roster of {len(members)} for a cohort of {params.clients}")
    if (roster.root is None) != (params.neighbours is None) or (roster.proof and roster.root is None):
        raise InvalidMessage("a sparse graph has the root of its roster, a complete one has none")
    if len(members) < params.threshold:
        raise Refused(f"{len(members)} share holders cannot reach a threshold of {params.threshold}")
    if sum(member.keys == own for member in members) != 1:
        raise Refused("the roster does not carry this client's own keys, as sent")
    require_distinct([member.keys for member in members])
    for member in members:
        require_keys(member.keys, len(params.sums), identities)


def require_seed(seed: Secret, published: bytes) -> Secret:
    if commitment(seed) != published:
        raise KeyMismatch("a reconstructed self-mask seed does not match its commitment")
    return seed


def require_key_pair(private: Secret, published: bytes) -> KeyPair:
    pair = KeyPair(private)
    if pair.public != published:
        raise KeyMismatch("a reconstructed mask key does not match the published one")
    return pair
