"""The server of a session: a state machine without I/O (spec 4).

``receive`` takes one client's message or raises and changes nothing. ``close_phase`` ends a phase:
whoever was not heard is a dropout from there on. The phases of one sum:

    SHARES -> MASKED -> [CONSISTENCY, active mode] -> UNMASK -> OPENED

``OPENED`` is followed by ``start_sum`` where the session has another sum. An abort is final.
"""

import hashlib
import logging
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from functools import partial

from sfsl.arrays import Bits
from sfsl.codec import Message
from sfsl.crypto.agreement import KeyPair, pair_mask_key, require_contributory
from sfsl.crypto.identity import verify
from sfsl.crypto.secret import Secret
from sfsl.crypto.shamir import parse_share
from sfsl.errors import (
    Aborted,
    AuthenticationFailed,
    ConflictingMessage,
    InvalidMessage,
    KeyMismatch,
    ParameterError,
    TooFewClients,
    UnexpectedSender,
    WrongPhase,
    WrongRound,
)
from sfsl.secagg.graph import peers
from sfsl.secagg.masking import Masker, views
from sfsl.secagg.messages import (
    CODEC,
    Consistency,
    InboundShares,
    Keys,
    MaskedVector,
    Member,
    Roster,
    SealedShares,
    SignedRequest,
    Survivors,
    UnmaskRequest,
    UnmaskShares,
)
from sfsl.secagg.params import Layout, SessionParams
from sfsl.secagg.rebuilding import Rebuilding
from sfsl.secagg.rows import pack_requesters, parse_request
from sfsl.secagg.total import Opened, RunningTotal
from sfsl.secagg.transcript import (
    binding,
    lists_parts,
    request_parts,
    requests_digest,
    require_distinct,
    require_key_pair,
    require_keys,
    require_seed,
    self_mask_key,
    sum_context,
)

log = logging.getLogger(__name__)


class Phase(Enum):
    SHARES = auto()
    MASKED = auto()
    CONSISTENCY = auto()
    UNMASK = auto()
    OPENED = auto()
    ABORTED = auto()


PHASE_OF: dict[type[Message], Phase] = {
    SealedShares: Phase.SHARES,
    MaskedVector: Phase.MASKED,
    Consistency: Phase.CONSISTENCY,
    UnmaskShares: Phase.UNMASK,
}


class Server:
    """Runs one session for the clients whose ``keys`` were taken at check-in.

    ``context`` is what the masks of the first sum are bound to besides parameters and roster.
    """

    def __init__(
        self,
        params: SessionParams,
        keys: Sequence[Keys],
        identities: Mapping[str, bytes] | None = None,
        *,
        context: bytes = b"",
    ) -> None:
        if len(keys) != params.clients:
            raise ParameterError(f"keys of {len(keys)} clients for a session of {params.clients}")
        if params.active != (identities is not None):
            raise ParameterError("active mode needs the clients' identities, the other mode has none")
        require_distinct(keys)
        for one in keys:
            require_keys(one, len(params.sums), identities)
            for public in (one.channel, *one.masks):
                require_contributory(public)
        self.phase = Phase.SHARES
        self._params = params
        self._identities = identities
        self._context = context
        self._keys = sorted(keys, key=lambda one: one.client)
        self._place = {one.client: position for position, one in enumerate(self._keys)}
        self._peers = peers(params)
        smallest = min(len(group) for group in self._peers) + 1
        if params.threshold > smallest:
            raise ParameterError(
                f"threshold {params.threshold} on a graph where a client has only {smallest} share holders"
            )
        self._members = tuple(Member(position, one) for position, one in enumerate(self._keys))
        self._binding = binding(Roster(params, self._members))
        self._sum_index = 0
        self._accepted: dict[tuple[Phase, int, int], bytes] = {}
        self._awaited = set(range(params.clients))
        self._boxes: dict[int, dict[int, bytes]] = {}
        self._requests: dict[int, tuple[Bits, ...]] = {}
        self._signed: dict[int, SignedRequest] = {}
        self._survivors: tuple[int, ...] = ()
        self._dropped: tuple[int, ...] = ()
        self._signatures: dict[int, bytes] = {}
        self._shares: dict[int, dict[int, int]] = {}
        self._opened: Opened | None = None

    def rosters(self) -> dict[str, Roster]:
        """Exchange 1, outbound. On the complete graph everyone gets the very same roster."""
        if self._params.neighbours is None:
            roster = Roster(self._params, self._members)
            return dict.fromkeys(self._place, roster)
        return {
            one.client: Roster(
                self._params,
                tuple(self._members[k] for k in sorted((position, *self._peers[position]))),
            )
            for position, one in enumerate(self._keys)
        }

    # -- inbound -------------------------------------------------------------------------------

    def receive(self, client: str, message: Message) -> None:
        """Accept one message, or raise and leave the state as it was. The same message again is silent."""
        if not isinstance(message, SealedShares | MaskedVector | Consistency | UnmaskShares):
            raise WrongPhase(f"{type(message).__name__} is not a client's message")
        position = self._require_sender(client, message.sender)
        self._require_round(client, message.round_id)
        phase = PHASE_OF[type(message)]
        sum_index = 0 if isinstance(message, SealedShares) else message.sum
        slot = (phase, sum_index, position)
        fingerprint = hashlib.sha256(CODEC.encode(message)).digest()
        if slot in self._accepted:
            self._require_same(client, fingerprint, self._accepted[slot])
            return
        self._require_due(client, slot)
        self._accept(position, message)
        self._accepted[slot] = fingerprint

    def _require_sender(self, client: str, claimed: int) -> int:
        """``client`` is who the transport authenticated; the message must not claim to be another."""
        position = self._place.get(client)
        if position is None or claimed != position:
            raise UnexpectedSender(f"client {client!r} is not who this message says")
        return position

    def _require_round(self, client: str, round_id: bytes) -> None:
        if round_id != self._params.round_id:
            raise WrongRound(f"client {client!r} answers another round")

    def _require_same(self, client: str, fingerprint: bytes, accepted: bytes) -> None:
        """Two different vectors under one mask would be a two-time pad; a repeated message is nothing new."""
        if fingerprint != accepted:
            raise ConflictingMessage(f"a second, different message from client {client!r}")

    def _require_due(self, client: str, slot: tuple[Phase, int, int]) -> None:
        """Neither early nor late, and from someone who missed nothing so far."""
        phase, sum_index, position = slot
        if (phase, sum_index) != self._now:
            raise WrongPhase(f"{phase.name} of sum {sum_index} from {client!r}, now is {self.phase.name}")
        if position not in self._awaited:
            raise UnexpectedSender(f"client {client!r} dropped out earlier in this round")

    def _accept(
        self, position: int, message: SealedShares | MaskedVector | Consistency | UnmaskShares
    ) -> None:
        if isinstance(message, SealedShares):
            group = self._peers[position]
            if len(message.boxes) != len(group):
                raise InvalidMessage(f"{len(message.boxes)} boxes for {len(group)} peers")
            layout = self._params.first_layout
            request = parse_request(layout, message.request)
            if layout.tables and self._identities is not None:
                self._signed[position] = self._signed_request(position, message)
            self._boxes[position] = dict(zip(group, message.boxes, strict=True))
            self._requests[position] = request
        elif isinstance(message, MaskedVector):
            self._sum.add(position, self._sum.parse(position, message.words))
        elif isinstance(message, Consistency):
            public = (self._identities or {})[self._keys[position].client]
            verify(public, message.signature, "survivors", *self._list_parts())
            self._signatures[position] = message.signature
        else:
            listed = self._listed(position)
            if len(message.shares) != len(listed):
                raise InvalidMessage(f"{len(message.shares)} shares where {len(listed)} were asked for")
            shares = [parse_share(share) for share in message.shares]
            self._shares[position] = dict(zip(listed, shares, strict=True))

    def _signed_request(self, position: int, message: SealedShares) -> SignedRequest:
        if message.request_signature is None:
            raise AuthenticationFailed("an unsigned request for rows in active mode")
        public = (self._identities or {})[self._keys[position].client]
        parts = request_parts(self._binding, 0, message.request)
        verify(public, message.request_signature, "request", *parts)
        return SignedRequest(message.request, message.request_signature)

    # -- phases --------------------------------------------------------------------------------

    def close_phase(self) -> dict[str, Message]:
        """End the phase and return what each remaining client is to be sent; or abort, for good."""
        heard = tuple(sorted(place for phase, index, place in self._accepted if (phase, index) == self._now))
        if self.phase in (Phase.OPENED, Phase.ABORTED):
            raise WrongPhase(f"nothing to close: the session is {self.phase.name.lower()}")
        log.debug("round %s, %s: heard %d", self._params.round_id.hex(), self.phase.name, len(heard))
        try:
            self._require_enough(len(heard))
            if self.phase is Phase.SHARES:
                return self._deliver_shares(heard)
            if self.phase is Phase.MASKED:
                return self._announce_survivors(heard)
            if self.phase is Phase.CONSISTENCY:
                return self._ask_to_unmask(heard)
            self._open()
            return {}
        except Aborted:
            self.phase = Phase.ABORTED
            raise

    @property
    def _now(self) -> tuple[Phase, int]:
        return self.phase, self._sum_index

    def _require_enough(self, heard: int) -> None:
        if heard < self._params.threshold:
            raise TooFewClients(
                f"{heard} clients answered in phase {self.phase.name.lower()}, "
                f"{self._params.threshold} are needed; {self._closed()}"
            )

    def _closed(self) -> str:
        label = self._params.sums[self._sum_index].label
        return f"the sum {label!r} stays closed" if self._sum_index else "no sum was opened"

    def _deliver_shares(self, heard: tuple[int, ...]) -> dict[str, Message]:
        layout = self._params.first_layout
        bitmaps = [self._signed[k].bitmaps for k in heard if k in self._signed]
        requesters = self._begin(heard, layout, self._requests, self._context, bitmaps)
        outbound: dict[str, Message] = {}
        for position in heard:
            senders = tuple(k for k in self._peers[position] if k in self._boxes)
            boxes = tuple(self._boxes[k][position] for k in senders)
            signed = tuple(self._signed[k] for k in senders if k in self._signed)
            told = b"" if signed else requesters[position]
            outbound[self._keys[position].client] = InboundShares(
                self._params.round_id, senders, boxes, told, signed
            )
        self._boxes.clear()
        return outbound

    def start_sum(
        self,
        participants: Sequence[str],
        layout: Layout,
        requests: Mapping[str, Sequence[bytes]],
        context: bytes = b"",
    ) -> dict[str, bytes]:
        """Begin the session's next sum among clients that answered all of the last one.

        ``requests`` are bitmaps of rows per table. Returns what each is to be told of who else asked.
        """
        if self.phase is not Phase.OPENED or self._sum_index + 1 == len(self._params.sums):
            raise WrongPhase(f"no sum to start: {self.phase.name}, sum {self._sum_index}")
        places = sorted(self._place.get(client, -1) for client in participants)
        if not set(places) <= self._shares.keys() or len(set(places)) != len(places):
            raise ParameterError("participants must have answered every exchange of the sum before")
        announced = self._params.sums[self._sum_index + 1].layout
        if announced not in (None, layout):
            raise ParameterError("the sum starts with another layout than was announced")
        asked = {k: parse_request(layout, requests.get(self._keys[k].client, ())) for k in places}
        if len(places) < self._params.threshold:
            self.phase = Phase.ABORTED
            raise TooFewClients(f"{len(places)} clients are left, {self._params.threshold} are needed")
        self._sum_index += 1
        self._shares, self._signatures = {}, {}
        signed = [requests.get(self._keys[k].client, ()) for k in places]
        told = self._begin(places, layout, asked, context, signed)
        return {self._keys[place].client: one for place, one in told.items()}

    def _begin(
        self,
        participants: Sequence[int],
        layout: Layout,
        requests: Mapping[int, tuple[Bits, ...]],
        context: bytes,
        signed: Sequence[Sequence[bytes]],
    ) -> dict[int, bytes]:
        params = self._params.sums[self._sum_index]
        listed = participants if self._params.neighbours is None else None
        all_requests = requests_digest(signed) if self._params.active and layout.tables else b""
        bound = sum_context(params.label, layout, listed, context, all_requests)
        self._sum = RunningTotal(params, layout, participants, bound)
        if layout.tables:
            self._sum.set_requests(requests)
        self._awaited = set(participants)
        self.phase = Phase.MASKED
        told = pack_requesters(self._sum.asked, len(self._sum.participants))
        return dict(zip(self._sum.participants, told, strict=True))

    def _announce_survivors(self, heard: tuple[int, ...]) -> dict[str, Message]:
        alive = set(heard)
        self._survivors = heard
        self._dropped = tuple(k for k in self._sum.participants if k not in alive)
        self._awaited = alive
        self._require_openable(alive)
        if not self._params.active:
            return self._ask_to_unmask(heard)
        self.phase = Phase.CONSISTENCY
        message = Survivors(self._params.round_id, self._sum_index, heard, self._dropped)
        return {self._keys[position].client: message for position in heard}

    def _require_openable(self, alive: set[int]) -> None:
        """On a sparse graph a secret may have lost its holders already: then nobody is asked for a share."""
        if self._params.neighbours is None:
            return
        for position in self._sum.participants:
            near = self._peers[position]
            holders = len(alive.intersection((position, *near)))
            needed = position in alive or not alive.isdisjoint(near)
            if needed and holders < self._params.threshold:
                raise TooFewClients(
                    f"{holders} share holders of client {self._keys[position].client!r} are left, "
                    f"{self._params.threshold} are needed; no share was opened"
                )

    def _ask_to_unmask(self, heard: tuple[int, ...]) -> dict[str, Message]:
        self.phase = Phase.UNMASK
        self._awaited = set(heard)
        signatures = tuple(sorted(self._signatures.items()))
        outbound: dict[str, Message] = {}
        for position in heard:
            near = set(self._listed(position))
            outbound[self._keys[position].client] = UnmaskRequest(
                self._params.round_id,
                self._sum_index,
                tuple(k for k in self._survivors if k in near),
                tuple(k for k in self._dropped if k in near),
                signatures,
            )
        return outbound

    def _open(self) -> None:
        """Rebuild one secret per client, check it, and take the masks off the total."""
        current = self._sum
        masker = Masker(current.ring, current.total, current.layout)
        alive = set(self._survivors)
        # All secrets first: if one is missing or wrong, nothing has been opened.
        seeds, keys = self._secrets()
        for position, seed in seeds.items():
            key = self_mask_key(seed, self._binding, current.context, position)
            masker.subtract(key, current.rows[position])
        for position, pair in keys.items():
            for peer in self._peers[position]:
                if peer not in alive:
                    continue
                low, high = min(position, peer), max(position, peer)
                published = self._keys[peer].masks[self._sum_index]
                key = pair_mask_key(pair, published, self._binding, current.context, low, high)
                # The survivor added the stream if it stands before the dropout; take that back.
                remove = masker.subtract if peer == low else masker.add
                remove(key, current.shared_rows(peer, position))
        dense, tables = views(current.total, current.layout)
        self._opened = Opened(
            dense,
            tuple(tables),
            current.contributors(self._survivors),
            tuple(self._keys[position].client for position in self._survivors),
        )
        self.phase = Phase.OPENED
        log.debug("round %s: opened a sum of %d", self._params.round_id.hex(), len(self._survivors))

    def _secrets(self) -> tuple[dict[int, Secret], dict[int, KeyPair]]:
        """Each survivor's seed and each dropout's key pair, as published; or who dealt what does not fit."""
        rebuilding, wrong = Rebuilding(self._params.threshold), list[KeyMismatch]()
        alive = set(self._survivors)
        seeds, keys = {}, {}
        for position in self._sum.participants:
            if position not in alive and not alive.intersection(self._peers[position]):
                continue  # it shared masks with nobody who is left
            published, shares = self._keys[position], self._shares_of(position)
            try:
                if position in alive:
                    seed = partial(_seed, published.commitments[self._sum_index])
                    seeds[position] = rebuilding.secret(published.client, shares, seed)
                else:
                    pair = partial(_pair, published.masks[self._sum_index])
                    keys[position] = rebuilding.secret(published.client, shares, pair)
            except KeyMismatch as error:
                wrong.append(error)
        if wrong:
            raise KeyMismatch(str(wrong[0]), tuple(client for error in wrong for client in error.clients))
        if rebuilding.doubted:
            corrected = len(rebuilding.doubted)
            log.warning("round %s: corrected shares of %d clients", self._params.round_id.hex(), corrected)
        return seeds, keys

    def _shares_of(self, position: int) -> dict[int, int]:
        """By holder, those that arrived of one client's secret."""
        group = sorted((position, *self._peers[position]))
        shares = {k: self._shares[k][position] for k in group if position in self._shares.get(k, {})}
        if len(shares) < self._params.threshold:
            raise TooFewClients(
                f"{len(shares)} shares of client {self._keys[position].client!r} arrived, "
                f"{self._params.threshold} are needed; {self._closed()}"
            )
        return shares

    @property
    def round_id(self) -> bytes:
        return self._params.round_id

    @property
    def binding(self) -> bytes:
        """What every key and signature of this session is bound to (spec 4.4)."""
        return self._binding

    def position(self, client: str) -> int:
        return self._place[client]

    @property
    def opened(self) -> Opened:
        if self._opened is None or self.phase is not Phase.OPENED:
            raise WrongPhase(f"no sum is open in phase {self.phase.name.lower()}")
        return self._opened

    @property
    def answered(self) -> tuple[str, ...]:
        """Who answered every exchange of the opened sum and so may take part in what follows."""
        return tuple(self._keys[place].client for place in sorted(self._shares)) if self._opened else ()

    def _listed(self, position: int) -> tuple[int, ...]:
        """Whose masks this client is asked to open: everyone it masked with, and itself."""
        near = {position, *self._peers[position]}
        return tuple(k for k in self._sum.participants if k in near)

    def _list_parts(self) -> list[bytes]:
        return lists_parts(self._binding, self._sum_index, self._survivors, self._dropped)

    def __repr__(self) -> str:
        return f"Server({self._params.clients} clients, {self.phase.name})"


def _seed(published: bytes, secret: Secret) -> Secret:
    require_seed(secret, published)
    return secret


def _pair(published: bytes, secret: Secret) -> KeyPair:
    return require_key_pair(secret, published)
