"""A whole session in one object, one exchange per method, so that tests can narrate and meddle."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec
import numpy as np

from sfsl.codec import Message
from sfsl.crypto.ring import Words, ring_named
from sfsl.crypto.secret import Identity, Interpolation, KeyPair, Secret, pair_mask_key, parse_share
from sfsl.secagg import Client, Layout, Policy, Server, SessionParams, Start, SumParams
from sfsl.secagg.facade import Session
from sfsl.secagg.graph import Peers
from sfsl.secagg.masking import Masker
from sfsl.secagg.messages import CODEC, Keys, binding, point, self_mask_key, sum_context
from sfsl.testing import SeededRandomness

LIMIT = 1 << 24


def over_the_wire(message: Any) -> Any:
    return CODEC.decode(CODEC.encode(message), limit=LIMIT)


class World:
    def __init__(
        self,
        n: int = 5,
        *,
        threshold: int = 3,
        sums: Sequence[SumParams] | None = None,
        active: bool = False,
        neighbours: int | None = None,
        least_survivors: int | None = None,
        policy: Policy | None = None,
        seed: str = "world",
        length: int = 8,
        round_id: bytes = b"round-0123456789",
    ) -> None:
        self.names = [f"c{i}" for i in range(n)]
        one = SumParams(label="sum", ring="z32", min_contributors=1, layout=Layout(dense=length))
        self.sums = tuple(sums or (one,))
        self.params = SessionParams(
            round_id=round_id,
            clients=n,
            threshold=threshold,
            neighbours=neighbours,
            active=active,
            sums=self.sums,
            least_survivors=least_survivors,
        )
        self.policy = policy or Policy(min_clients=2, min_threshold=2, min_contributors=1, max_words=10**6)
        self.randomness = SeededRandomness(seed)
        self.identities = {name: Identity.generate(self.randomness) for name in self.names}
        self.pinned = {name: one.public for name, one in self.identities.items()} if active else None
        self.clients = {name: self.client(name) for name in self.names}
        rng = np.random.default_rng(7)
        self.vectors = {name: rng.integers(0, 2**31 - 1, length, dtype=np.uint32) for name in self.names}
        self.keys: dict[str, Keys] = {}
        self.uploads: dict[str, Any] = {}

    def client(self, name: str) -> Client:
        identity = self.identities[name] if self.params.active else None
        return Client(
            name,
            self.policy,
            self.randomness,
            sums=len(self.sums),
            identity=identity,
            identities=self.pinned,
        )

    # -- the exchanges, honest by default ------------------------------------------------------

    def check_in(self) -> "World":
        self.keys = {name: over_the_wire(client.create_keys()) for name, client in self.clients.items()}
        self.server = Server(self.params, list(self.keys.values()), self.pinned)
        self.rosters = {name: over_the_wire(one) for name, one in self.server.rosters().items()}
        return self

    def share(self, drop: Collection[str] = (), rows: dict[str, Any] | None = None) -> "World":
        self.check_in()
        for name, roster in self.rosters.items():
            if name not in drop:
                answer = self.clients[name].handle_roster(roster, (rows or {}).get(name, ()))
                self.server.receive(name, over_the_wire(answer))
        self.inbound: dict[str, Any] = self.close()
        return self

    def starts(self, drop: Collection[str] = ()) -> dict[str, Start]:
        return {
            name: self.clients[name].handle_inbound(inbound)
            for name, inbound in self.inbound.items()
            if name not in drop
        }

    def mask(self, drop: Collection[str] = ()) -> "World":
        for name, start in self.starts(drop).items():
            self.uploads[name] = over_the_wire(self.clients[name].create_masked(start, self.vectors[name]))
            self.server.receive(name, self.uploads[name])
        return self

    def close(self) -> dict[str, Message]:
        return {name: over_the_wire(message) for name, message in self.server.close_phase().items()}

    def to_unmask(self, drop: Collection[str] = ()) -> "World":
        """Up to the unmask requests, with the consistency check where there is one."""
        self.share().mask(drop)
        self.requests: dict[str, Any] = self.close()
        if self.params.active:
            for name, lists in self.requests.items():
                self.server.receive(name, self.clients[name].handle_survivors(lists))
            self.requests = self.close()
        return self

    def unmask(self, drop: Collection[str] = ()) -> Words:
        for name, request in self.requests.items():
            if name not in drop:
                self.server.receive(name, over_the_wire(self.clients[name].handle_unmask(request)))
        self.server.close_phase()
        return self.server.opened.dense

    def plain_sum(self, names: Collection[str] | None = None) -> Words:
        total = ring_named(self.sums[0].ring).zeros(len(next(iter(self.vectors.values()))))
        for name in names if names is not None else self.names:
            ring_named(self.sums[0].ring).add(total, self.vectors[name])
        return total

    # -- what a curious server can compute -----------------------------------------------------

    def reconstruct(self, shares: dict[str, bytes]) -> Secret:
        """A secret from shares by holder."""
        points = [point(self.names.index(name)) for name in shares]
        return Interpolation(points).secret([parse_share(share) for share in shares.values()])

    def strip(
        self,
        victim: str,
        seed: Secret,
        mask_key: Secret,
        *,
        sum_index: int = 0,
        upload: bytes | None = None,
        participants: Sequence[int] | None = None,
    ) -> Words:
        """The victim's vector, given its self-mask seed and its mask key: what must never happen."""
        ring = ring_named(self.sums[sum_index].ring)
        layout = self.sums[sum_index].layout
        assert layout is not None
        words = upload if upload is not None else self.uploads[victim].words
        vector = np.frombuffer(words, ring.dtype).copy()
        here = self.names.index(victim)
        everyone = range(len(self.names)) if participants is None else participants
        context = sum_context(self.sums[sum_index].label, layout, list(everyone), b"")
        bound = self.binding()
        masker = Masker(ring, vector, layout)
        masker.subtract(self_mask_key(seed, bound, context, here))
        pair = KeyPair(mask_key)
        for peer in everyone:
            if peer != here:
                public = self.keys[self.names[peer]].masks[sum_index]
                key = pair_mask_key(pair, public, bound, context, min(here, peer), max(here, peer))
                (masker.subtract if here < peer else masker.add)(key)
        return vector

    def binding(self) -> bytes:
        return binding(self.rosters[self.names[0]])


def graph_of(names: Collection[str], degree: int, seed: int) -> Peers:
    """The graph of the session that ``aggregate`` runs with this seed."""
    one = SumParams(label="sum", ring="z32", min_contributors=1, layout=Layout(dense=1))
    return Session(names, one, SeededRandomness(seed), 2, degree, active=False).check_in()._peers


def tampered(machine: Any, **fields: Any) -> None:
    """Give a machine another state than the protocol would, to play a party that does not follow it."""
    machine._state = msgspec.structs.replace(machine.state, **fields)


def frozen(thing: Any, seen: set[int] | None = None) -> Any:
    """A comparable picture of an object's whole state, to show that a refusal changed nothing."""
    seen = seen or set()
    if isinstance(thing, Secret):
        return ("secret", thing.reveal())
    if isinstance(thing, KeyPair):
        return ("pair", thing.private.reveal())
    if isinstance(thing, np.ndarray):
        return (thing.shape, thing.tobytes())
    if isinstance(thing, dict):
        return {key: frozen(value, seen) for key, value in thing.items() if key != "_randomness"}
    if isinstance(thing, list | tuple):
        return [frozen(value, seen) for value in thing]
    if isinstance(thing, set | frozenset):
        return sorted(map(repr, thing))
    if isinstance(thing, Callable) or not hasattr(thing, "__dict__"):  # type: ignore[arg-type]
        fields = getattr(thing, "__struct_fields__", None)
        return [frozen(getattr(thing, name), seen) for name in fields] if fields else repr(thing)
    if id(thing) in seen:
        return "seen"
    return frozen(vars(thing), seen | {id(thing)})
