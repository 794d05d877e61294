"""A secure sum in one call, for people who just want that (spec 4).

All clients and the server run in this process, but on the real state machines and through encoded
messages: what comes out is what a network would give, and the cost is the protocol's own.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfsl.codec import Message
from sfsl.crypto.identity import Identity
from sfsl.crypto.randomness import Randomness, SystemRandomness
from sfsl.crypto.ring import Words, ring_named
from sfsl.errors import InputError, Refused
from sfsl.secagg.client import Client
from sfsl.secagg.contributors import DEFAULT_DROPOUT, default_min_contributors
from sfsl.secagg.graph import plan_graph, random_cycles
from sfsl.secagg.messages import (
    CODEC,
    InboundShares,
    Keys,
    MaskedVector,
    Roster,
    Survivors,
    UnmaskRequest,
    size_limit,
)
from sfsl.secagg.params import (
    MAX_COMPLETE,
    Layout,
    Policy,
    SessionParams,
    SumParams,
    TableShape,
    default_threshold,
)
from sfsl.secagg.server import Server
from sfsl.secagg.total import Opened

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")
M = TypeVar("M", bound=Message)

# What an automatic sparse graph tolerates.
SPARSE_DROPOUT = 0.2
SPARSE_CORRUPTION = 0.1
SPARSE_FAILURE = 2.0**-40


@dataclass
class Cost:
    """What the protocol took: CPU seconds and encoded bytes, per client, and the server's CPU seconds."""

    client_seconds: dict[str, float] = field(default_factory=dict)
    client_bytes_up: dict[str, int] = field(default_factory=dict)
    client_bytes_down: dict[str, int] = field(default_factory=dict)
    server_seconds: float = 0.0


@dataclass(frozen=True)
class Aggregate:
    """``total`` is the sum of the vectors of ``survivors``: everyone who uploaded."""

    total: Words
    survivors: frozenset[str]
    cost: Cost
    params: SessionParams


@dataclass(frozen=True)
class AggregateRows:
    """``totals`` has shape (rows, width); ``contributors`` says how many clients are in each row's total.

    Rows asked for by fewer than ``min_contributors`` clients were left out: zero, zero contributors.
    """

    totals: Words
    contributors: NDArray[np.int64]
    survivors: frozenset[str]
    cost: Cost
    params: SessionParams
    min_contributors: int


def aggregate(
    vectors: Mapping[str, ArrayLike],
    *,
    threshold: int | None = None,
    neighbours: int | None = None,
    active: bool = False,
    dropped_before_shares: Collection[str] = (),
    dropped_before_upload: Collection[str] = (),
    dropped_before_unmask: Collection[str] = (),
    ring: str = "z32",
    randomness: Randomness | None = None,
) -> Aggregate:
    """Sum vectors of unsigned whole numbers below the ring's modulus, without anyone seeing one of them.

    ``threshold`` (default: more than two thirds) is how many clients must last to the end, and one
    more than may collude with the server. ``neighbours`` asks for a sparse graph of that degree; above
    512 clients one is planned by itself. The ``dropped_…`` clients vanish at that step, for trying out.
    """
    checked = {name: ring_named(ring).vector(vector, f"client {name!r}") for name, vector in vectors.items()}
    shapes = {vector.shape for vector in checked.values()}
    if len(shapes) > 1 or any(len(shape) != 1 for shape in shapes):
        raise InputError(f"all vectors must be flat and of one length, not of shapes {sorted(shapes)}")
    length = shapes.pop()[0] if shapes else 0
    session = _Session(
        names=checked,
        layout=Layout(dense=length),
        ring=ring,
        min_contributors=1,
        threshold=threshold,
        neighbours=neighbours,
        active=active,
        randomness=randomness or SystemRandomness(),
    )
    opened = session.run(
        rows={},
        dense=checked,
        tables={},
        dropped=(dropped_before_shares, dropped_before_upload, dropped_before_unmask),
    )
    return Aggregate(opened.dense, frozenset(opened.survivors), session.cost, session.params)


def aggregate_rows(
    requests: Mapping[str, ArrayLike],
    values: Mapping[str, ArrayLike],
    rows: int,
    *,
    min_contributors: int | None = None,
    tolerated_dropout: float = DEFAULT_DROPOUT,
    threshold: int | None = None,
    active: bool = False,
    dropped_before_shares: Collection[str] = (),
    dropped_before_upload: Collection[str] = (),
    dropped_before_unmask: Collection[str] = (),
    ring: str = "z32",
    randomness: Randomness | None = None,
) -> AggregateRows:
    """Sum rows of a table where each client has values for the rows it asks for, and sends no others.

    The server sees who asks for which row, and each row's sum. ``min_contributors`` (default: computed
    from the requests and ``tolerated_dropout``) keeps rows with too few requesters from being opened.
    """
    asked, ordered, width = _checked_rows(requests, values, rows, ring)
    counts = np.bincount(np.concatenate([np.zeros(0, np.intp), *asked.values()]), minlength=rows)
    if min_contributors is None:
        min_contributors = default_min_contributors(counts, dropout=tolerated_dropout)
    session = _Session(
        names=asked,
        layout=Layout(dense=0, tables=(TableShape(rows=rows, width=width),)),
        ring=ring,
        min_contributors=min_contributors,
        threshold=threshold,
        neighbours=None,
        active=active,
        randomness=randomness or SystemRandomness(),
    )
    opened = session.run(
        rows={name: (some,) for name, some in asked.items()},
        dense={},
        tables={name: (block,) for name, block in ordered.items()},
        dropped=(dropped_before_shares, dropped_before_upload, dropped_before_unmask),
    )
    return AggregateRows(
        opened.tables[0],
        opened.contributors[0],
        frozenset(opened.survivors),
        session.cost,
        session.params,
        min_contributors,
    )


def _checked_rows(
    requests: Mapping[str, ArrayLike], values: Mapping[str, ArrayLike], rows: int, ring: str
) -> tuple[dict[str, NDArray[np.intp]], dict[str, Words], int]:
    """Requests in ascending order, with their values in the same order."""
    if requests.keys() != values.keys():
        raise InputError(f"requests and values name different clients: {requests.keys() ^ values.keys()}")
    asked: dict[str, NDArray[np.intp]] = {}
    blocks: dict[str, Words] = {}
    widths = set()
    for name, request in requests.items():
        some = np.asarray(request)
        if some.ndim != 1 or (some.size and some.dtype.kind not in "ui"):
            raise InputError(f"client {name!r}: a request is a list of row numbers")
        order = np.argsort(some, kind="stable")
        some = some[order].astype(np.intp)
        if some.size and (some[0] < 0 or some[-1] >= rows or np.any(some[1:] == some[:-1])):
            raise InputError(f"client {name!r}: rows must be distinct and in 0..{rows - 1}")
        block = ring_named(ring).vector(values[name], f"client {name!r}")
        if block.ndim != 2 or len(block) != len(some):
            raise InputError(f"client {name!r}: {len(some)} rows asked for, values of shape {block.shape}")
        asked[name], blocks[name] = some, block[order]
        widths.add(block.shape[1])
    if len(widths) > 1:
        raise InputError(f"values of different widths: {sorted(widths)}")
    return asked, blocks, widths.pop() if widths else 1


class _Session:
    """One session from check-in to the opened sum, with its costs."""

    def __init__(
        self,
        *,
        names: Iterable[str],
        layout: Layout,
        ring: str,
        min_contributors: int,
        threshold: int | None,
        neighbours: int | None,
        active: bool,
        randomness: Randomness,
    ) -> None:
        given = list(names)
        if any(not isinstance(name, str) or not 1 <= len(name) <= 64 for name in given):
            raise InputError("client ids are strings of 1 to 64 characters")
        self._names = sorted(given)
        if len(self._names) < 2:
            raise InputError(f"a secure sum needs at least two clients, not {len(self._names)}")
        round_id = randomness.bytes(16)
        degree, least = _graph(len(self._names), neighbours, threshold, round_id)
        one = SumParams(label="sum", ring=ring, min_contributors=min_contributors, layout=layout)  # type: ignore[arg-type]
        self.params = SessionParams(
            round_id=round_id,
            clients=len(self._names),
            threshold=least,
            neighbours=degree,
            active=active,
            sums=(one,),
        )
        self.cost = Cost(
            dict.fromkeys(self._names, 0.0), dict.fromkeys(self._names, 0), dict.fromkeys(self._names, 0)
        )
        self._limit = size_limit(self.params, layout, ring_named(ring).word_bytes)
        self._randomness = randomness
        policy = Policy(
            min_clients=2, min_threshold=2, min_contributors=min_contributors, max_words=layout.words
        )
        identities = {name: Identity.generate(randomness) for name in self._names} if active else {}
        self._pinned = {name: identity.public for name, identity in identities.items()} if active else None
        self._clients = {
            name: self._at_client(
                name,
                Client,
                name,
                policy,
                randomness,
                identity=identities.get(name),
                identities=self._pinned,
            )
            for name in self._names
        }

    def run(
        self,
        *,
        rows: Mapping[str, Sequence[ArrayLike]],
        dense: Mapping[str, ArrayLike],
        tables: Mapping[str, Sequence[ArrayLike]],
        dropped: tuple[Collection[str], Collection[str], Collection[str]],
    ) -> Opened:
        strangers = set().union(*dropped) - set(self._names)
        if strangers:
            raise InputError(f"dropped clients that do not take part: {sorted(strangers)}")
        no_shares, no_upload, no_unmask = (set(names) for names in dropped)

        clients = self._clients
        keys = [
            self._up(name, Keys, self._at_client(name, client.create_keys))
            for name, client in clients.items()
        ]
        server = self._at_server(Server, self.params, keys, self._pinned)

        for name, roster in self._down(self._at_server(server.rosters), Roster, no_shares):
            self._answer(server, name, clients[name].handle_roster, roster, rows.get(name, ()))

        gone = no_shares | no_upload
        for name, inbound in self._down(self._at_server(server.close_phase), InboundShares, gone):
            values = (dense.get(name, ()), tables.get(name, ()))
            self._answer(server, name, _mask, clients[name], inbound, *values)

        gone |= no_unmask
        outbound = self._at_server(server.close_phase)
        if self.params.active:
            for name, lists in self._down(outbound, Survivors, gone):
                self._answer(server, name, clients[name].handle_survivors, lists)
            outbound = self._at_server(server.close_phase)
        for name, request in self._down(outbound, UnmaskRequest, gone):
            self._answer(server, name, clients[name].handle_unmask, request)
        self._at_server(server.close_phase)
        return server.opened

    def _at_client(self, name: str, work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        start = time.thread_time()
        try:
            return work(*args, **options)
        finally:
            self.cost.client_seconds[name] += time.thread_time() - start

    def _at_server(self, work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        start = time.thread_time()
        try:
            return work(*args, **options)
        finally:
            self.cost.server_seconds += time.thread_time() - start

    def _up(self, name: str, kind: type[M], message: Message) -> M:
        data = self._at_client(name, CODEC.encode, message)
        self.cost.client_bytes_up[name] += len(data)
        received = self._at_server(CODEC.decode, data, limit=self._limit)
        assert isinstance(received, kind)  # noqa: S101 - our own client made it
        return received

    def _answer(
        self, server: Server, name: str, work: Callable[P, Message], *args: P.args, **options: P.kwargs
    ) -> None:
        """Let a client answer. One that refuses (too few of its neighbours are left) is a dropout."""
        try:
            message = self._at_client(name, work, *args, **options)
        except Refused as reason:
            log.debug("client %s declined: %s", name, reason)
            return
        received = self._up(name, Message, message)
        self._at_server(server.receive, name, received)

    def _down(
        self, outbound: Mapping[str, Message], kind: type[M], gone: Collection[str]
    ) -> Iterable[tuple[str, M]]:
        """Encode each message once, and deliver it to those who are still there."""
        encoded: dict[int, bytes] = {}
        for name, message in outbound.items():
            if name in gone:
                continue
            if id(message) not in encoded:
                encoded[id(message)] = self._at_server(CODEC.encode, message)
            data = encoded[id(message)]
            self.cost.client_bytes_down[name] += len(data)
            received = self._at_client(name, CODEC.decode, data, limit=self._limit)
            assert isinstance(received, kind)  # noqa: S101 - our own server made it
            yield name, received


def _mask(
    client: Client, inbound: InboundShares, dense: ArrayLike, tables: Sequence[ArrayLike]
) -> MaskedVector:
    return client.create_masked(client.handle_inbound(inbound), dense, tables)


def _graph(
    clients: int, neighbours: int | None, threshold: int | None, seed: bytes
) -> tuple[int | None, int]:
    """The degree (None: complete) and the threshold to use."""
    if neighbours is None and clients > MAX_COMPLETE:
        plan = plan_graph(
            clients, dropout=SPARSE_DROPOUT, corruption=SPARSE_CORRUPTION, failure=SPARSE_FAILURE
        )
        return plan.neighbours, threshold or plan.threshold
    if neighbours is None or neighbours >= clients - 1:
        return None, default_threshold(clients) if threshold is None else threshold
    smallest = min(len(group) for group in random_cycles(clients, neighbours, seed)) + 1
    return neighbours, default_threshold(smallest) if threshold is None else threshold
