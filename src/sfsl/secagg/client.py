"""One client of a session: a state machine without I/O (spec 4).

Each step takes the server's message and returns the client's answer, once. A message that does not
belong, does not verify or asks for too much raises and leaves the client as it was.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

import numpy as np
from numpy.typing import ArrayLike

from sfsl.arrays import Bits, Positions
from sfsl.crypto.aead import seal, unseal
from sfsl.crypto.agreement import KeyPair, channel_keys, pair_mask_key
from sfsl.crypto.identity import Identity, verify
from sfsl.crypto.randomness import Randomness
from sfsl.crypto.ring import Words, ring_named
from sfsl.crypto.secret import Secret
from sfsl.crypto.shamir import SHARE_BYTES, parse_share, split
from sfsl.errors import InputError, InvalidMessage, Refused, WrongPhase, WrongRound
from sfsl.secagg.admission import ascending, require_members, require_policy
from sfsl.secagg.masking import Masker, restrict, views
from sfsl.secagg.messages import (
    MAX_ID,
    Consistency,
    InboundShares,
    Keys,
    MaskedVector,
    Roster,
    SealedShares,
    SignedRequest,
    Survivors,
    UnmaskRequest,
    UnmaskShares,
)
from sfsl.secagg.params import Layout, Policy
from sfsl.secagg.rows import own_rows, parse_request, parse_requesters, request_bitmaps
from sfsl.secagg.transcript import (
    binding,
    commitment,
    keys_parts,
    lists_parts,
    point,
    request_parts,
    requests_digest,
    self_mask_key,
    sum_context,
)

log = logging.getLogger(__name__)


class Phase(Enum):
    NEW = auto()
    CHECKED_IN = auto()
    SHARED = auto()
    READY = auto()
    MASKED = auto()
    CONFIRMED = auto()
    FINISHED = auto()


@dataclass(frozen=True)
class Start:
    """What a client must know before it masks: who takes part, over which layout, and for each table
    its own rows (ascending) and which other participants asked for them (participants x own rows).
    ``context`` and, in active mode, the digest of all ``requests`` are bound into the masks."""

    layout: Layout
    participants: tuple[int, ...]
    rows: tuple[Positions, ...] = ()
    requesters: tuple[Bits, ...] = ()
    context: bytes = b""
    requests: bytes = b""


@dataclass(frozen=True)
class _Secrets:
    """Private halves. The channel key stays here; masks and seeds are shared among the peers.

    By the number of their sum. A client that was restored has only those that it still needs.
    """

    channel: KeyPair | None
    masks: Mapping[int, KeyPair]
    seeds: Mapping[int, Secret]


class Client:
    """``policy`` is what this client insists on. With an ``identity`` it insists on active mode, and
    ``identities`` are the public keys of the others, known in advance and not from the server."""

    def __init__(
        self,
        client_id: str,
        policy: Policy,
        randomness: Randomness,
        *,
        sums: int = 1,
        identity: Identity | None = None,
        identities: Mapping[str, bytes] | None = None,
    ) -> None:
        if not isinstance(client_id, str) or not 1 <= len(client_id) <= MAX_ID:
            raise InputError(f"a client id is a string of 1 to {MAX_ID} characters")
        if (identity is None) != (identities is None):
            raise InputError("active mode needs both the own identity and the identities of the others")
        self.phase = Phase.NEW
        self._id = client_id
        self._policy = policy
        self._randomness = randomness
        self._identity = identity
        self._identities = identities
        self._secrets = _Secrets(
            KeyPair.generate(randomness),
            {number: KeyPair.generate(randomness) for number in range(sums)},
            {number: Secret(randomness.bytes(32)) for number in range(sums)},
        )
        self._sums = sums
        self._sum = 0

    @property
    def position(self) -> int:
        """This client's place in the roster, once it has joined."""
        return self._position

    # -- check-in ------------------------------------------------------------------------------

    def create_keys(self) -> Keys:
        """Public keys for one session; a client answers one roster per set of keys, ever."""
        self._require_phase(Phase.NEW)
        channel, every = self._channel.public, range(self._sums)
        masks = tuple(self._secrets.masks[number].public for number in every)
        commitments = tuple(commitment(self._secrets.seeds[number]) for number in every)
        unsigned = Keys(self._id, channel, masks, commitments, None)
        signature = self._identity.sign("keys", *keys_parts(unsigned)) if self._identity else None
        self._keys = Keys(self._id, channel, masks, commitments, signature)
        self.phase = Phase.CHECKED_IN
        return self._keys

    # -- exchange 1: roster -> sealed shares ---------------------------------------------------

    def handle_roster(self, roster: Roster, rows: Sequence[ArrayLike] = ()) -> SealedShares:
        """Share this session's secrets among the peers. ``rows``: the rows asked for, per table."""
        self._require_phase(Phase.CHECKED_IN)
        params = roster.params
        require_policy(params, self._policy, self._sums, active=self._identity is not None)
        require_members(roster, self._keys, self._identities)
        layout = params.first_layout
        asked = own_rows(layout, rows)
        own = place_of(self._id, roster)
        bound = binding(roster)
        points = [point(member.position) for member in roster.members]
        # Per secret the shares for all members; per member then one box with its share of each secret.
        columns = zip(
            *(split(secret, params.threshold, points, self._randomness) for secret in self._shared()),
            strict=True,
        )
        boxes = []
        inbound_keys = {}
        kept = b""
        for member, column in zip(roster.members, columns, strict=True):
            if member.position == own:
                kept = b"".join(column)
                continue
            sending, receiving = channel_keys(self._channel, member.keys.channel, bound)
            inbound_keys[member.position] = receiving
            box = seal(sending, b"".join(column), "shares", params.round_id, own, member.position)
            boxes.append(box)
        self._take_up(roster)
        self._inbound_keys = inbound_keys
        self._shares = {own: parse_box(kept, len(params.sums))}
        self._asked = asked
        request = request_bitmaps(layout, asked)
        self.phase = Phase.SHARED
        log.debug("client %s at position %d shared its secrets", self._id, own)
        return SealedShares(params.round_id, own, tuple(boxes), request, self.sign_request(request))

    # -- exchange 2: inbound shares -> masked vector -------------------------------------------

    def handle_inbound(self, inbound: InboundShares, context: bytes = b"") -> Start:
        """Open the boxes of the peers that are still there; they take part in the first sum."""
        self._require_phase(Phase.SHARED)
        self._require_round(inbound.round_id)
        senders = inbound.senders
        if not ascending(senders) or not set(senders) <= self._members.keys() - {self._position}:
            raise InvalidMessage("boxes from clients that are not this client's peers")
        if len(inbound.boxes) != len(senders):
            raise InvalidMessage(f"{len(inbound.boxes)} boxes from {len(senders)} senders")
        participants = tuple(sorted((*senders, self._position)))
        self._require_enough(len(participants))
        layout = self._params.first_layout
        requesters, requests = self.read_requesters(
            layout, senders, self._asked, inbound.requesters, inbound.requests
        )
        boxes = zip(senders, inbound.boxes, strict=True)
        self._shares |= {sender: self._open_box(sender, box) for sender, box in boxes}
        self._alive = participants
        self.phase = Phase.READY
        return Start(layout, participants, self._asked, requesters, context, requests)

    def create_masked(self, start: Start, dense: ArrayLike, tables: Sequence[ArrayLike] = ()) -> MaskedVector:
        """Mask the vector of the current sum: ``dense`` words and, per table, values of the own rows."""
        self._require_phase(Phase.READY)
        params = self._params.sums[self._sum]
        ring = ring_named(params.ring)
        self._require_start(start)
        kept = self._rows_to_upload(start)
        own_rows = tuple(rows[keep] for rows, keep in zip(start.rows, kept, strict=True))
        shape = restrict(start.layout, own_rows)
        vector = ring.zeros(shape.words)
        dense_part, table_parts = views(vector, shape)
        dense_part[:] = _shaped(ring.vector(dense, "the dense part"), dense_part.shape, "the dense part")
        if len(tables) != len(table_parts):
            raise InputError(f"values of {len(tables)} tables, the sum has {len(table_parts)}")
        for number, (values, part, keep) in enumerate(zip(tables, table_parts, kept, strict=True)):
            what = f"table {number}"
            part[:] = _shaped(ring.vector(values, what), (len(keep), part.shape[1]), what)[keep]

        listed = start.participants if self._params.neighbours is None else None
        context = sum_context(params.label, start.layout, listed, start.context, start.requests)
        masker = Masker(ring, vector, shape)
        seed = self._secrets.seeds[self._sum]
        masker.add(self_mask_key(seed, self._binding, context, self._position), [None] * len(own_rows))
        peers = [peer for peer in start.participants if peer != self._position]
        for index, peer in enumerate(peers):
            selection = [
                np.flatnonzero(matrix[index][keep])
                for matrix, keep in zip(start.requesters, kept, strict=True)
            ]
            key = pair_mask_key(
                self._secrets.masks[self._sum],
                self._members[peer].masks[self._sum],
                self._binding,
                context,
                min(peer, self._position),
                max(peer, self._position),
            )
            if self._position < peer:
                masker.add(key, selection)
            else:
                masker.subtract(key, selection)
        self._alive = start.participants
        self.phase = Phase.MASKED
        return MaskedVector(self._params.round_id, self._sum, self._position, ring.to_bytes(vector))

    # -- rows: who asked for what (spec 5.2) ---------------------------------------------------

    def sign_request(self, bitmaps: Sequence[bytes]) -> bytes | None:
        """Active mode: vouch for the request of the current sum, so that no server can invent one."""
        if self._identity is None or not bitmaps:
            return None
        return self._identity.sign("request", *request_parts(self._binding, self._sum, bitmaps))

    def read_requesters(
        self,
        layout: Layout,
        others: Sequence[int],
        rows: Sequence[Positions],
        told: bytes,
        signed: Sequence[SignedRequest],
    ) -> tuple[tuple[Bits, ...], bytes]:
        """Per table which of the ``others`` asked for which of the own rows: as the server tells it, or in
        active mode as each of them signed it, with the digest of all requests."""
        if not set(others) <= self._members.keys() - {self._position}:
            raise InvalidMessage("participants that are not this client's peers")
        if self._identity is None or not layout.tables:
            if signed:
                raise InvalidMessage("signed requests where none are due")
            return parse_requesters(told, len(others), rows), b""
        if told or len(signed) != len(others):
            raise InvalidMessage(f"{len(signed)} signed requests of {len(others)} other participants")
        asked = []
        bitmaps = {self._position: request_bitmaps(layout, rows)}
        for other, request in zip(others, signed, strict=True):
            public = (self._identities or {})[self._members[other].client]
            parts = request_parts(self._binding, self._sum, request.bitmaps)
            verify(public, request.signature, "request", *parts)
            asked.append(parse_request(layout, request.bitmaps))
            bitmaps[other] = request.bitmaps
        matrices = tuple(
            np.array([lines[table][own] for lines in asked], np.bool_).reshape(len(others), len(own))
            for table, own in enumerate(rows)
        )
        return matrices, requests_digest([bitmaps[place] for place in sorted(bitmaps)])

    # -- exchange 3: who survived -> shares ----------------------------------------------------

    def handle_survivors(self, lists: Survivors) -> Consistency:
        """Active mode: sign the lists, so that everyone can see that all were shown the same."""
        self._require_phase(Phase.MASKED)
        if self._identity is None:
            raise WrongPhase("a consistency check in honest-but-curious mode")
        self._require_round(lists.round_id, lists.sum)
        self._require_partition(lists.survivors, lists.dropped)
        self._confirmed = (lists.survivors, lists.dropped)
        self.phase = Phase.CONFIRMED
        signature = self._identity.sign("survivors", *self._list_parts(lists.survivors, lists.dropped))
        return Consistency(self._params.round_id, self._sum, self._position, signature)

    def handle_unmask(self, request: UnmaskRequest) -> UnmaskShares:
        """Open each survivor's self-mask and each dropout's mask key: one share per client, once."""
        self._require_phase(Phase.MASKED if self._identity is None else Phase.CONFIRMED)
        self._require_round(request.round_id, request.sum)
        survivors, dropped = request.survivors, request.dropped
        self._require_partition(survivors, dropped)
        if self._identity is not None:
            self._require_signatures(request)
        alive = set(survivors)
        shares = tuple(
            self._shares[position][self._sum][position in alive]
            for position in sorted((*survivors, *dropped))
        )
        answer = UnmaskShares(self._params.round_id, self._sum, self._position, shares)
        self._alive = survivors
        self._sum += 1
        self.phase = Phase.READY
        if self._sum == len(self._params.sums):
            self.phase = Phase.FINISHED
            del self._secrets, self._shares, self._inbound_keys  # nothing of this session is needed again
        log.debug("client %s opened %d self-masks, %d mask keys", self._id, len(alive), len(dropped))
        return answer

    # -- what a client insists on --------------------------------------------------------------

    def _require_phase(self, phase: Phase) -> None:
        if self.phase is not phase:
            raise WrongPhase(f"client {self._id!r} is {self.phase.name}, this needs {phase.name}")

    def _require_round(self, round_id: bytes, sum_index: int | None = None) -> None:
        if round_id != self._params.round_id or sum_index not in (None, self._sum):
            raise WrongRound("a message of another round or another sum")

    def _require_enough(self, count: int) -> None:
        """The least cohort, checked again wherever clients may have been lost on the way."""
        least = self._params.threshold
        if self._params.neighbours is None:
            least = max(least, self._policy.min_clients)
        if count < least:
            raise Refused(f"{count} clients are left, this client wants at least {least}")

    def _require_start(self, start: Start) -> None:
        params = self._params.sums[self._sum]
        if params.layout is not None and start.layout != params.layout:
            raise InvalidMessage("the sum starts with another layout than was announced")
        if not ascending(start.participants) or not set(start.participants) <= set(self._alive):
            raise InvalidMessage("a participant that never shared its secrets, or dropped out before")
        if self._position not in start.participants:
            raise InvalidMessage("this client is not among the participants")
        self._require_enough(len(start.participants))
        shapes = [(len(start.participants) - 1, len(rows)) for rows in start.rows]
        tables = len(start.layout.tables)
        if not len(start.rows) == len(start.requesters) == tables or any(
            matrix.shape != shape for matrix, shape in zip(start.requesters, shapes, strict=True)
        ):
            raise InvalidMessage("requesters do not match the rows of this client")
        upload = start.layout.dense + sum(
            len(rows) * table.width for rows, table in zip(start.rows, start.layout.tables, strict=True)
        )
        if upload > self._policy.max_words:
            # Declined, never trimmed: a trimmed answer would depend on private data.
            raise Refused(f"an upload of {upload} words, this client allows {self._policy.max_words}")

    def _rows_to_upload(self, start: Start) -> list[Bits]:
        """Per table which own rows have enough requesters; a row that would be opened alone stays."""
        least = self._params.sums[self._sum].min_contributors
        return [matrix.sum(axis=0) + 1 >= least for matrix in start.requesters]

    def _require_partition(self, survivors: Sequence[int], dropped: Sequence[int]) -> None:
        """Survivors and dropouts are exactly those this client masked with: no overlap, no one missing."""
        if not (ascending(survivors) and ascending(dropped)):
            raise Refused("survivors or dropouts are listed out of order or twice")
        if sorted((*survivors, *dropped)) != list(self._alive):
            raise Refused("survivors and dropouts are not exactly the clients this client masked with")
        if self._position not in survivors:
            raise Refused("this client answered and is listed as dropped")
        self._require_enough(len(survivors))

    def _require_signatures(self, request: UnmaskRequest) -> None:
        """At least a threshold of survivors signed the very lists this client signed."""
        if (request.survivors, request.dropped) != self._confirmed:
            raise Refused("the lists to open are not the lists that were confirmed")
        signers = [position for position, _ in request.signatures]
        if not ascending(signers) or not set(signers) <= set(request.survivors):
            raise Refused("signatures by clients that are not survivors, or twice by one")
        self._require_enough(len(signers))
        parts = self._list_parts(request.survivors, request.dropped)
        for position, signature in request.signatures:
            public = (self._identities or {})[self._members[position].client]
            verify(public, signature, "survivors", *parts)

    # -- small things --------------------------------------------------------------------------

    @property
    def _channel(self) -> KeyPair:
        channel = self._secrets.channel
        assert channel is not None  # noqa: S101 -- it is dropped only when all boxes are sealed
        return channel

    def _take_up(self, roster: Roster) -> None:
        """What follows from a roster that was accepted."""
        self._roster, self._params, self._binding = roster, roster.params, binding(roster)
        self._position = place_of(self._id, roster)
        self._members = {member.position: member.keys for member in roster.members}

    def _shared(self) -> list[Secret]:
        """All shared secrets in box order: per sum the mask key, then the self-mask seed."""
        secrets = self._secrets
        return [
            secret
            for number in range(self._sums)
            for secret in (secrets.masks[number].private, secrets.seeds[number])
        ]

    def _open_box(self, sender: int, box: bytes) -> list[tuple[bytes, bytes]]:
        key = self._inbound_keys[sender]
        plain = unseal(key, box, "shares", self._params.round_id, sender, self._position)
        return parse_box(plain, len(self._params.sums))

    def _list_parts(self, survivors: Sequence[int], dropped: Sequence[int]) -> list[bytes]:
        return lists_parts(self._binding, self._sum, survivors, dropped)

    def __repr__(self) -> str:
        return f"Client({self._id!r}, {self.phase.name})"


def place_of(client_id: str, roster: Roster) -> int:
    return next(member.position for member in roster.members if member.keys.client == client_id)


def parse_box(plain: bytes, sums: int) -> list[tuple[bytes, bytes]]:
    """Per sum the share of the mask key (index False) and of the self-mask seed (index True)."""
    if len(plain) != 2 * sums * SHARE_BYTES:
        raise InvalidMessage("a box of the wrong length")
    shares = [plain[start : start + SHARE_BYTES] for start in range(0, len(plain), SHARE_BYTES)]
    for share in shares:
        parse_share(share)
    return list(zip(shares[::2], shares[1::2], strict=True))


def _shaped(values: Words, shape: tuple[int, ...], what: str) -> Words:
    if values.shape != shape:
        raise InputError(f"{what} has shape {values.shape}, the sum needs {shape}")
    return values
