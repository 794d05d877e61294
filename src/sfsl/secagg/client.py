"""One client of a session: a state machine without I/O (spec 4).

Each step takes the server's message and returns the client's answer, once. A message that does not
belong, does not verify or asks for too much raises and leaves the client as it was: see ``states``
for what it knows in each phase.
"""

import logging
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec.structs import replace
from numpy.typing import ArrayLike

from sfsl.arrays import Bits, Positions
from sfsl.codec import read_bits
from sfsl.crypto.ring import Ring, Words, ring_named
from sfsl.crypto.secret import (
    Identity,
    KeyPair,
    Randomness,
    Secret,
    channel_keys,
    pair_mask_key,
    seal,
    split,
    unseal,
    verify,
)
from sfsl.errors import InputError, InvalidMessage, Refused, WrongPhase, WrongRound
from sfsl.secagg import messages
from sfsl.secagg import states as at
from sfsl.secagg.graph import peers_of
from sfsl.secagg.masking import Masker, own_rows, parse_request, parse_requesters, request_bitmaps, restrict
from sfsl.secagg.messages import Keys, Layout, Policy, Roster
from sfsl.secagg.states import Machine, State
from sfsl.secagg.states import Start as Start
from sfsl.secagg.tree import require_proof

log = logging.getLogger(__name__)


class Client(Machine[State]):
    """``policy`` is what this client insists on. With an ``identity`` it insists on active mode, and
    ``identities`` are the public keys of the others, known in advance and not from the server.
    ``state`` is that of a client that was put away: without it a new one draws its secrets."""

    moves = at.CLIENT_MOVES

    def __init__(
        self,
        client_id: str,
        policy: Policy,
        randomness: Randomness,
        *,
        sums: int = 1,
        identity: Identity | None = None,
        identities: Mapping[str, bytes] | None = None,
        state: State | None = None,
    ) -> None:
        if not isinstance(client_id, str) or not 1 <= len(client_id) <= messages.MAX_ID:
            raise InputError(f"a client id is a string of 1 to {messages.MAX_ID} characters")
        if (identity is None) != (identities is None):
            raise InputError("active mode needs both the own identity and the identities of the others")
        super().__init__(state or _drawn(randomness, sums), active=identity is not None)
        self._id = client_id
        self._policy = policy
        self._randomness = randomness
        self._identity = identity
        self._identities = identities

    @property
    def active(self) -> bool:
        """Whether it takes the server for one that may lie."""
        return self._identity is not None

    @property
    def binding(self) -> bytes:
        """What every key of the session is bound to, once this client has joined."""
        return self._joined().place.binding

    @property
    def position(self) -> int:
        """This client's place in the roster, once it has joined."""
        return self._state.position if isinstance(self._state, at.Finished) else self._joined().place.own

    # -- check-in ------------------------------------------------------------------------------

    def create_keys(self) -> Keys:
        """Draw up the public keys for one session; a client answers one roster per set of keys, ever."""
        state = self._due(Keys, at.New)
        masks = tuple(one.mask.public for one in state.secrets)
        commitments = tuple(messages.commitment(one.seed) for one in state.secrets)
        keys = Keys(self._id, state.channel.public, masks, commitments, None)
        if self._identity is not None:
            keys = replace(keys, signature=self._identity.sign("keys", *messages.keys_parts(keys)))
        self._enter(at.CheckedIn(state.channel, state.secrets, keys))
        return keys

    # -- exchange 1: roster -> sealed shares ---------------------------------------------------

    def handle_roster(self, roster: Roster, rows: Sequence[ArrayLike] = ()) -> messages.SealedShares:
        """Share this session's secrets among the peers. ``rows``: the rows asked for, per table."""
        state = self._due(Roster, at.CheckedIn)
        params = roster.params
        messages.require_policy(params, self._policy, len(state.secrets), active=self._identity is not None)
        messages.require_members(roster, state.keys, self._identities)
        layout = params.first_layout
        asked = own_rows(layout, rows)
        # The proof has done its work: what is kept has the root only.
        place = at.Place.of(self._id, replace(roster, proof=b""))
        if params.neighbours is not None:
            require_proof(roster)
            _require_neighbours(place)
        points = [messages.point(member.position) for member in roster.members]
        # Per secret the shares for all members; per member then one box with its share of each secret.
        secrets = [secret for one in state.secrets for secret in (one.mask.private, one.seed)]
        columns = [split(secret, params.threshold, points, self._randomness) for secret in secrets]
        boxes, inbound_keys, kept = [], {}, {}
        for member, *column in zip(roster.members, *columns, strict=True):
            plain, other = b"".join(column), member.position
            if other == place.own:
                kept[other] = Secret(plain)
                continue
            sending, inbound_keys[other] = channel_keys(state.channel, member.keys.channel, place.binding)
            boxes.append(seal(sending, plain, "shares", params.round_id, place.own, other))
        request = request_bitmaps(layout, asked)
        after = at.Shared(place, 0, state.secrets, kept, inbound_keys, asked)
        signature = self._sign_request(after, request)
        self._enter(after)
        log.debug("client %s at position %d shared its secrets", self._id, place.own)
        return messages.SealedShares(params.round_id, place.own, tuple(boxes), request, signature)

    # -- exchange 2: inbound shares -> masked vector -------------------------------------------

    def handle_inbound(self, inbound: messages.InboundShares, context: bytes = b"") -> Start:
        """Open the boxes of the peers that are still there; they take part in the first sum."""
        state = self._due(messages.InboundShares, at.Shared)
        place, params, senders = state.place, state.place.params, inbound.senders
        _require_current(state, inbound.round_id, 0)
        if not messages.ascending(senders) or not set(senders) <= set(place.peers):
            raise InvalidMessage("boxes from clients that are not this client's peers")
        if len(inbound.boxes) != len(senders):
            raise InvalidMessage(f"{len(inbound.boxes)} boxes from {len(senders)} senders")
        participants = tuple(sorted((*senders, place.own)))
        self._require_enough(place, len(participants))
        layout = params.first_layout
        requesters, requests = self.read_requesters(
            layout, senders, state.asked, inbound.requesters, inbound.requests
        )
        shares = dict(state.shares)
        for sender, box in zip(senders, inbound.boxes, strict=True):
            plain = unseal(state.inbound_keys[sender], box, "shares", params.round_id, sender, place.own)
            shares[sender] = at.parse_box(plain, len(params.sums))
        self._enter(at.Ready(place, 0, state.secrets, shares, participants))
        return Start(layout, participants, state.asked, requesters, context, requests)

    def create_masked(
        self, start: Start, dense: ArrayLike, tables: Sequence[ArrayLike] = ()
    ) -> messages.MaskedVector:
        """Mask the vector of the current sum: ``dense`` words and, per table, values of the own rows."""
        state = self._due(Start, at.Ready)
        place, number = state.place, state.sum
        params = place.params.sums[number]
        ring = ring_named(params.ring)
        self._require_start(state, start)
        kept = rows_to_upload(start, params.min_contributors)
        shape = restrict(start.layout, [rows[keep] for rows, keep in zip(start.rows, kept, strict=True)])
        vector = ring.zeros(shape.words)
        masker = Masker(ring, vector, shape)
        masker.dense[:] = _checked(ring, dense, masker.dense.shape, "the dense part")
        if len(tables) != len(masker.tables):
            raise InputError(f"values of {len(tables)} tables, the sum has {len(masker.tables)}")
        for table, (values, part, keep) in enumerate(zip(tables, masker.tables, kept, strict=True)):
            part[:] = _checked(ring, values, (len(keep), part.shape[1]), f"table {table}")[keep]
        listed = start.participants if place.params.neighbours is None else None
        context = messages.sum_context(params.label, start.layout, listed, start.context, start.requests)
        own, *later = state.secrets
        masker.add(messages.self_mask_key(own.seed, place.binding, context, place.own), [None] * len(kept))
        for index, peer in enumerate(peer for peer in start.participants if peer != place.own):
            selection = [
                np.flatnonzero(matrix[index][keep])
                for matrix, keep in zip(start.requesters, kept, strict=True)
            ]
            published = place.members[peer].masks[number]
            low, high = sorted((peer, place.own))
            key = pair_mask_key(own.mask, published, place.binding, context, low, high)
            apply = masker.add if place.own == low else masker.subtract
            apply(key, selection)
        answer = messages.MaskedVector(place.params.round_id, number, place.own, ring.to_bytes(vector))
        self._enter(at.Masked(place, number, tuple(later), state.shares, start.participants))
        return answer

    # -- rows: who asked for what (spec 5.2) ---------------------------------------------------

    def sign_request(self, bitmaps: Sequence[bytes]) -> bytes | None:
        """Active mode: vouch for the request of the current sum, so that no server can invent one."""
        return self._sign_request(self._joined(), bitmaps)

    def _sign_request(self, state: at.Joined, bitmaps: Sequence[bytes]) -> bytes | None:
        if self._identity is None or not bitmaps:
            return None
        parts = messages.request_parts(state.place.binding, state.sum, bitmaps)
        return self._identity.sign("request", *parts)

    def read_requesters(
        self,
        layout: Layout,
        others: Sequence[int],
        rows: Sequence[Positions],
        told: bytes,
        signed: Sequence[messages.SignedRequest],
    ) -> tuple[tuple[Bits, ...], bytes]:
        """Find per table which of the ``others`` asked for which own rows: as the server tells it, or in
        active mode as each of them signed it, with the digest of all requests."""
        state = self._joined()
        place = state.place
        if not set(others) <= set(place.peers):
            raise InvalidMessage("participants that are not this client's peers")
        if self._identity is None or not layout.tables:
            if signed:
                raise InvalidMessage("signed requests where none are due")
            return parse_requesters(told, len(others), rows), b""
        if told or len(signed) != len(others):
            raise InvalidMessage(f"{len(signed)} signed requests of {len(others)} other participants")
        asked = []
        bitmaps = {place.own: request_bitmaps(layout, rows)}
        for other, request in zip(others, signed, strict=True):
            public = (self._identities or {})[place.members[other].client]
            messages.verify_request(public, place.binding, state.sum, request.bitmaps, request.signature)
            asked.append(parse_request(layout, request.bitmaps))
            bitmaps[other] = request.bitmaps
        matrices = tuple(
            np.array([lines[table][own] for lines in asked], np.bool_).reshape(len(others), len(own))
            for table, own in enumerate(rows)
        )
        return matrices, messages.requests_digest([bitmaps[position] for position in sorted(bitmaps)])

    # -- exchange 3: who survived -> shares ----------------------------------------------------

    def handle_survivors(self, lists: messages.Survivors) -> messages.Consistency:
        """Active mode: sign the lists, so that everyone can see that all were shown the same."""
        state = self._due(messages.Survivors, at.Masked)
        self._require_partition(state, lists)
        assert self._identity is not None  # noqa: S101 -- the table has this in active mode only
        signature = self._identity.sign("survivors", *_list_parts(state, lists))
        answer = messages.Consistency(state.place.params.round_id, state.sum, state.place.own, signature)
        confirmed = (lists.survivors, lists.dropped)
        self._enter(at.Confirmed(state.place, state.sum, state.secrets, state.shares, state.alive, confirmed))
        return answer

    def handle_unmask(self, request: messages.UnmaskRequest) -> messages.UnmaskShares:
        """Open each survivor's self-mask and each dropout's mask key: one share per client, once."""
        state = self._due(messages.UnmaskRequest, at.Masked)
        place = state.place
        self._require_partition(state, request)
        survivors, dropped = request.survivors, request.dropped
        self._require_cohort(place, request)
        if isinstance(state, at.Confirmed):
            self._require_signatures(state, request)
        alive = set(survivors)
        opened = tuple(at.share(state.shares[one], one in alive) for one in sorted((*survivors, *dropped)))
        answer = messages.UnmaskShares(place.params.round_id, state.sum, place.own, opened)
        following = state.sum + 1
        if following < len(place.params.sums):
            left = at.without_current(state.shares)
            self._enter(at.Ready(place, following, state.secrets, left, survivors))
        else:
            self._enter(at.Finished(place.own))
        log.debug("client %s opened %d self-masks, %d mask keys", self._id, len(alive), len(dropped))
        return answer

    # -- what a client insists on --------------------------------------------------------------

    def _joined(self) -> at.Joined:
        if not isinstance(self._state, at.Joined):
            raise WrongPhase(f"{self!r} is in no session")
        return self._state

    def _require_enough(self, place: at.Place, count: int) -> None:
        """Insist on the least cohort again, wherever clients may have been lost on the way."""
        least = place.params.threshold
        if place.params.neighbours is None:
            least = max(least, self._policy.min_clients)
        if count < least:
            raise Refused(f"{count} clients are left, this client wants at least {least}")

    def _require_start(self, state: at.Ready, start: Start) -> None:
        params = state.place.params.sums[state.sum]
        if params.layout is not None and start.layout != params.layout:
            raise InvalidMessage("the sum starts with another layout than was announced")
        if not messages.ascending(start.participants) or not set(start.participants) <= set(state.alive):
            raise InvalidMessage("a participant that never shared its secrets, or dropped out before")
        if state.place.own not in start.participants:
            raise InvalidMessage("this client is not among the participants")
        self._require_enough(state.place, len(start.participants))
        shapes = [(len(start.participants) - 1, len(rows)) for rows in start.rows]
        if len(start.rows) != len(start.layout.tables) or [one.shape for one in start.requesters] != shapes:
            raise InvalidMessage("requesters do not match the rows of this client")
        upload = restrict(start.layout, start.rows).words
        if upload > self._policy.max_words:
            # Declined, never trimmed: a trimmed answer would depend on private data.
            raise Refused(f"an upload of {upload} words, this client allows {self._policy.max_words}")

    def _require_partition(self, state: at.Masked, lists: messages.Lists) -> None:
        """Survivors and dropouts must be exactly those this client masked with: no overlap, none missing."""
        _require_current(state, lists.round_id, lists.sum)
        survivors, dropped = lists.survivors, lists.dropped
        if not (messages.ascending(survivors) and messages.ascending(dropped)):
            raise Refused("survivors or dropouts are listed out of order or twice")
        if sorted((*survivors, *dropped)) != list(state.alive):
            raise Refused("survivors and dropouts are not exactly the clients this client masked with")
        if state.place.own not in survivors:
            raise Refused("this client answered and is listed as dropped")
        self._require_enough(state.place, len(survivors))
        self._require_company(state, len(dropped))

    def _require_company(self, state: at.Masked, dropped: int) -> None:
        """Refuse to be left alone on a row by a server that chooses who dropped out (spec 7.3)."""
        one = state.place.params.sums[state.sum]
        if not (self._policy.company and self.active) or (one.layout is not None and not one.layout.tables):
            return
        most = max(0, one.min_contributors - 2)
        if dropped > most:
            raise Refused(
                f"{dropped} clients are said to have dropped out after rows were asked for; where rows of "
                f"{one.min_contributors} contributors are opened, this client allows {most}"
            )

    def _require_cohort(self, place: at.Place, request: messages.UnmaskRequest) -> None:
        """On a sparse graph, insist on enough survivors in the whole cohort: the noise in a sum is theirs."""
        if place.params.neighbours is None:
            if request.cohort:
                raise InvalidMessage("survivors of the cohort besides the lists, which have them all")
            return
        cohort = read_bits(request.cohort, place.params.clients)
        if tuple(position for position in place.members if cohort[position]) != request.survivors:
            raise Refused("the survivors of the cohort contradict those among this client's neighbours")
        count, least = np.count_nonzero(cohort), max(place.params.fewest, self._policy.min_clients)
        if count < least:
            raise Refused(f"{count} clients of the cohort survived, at least {least} were promised or wanted")

    def _require_signatures(self, state: at.Confirmed, request: messages.UnmaskRequest) -> None:
        """At least a threshold of survivors must have signed the very lists this client signed."""
        if (request.survivors, request.dropped) != state.confirmed:
            raise Refused("the lists to open are not the lists that were confirmed")
        signers = [position for position, _ in request.signatures]
        if not messages.ascending(signers) or not set(signers) <= set(request.survivors):
            raise Refused("signatures by clients that are not survivors, or twice by one")
        self._require_enough(state.place, len(signers))
        parts = _list_parts(state, request)
        for position, signature in request.signatures:
            public = (self._identities or {})[state.place.members[position].client]
            verify(public, signature, "survivors", *parts)

    def __repr__(self) -> str:
        return f"Client({self._id!r}, {self.phase.name})"


def _drawn(randomness: Randomness, sums: int) -> at.New:
    """Draw all secrets of a new client, in this order so that seeded sources give what they always gave."""
    channel = KeyPair.generate(randomness)
    masks = [KeyPair.generate(randomness) for _ in range(sums)]
    return at.New(channel, tuple(at.SumSecrets(mask, Secret(randomness.bytes(32))) for mask in masks))


def _require_current(state: at.Joined, round_id: bytes, number: int) -> None:
    if (round_id, number) != (state.place.params.round_id, state.sum):
        raise WrongRound("a message of another round or another sum")


def _require_neighbours(place: at.Place) -> None:
    """Compute who the neighbours are; the server does not choose them."""
    due = peers_of(place.params, place.roster.root or b"", place.own)
    if place.peers != due:
        strangers = len(set(place.peers) - set(due))
        raise Refused(
            f"a roster with {len(place.peers)} neighbours, {strangers} of whom do not follow from round and "
            f"roster; {len(due)} are due"
        )


def rows_to_upload(start: Start, least: int) -> list[Bits]:
    """Find per table which own rows have enough requesters; a row that would be opened alone stays."""
    return [matrix.sum(axis=0) + 1 >= least for matrix in start.requesters]


def _list_parts(state: at.Masked, lists: messages.Lists) -> list[bytes]:
    return messages.lists_parts(state.place.binding, state.sum, lists.survivors, lists.dropped)


def _checked(ring: Ring, given: ArrayLike, shape: tuple[int, ...], what: str) -> Words:
    values = ring.vector(given, what)
    if values.shape != shape:
        raise InputError(f"{what} has shape {values.shape}, the sum needs {shape}")
    return values
