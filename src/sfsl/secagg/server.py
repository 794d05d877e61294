"""The server of a session: a state machine without I/O (spec 4).

``receive`` takes one client's message or raises and changes nothing. ``close_phase`` ends a phase:
whoever did not answer is a dropout from there on. ``states`` has the phases as a table, and what
the server knows in each. An open sum is followed by ``start_sum`` where the session has another one. An
abort is final.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Any, TypeVar

import numpy as np

from sfsl.arrays import Bits
from sfsl.codec import Message
from sfsl.crypto.secret import KeyPair, Secret, pair_mask_key, parse_share, require_contributory, verify
from sfsl.errors import (
    Aborted,
    InvalidMessage,
    KeyMismatch,
    ParameterError,
    TooFewClients,
    UnexpectedSender,
    WrongPhase,
)
from sfsl.secagg import messages
from sfsl.secagg import states as at
from sfsl.secagg.graph import peers
from sfsl.secagg.masking import Masker, Opened, Rebuilding, RunningTotal, parse_request
from sfsl.secagg.messages import Keys, Layout, Roster, SessionParams
from sfsl.secagg.states import Machine, require_round, require_same
from sfsl.secagg.tree import Tree

log = logging.getLogger(__name__)

Invited = TypeVar("Invited")
Answer = messages.SealedShares | messages.MaskedVector | messages.Consistency | messages.UnmaskShares
# The state after a phase was closed, and what each position is sent.
Closed = tuple[at.ServerState, dict[int, Message]]


class Server(Machine[at.ServerState]):
    """Runs one session for the clients whose ``keys`` were taken at check-in. ``context`` is what the masks
    of the first sum are bound to besides parameters and roster."""

    moves = at.SERVER_MOVES

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
        messages.require_distinct(keys)
        for one in keys:
            messages.require_keys(one, len(params.sums), identities)
            for public in (one.channel, *one.masks):
                require_contributory(public)
        super().__init__(at.Sharing(0, {}, frozenset(range(params.clients)), {}), active=params.active)
        self.round_id = params.round_id
        self._params = params
        self._identities = identities
        self._context = context
        self._keys = sorted(keys, key=lambda one: one.client)
        self._place = {one.client: position for position, one in enumerate(self._keys)}
        self._members = tuple(messages.Member(position, one) for position, one in enumerate(self._keys))
        self._tree = None if params.neighbours is None else Tree(self._members)
        root = self._tree.root if self._tree else None
        self._peers = peers(params, root)
        # Who holds shares of each position's secrets: its peers and itself.
        self._holders = [sorted((position, *near)) for position, near in enumerate(self._peers)]
        smallest = min(map(len, self._holders))
        if params.threshold > smallest:
            raise ParameterError(
                f"threshold {params.threshold} on a graph where a client has only {smallest} share holders"
            )
        # What every key and signature of this session is bound to (spec 4.4).
        self.binding = messages.binding(Roster(params, self._members, root))

    def rosters(self) -> dict[str, Roster]:
        """Exchange 1, outbound. On the complete graph everyone gets the very same roster."""
        if self._tree is None:
            return dict.fromkeys(self._place, Roster(self._params, self._members))
        tree = self._tree
        return {
            one.client: Roster(
                self._params, tuple(self._members[k] for k in group), tree.root, tree.proof(group)
            )
            for one, group in zip(self._keys, self._holders, strict=True)
        }

    def invitations(self, invite: Callable[[Roster], Invited]) -> dict[str, Invited]:
        """What ``invite`` makes of each client's roster; called once for one that many are sent."""
        rosters = self.rosters()
        made = {key: invite(roster) for key, roster in {id(one): one for one in rosters.values()}.items()}
        return {name: made[id(roster)] for name, roster in rosters.items()}

    # -- inbound -------------------------------------------------------------------------------

    def receive(self, client: str, message: Message) -> None:
        """Accept one message, or raise and leave the state as it was. The same message again is silent."""
        if not isinstance(message, Answer):
            raise WrongPhase(f"{type(message).__name__} is not a client's message")
        position = self._require_sender(client, message.sender)
        require_round(message.round_id, self.round_id, f"what client {client!r} answers")
        number = 0 if isinstance(message, messages.SealedShares) else message.sum
        slot = (at.PHASE_OF[type(message)], number, position)
        fingerprint = messages.CODEC.fingerprint(message)
        if slot in self._state.accepted:
            require_same(fingerprint, self._state.accepted[slot], client)
            return
        self._require_due(client, slot)
        state = self._state
        assert isinstance(state, at.Waiting)  # noqa: S101 -- for nothing else a message is due
        state.inbox[position] = self._read(state, position, message)
        state.accepted[slot] = fingerprint

    def _require_sender(self, client: str, claimed: int) -> int:
        """``client`` is who the transport authenticated; the message must not claim to be another."""
        position = self._place.get(client)
        if position is None or claimed != position:
            raise UnexpectedSender(f"client {client!r} is not who this message says")
        return position

    def _require_due(self, client: str, slot: at.Slot) -> None:
        """Refuse what is early or late, or from someone who missed something so far."""
        state, (phase, number, position) = self._state, slot
        if (phase, number) != (state.phase, state.sum):
            raise WrongPhase(f"{phase.name} of sum {number} from {client!r}, now is {state.phase.name}")
        if isinstance(state, at.Waiting) and position not in state.awaited:
            raise UnexpectedSender(f"client {client!r} dropped out earlier in this round")

    def _read(
        self, state: at.Waiting, position: int, message: Answer
    ) -> at.Sealed | bytes | dict[int, int] | None:
        """Read what a message says, or raise if its content cannot be. A vector is in the total then."""
        if isinstance(message, messages.SealedShares):
            return self._sealed(position, message)
        assert isinstance(state, at.Summing)  # noqa: S101 -- as is every other phase that waits
        if isinstance(message, messages.MaskedVector):
            state.total.add(position, state.total.parse(position, message.words))
            return None
        if isinstance(message, messages.Consistency):
            assert isinstance(state, at.Listed)  # noqa: S101
            parts = messages.lists_parts(self.binding, state.sum, state.survivors, state.dropped)
            verify(self._public(position), message.signature, "survivors", *parts)
            return message.signature
        listed = self._listed(state, position)
        if len(message.shares) != len(listed):
            raise InvalidMessage(f"{len(message.shares)} shares where {len(listed)} were asked for")
        return dict(zip(listed, map(parse_share, message.shares), strict=True))

    def _sealed(self, position: int, message: messages.SealedShares) -> at.Sealed:
        group = self._peers[position]
        if len(message.boxes) != len(group):
            raise InvalidMessage(f"{len(message.boxes)} boxes for {len(group)} peers")
        layout = self._params.first_layout
        request = parse_request(layout, message.request)
        signed = None
        if layout.tables and self._identities is not None:
            signature = message.request_signature
            messages.verify_request(self._public(position), self.binding, 0, message.request, signature)
            signed = messages.SignedRequest(message.request, signature or b"")
        return at.Sealed(dict(zip(group, message.boxes, strict=True)), request, signed)

    def _public(self, position: int) -> bytes:
        return (self._identities or {})[self._keys[position].client]

    # -- phases --------------------------------------------------------------------------------

    def close_phase(self) -> dict[str, Message]:
        """End the phase and return what each remaining client is to be sent; or abort, for good."""
        state = self._state
        if not isinstance(state, at.Waiting):
            raise WrongPhase(f"nothing to close: the session is {state.phase.name.lower()}")
        here = tuple(sorted(state.inbox))
        log.debug("round %s, %s: %d answered", self.round_id.hex(), state.phase.name, len(here))
        close: dict[Enum, Callable[[Any, tuple[int, ...]], Closed]] = {
            at.ServerPhase.SHARES: self._deliver_shares,
            at.ServerPhase.MASKED: self._announce_survivors,
            at.ServerPhase.CONSISTENCY: self._ask_to_unmask,
            at.ServerPhase.UNMASK: self._open,
        }
        try:
            what = f"clients answered in phase {state.phase.name.lower()}"
            # Whoever has uploaded is in the sum, whether it answers after that or not.
            counted = state.phase in (at.ServerPhase.SHARES, at.ServerPhase.MASKED)
            least = self._params.fewest if counted else None
            self._require_enough(len(here), what, self._closed(state), least)
            after, outbound = close[state.phase](state, here)
        except Aborted:
            self._stop()
            raise
        self._enter(after)
        return {self._keys[position].client: message for position, message in outbound.items()}

    def _require_enough(self, count: int, what: str, therefore: str, least: int | None = None) -> None:
        least = least or self._params.threshold
        if count < least:
            raise TooFewClients(f"{count} {what}, {least} are needed; {therefore}")

    def _stop(self) -> None:
        self._enter(at.Stopped(self._state.sum, self._state.accepted))

    def _closed(self, state: at.ServerState) -> str:
        label = self._params.sums[state.sum].label
        return f"the sum {label!r} stays closed" if state.sum else "no sum was opened"

    def _deliver_shares(self, state: at.Sharing, here: tuple[int, ...]) -> Closed:
        said = state.inbox
        signed = {k: one for k in here if (one := said[k].signed) is not None}
        bitmaps = [one.bitmaps for one in signed.values()]
        requests = {k: said[k].request for k in here}
        total = self._begin(0, here, self._params.first_layout, requests, self._context, bitmaps)
        requesters = total.requesters()
        outbound: dict[int, Message] = {}
        for position in here:
            senders = tuple(k for k in self._peers[position] if k in said)
            boxes = tuple(said[k].boxes[position] for k in senders)
            told = b"" if signed else requesters[position]
            vouched = tuple(signed[k] for k in senders) if signed else ()
            outbound[position] = messages.InboundShares(self.round_id, senders, boxes, told, vouched)
        return at.Masking(0, state.accepted, frozenset(here), {}, total), outbound

    def start_sum(
        self,
        participants: Sequence[str],
        layout: Layout,
        requests: Mapping[str, Sequence[bytes]],
        context: bytes = b"",
    ) -> dict[str, bytes]:
        """Begin the session's next sum among clients that answered all of the last one. ``requests`` are
        bitmaps of rows per table. Returns what each is to be told of who else asked."""
        state = self._due(Layout, at.SumOpen)
        number = state.sum + 1
        if number == len(self._params.sums):
            raise WrongPhase(f"no sum to start: all {number} of this session are open")
        places = sorted(self._place.get(client, -1) for client in participants)
        if not set(places) <= state.answered or len(set(places)) != len(places):
            raise ParameterError("participants must have answered every exchange of the sum before")
        if self._params.sums[number].layout not in (None, layout):
            raise ParameterError("the sum starts with another layout than was announced")
        signed = {k: requests.get(self._keys[k].client, ()) for k in places}
        asked = {k: parse_request(layout, bitmaps) for k, bitmaps in signed.items()}
        if len(places) < self._params.fewest:
            self._stop()
            raise TooFewClients(f"{len(places)} clients are left, {self._params.fewest} are needed")
        total = self._begin(number, places, layout, asked, context, list(signed.values()))
        self._enter(at.Masking(number, state.accepted, frozenset(places), {}, total))
        return {self._keys[place].client: one for place, one in total.requesters().items()}

    def _begin(
        self,
        number: int,
        participants: Sequence[int],
        layout: Layout,
        requests: Mapping[int, tuple[Bits, ...]],
        context: bytes,
        signed: Sequence[Sequence[bytes]],
    ) -> RunningTotal:
        params = self._params.sums[number]
        listed = participants if self._params.neighbours is None else None
        all_requests = messages.requests_digest(signed) if self._params.active and layout.tables else b""
        bound = messages.sum_context(params.label, layout, listed, context, all_requests)
        total = RunningTotal(params, layout, participants, bound)
        if layout.tables:
            total.set_requests(requests)
        return total

    def _announce_survivors(self, state: at.Masking, here: tuple[int, ...]) -> Closed:
        alive = frozenset(here)
        dropped = tuple(k for k in state.total.participants if k not in alive)
        self._require_openable(state, alive)
        after = at.Confirming(state.sum, state.accepted, alive, {}, state.total, here, dropped)
        if not self._params.active:
            return self._ask_to_unmask(after, here)
        message = messages.Survivors(self.round_id, state.sum, here, dropped)
        return after, dict.fromkeys(here, message)

    def _require_openable(self, state: at.Masking, alive: frozenset[int]) -> None:
        """On a sparse graph a secret may have lost its holders already: then nobody is asked for a share."""
        if self._params.neighbours is None:
            return
        for position in state.total.participants:
            holders = len(alive.intersection(self._holders[position]))
            if holders:  # it, or someone it shared masks with, is left
                whose = f"share holders of client {self._keys[position].client!r} are left"
                self._require_enough(holders, whose, "no share was opened")

    def _ask_to_unmask(self, state: at.Confirming, here: tuple[int, ...]) -> Closed:
        lists, signatures = (state.survivors, state.dropped), tuple(sorted(state.inbox.items()))
        alive, gone, cohort = set(state.survivors), set(state.dropped), b""
        if self._params.neighbours is not None:
            bits = np.zeros(self._params.clients, np.bool_)
            bits[list(state.survivors)] = True
            cohort = np.packbits(bits).tobytes()
        outbound: dict[int, Message] = {}
        for position in here:
            near = self._holders[position]
            survivors, dropped = (tuple(k for k in near if k in one) for one in (alive, gone))
            outbound[position] = messages.UnmaskRequest(
                self.round_id, state.sum, survivors, dropped, signatures, cohort
            )
        return at.Unmasking(state.sum, state.accepted, frozenset(here), {}, state.total, *lists), outbound

    def _open(self, state: at.Unmasking, here: tuple[int, ...]) -> Closed:
        """Rebuild one secret per client, check it, and take the masks off the total."""
        current = state.total
        masker = Masker(current.ring, current.total, current.layout)
        alive = set(state.survivors)
        # All secrets first: if one is missing or wrong, nothing has been opened.
        seeds, keys = self._secrets(state)
        for position, seed in seeds.items():
            key = messages.self_mask_key(seed, self.binding, current.context, position)
            masker.subtract(key, current.rows[position])
        for position, pair in keys.items():
            for peer in alive.intersection(self._peers[position]):
                low, high = sorted((position, peer))
                published = self._keys[peer].masks[state.sum]
                key = pair_mask_key(pair, published, self.binding, current.context, low, high)
                # The survivor added the stream if it stands before the dropout; take that back.
                remove = masker.subtract if peer == low else masker.add
                remove(key, current.shared_rows(peer, position))
        opened = current.opened(state.survivors, [self._keys[k].client for k in state.survivors])
        log.debug("round %s: opened a sum of %d", self.round_id.hex(), len(alive))
        return at.SumOpen(state.sum, state.accepted, opened, frozenset(here)), {}

    def _secrets(self, state: at.Unmasking) -> tuple[dict[int, Secret], dict[int, KeyPair]]:
        """Each survivor's seed and each dropout's key pair, as published; or who dealt what does not fit."""
        rebuilding, alive = Rebuilding(self._params.threshold), set(state.survivors)
        seeds, keys, wrong = {}, {}, list[KeyMismatch]()
        for position in state.total.participants:
            if alive.isdisjoint(self._holders[position]):
                continue  # it shared masks with nobody who is left
            published, shares = self._keys[position], self._shares_of(state, position)
            try:
                if position in alive:
                    seed = partial(messages.require_seed, published=published.commitments[state.sum])
                    seeds[position] = rebuilding.secret(published.client, shares, seed)
                else:
                    pair = partial(messages.require_key_pair, published=published.masks[state.sum])
                    keys[position] = rebuilding.secret(published.client, shares, pair)
            except KeyMismatch as error:
                wrong.append(error)
        if wrong:
            raise KeyMismatch(str(wrong[0]), tuple(client for error in wrong for client in error.clients))
        if rebuilding.doubted:
            corrected = len(rebuilding.doubted)
            log.warning("round %s: corrected shares of %d clients", self.round_id.hex(), corrected)
        return seeds, keys

    def _shares_of(self, state: at.Unmasking, position: int) -> dict[int, int]:
        """The shares of one client's secret that arrived, by holder."""
        said = state.inbox
        shares = {k: said[k][position] for k in self._holders[position] if position in said.get(k, ())}
        whose = f"shares of client {self._keys[position].client!r} arrived"
        self._require_enough(len(shares), whose, self._closed(state))
        return shares

    def position(self, client: str) -> int:
        return self._place[client]

    @property
    def opened(self) -> Opened:
        if not isinstance(self._state, at.SumOpen):
            raise WrongPhase(f"no sum is open in phase {self.phase.name.lower()}")
        return self._state.opened

    @property
    def answered(self) -> tuple[str, ...]:
        """The clients that answered every exchange of the opened sum and so may take part in what follows."""
        answered = self._state.answered if isinstance(self._state, at.SumOpen) else ()
        return tuple(self._keys[place].client for place in sorted(answered))

    def _listed(self, state: at.Summing, position: int) -> tuple[int, ...]:
        """The positions whose masks this client is asked to open: all that it masked with, and itself."""
        return tuple(k for k in self._holders[position] if k in state.total.rows)

    def __repr__(self) -> str:
        return f"Server({self._params.clients} clients, {self.phase.name})"
