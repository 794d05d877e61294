"""A secure sum in one call, for people who just want that (spec 4).

All clients and the server run in this process, but on the real state machines and through encoded
messages: what comes out is what a network would give, and the cost is the protocol's own.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfsl.arrays import Positions, ascends, whole_numbers
from sfsl.crypto.identity import Identity
from sfsl.crypto.ring import Words, ring_named
from sfsl.crypto.secret import Randomness, SystemRandomness
from sfsl.errors import InputError
from sfsl.secagg.client import Client
from sfsl.secagg.graph import DEFAULT_DROPOUT, default_min_contributors, plan_graph, random_cycles
from sfsl.secagg.masking import Opened
from sfsl.secagg.messages import (
    CODEC,
    MAX_ID,
    InboundShares,
    Keys,
    MaskedVector,
    Roster,
    Survivors,
    UnmaskRequest,
    size_limit,
)
from sfsl.secagg.meter import Cost, Meter
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

# What an automatic sparse graph tolerates.
SPARSE_DROPOUT = 0.2
SPARSE_CORRUPTION = 0.1
SPARSE_FAILURE = 2.0**-40


@dataclass(frozen=True)
class Aggregate:
    """``total`` is the sum of the vectors of ``survivors``: everyone who uploaded. ``cost`` has each client's
    CPU seconds and bytes, and ``params`` what they agreed on.

    >>> import sfsl
    >>> result = sfsl.aggregate({"ann": [1, 2], "bob": [10, 20]})
    >>> result.total.tolist(), result.params.threshold, result.cost.client_bytes_up["ann"] < 1000
    ([11, 22], 2, True)
    """

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
    more than may collude with the server; on a sparse graph it counts a client's neighbours and itself.
    ``neighbours`` asks for a sparse graph of that degree and is the caller's responsibility; above 512
    clients degree and threshold are planned together (``plan_graph``). The ``dropped_…`` clients vanish
    at that step, for trying out.

    >>> import sfsl
    >>> vectors = {"ann": [1, 2], "bob": [10, 20], "cyd": [100, 200]}
    >>> result = sfsl.aggregate(vectors, threshold=2, dropped_before_upload={"bob"})
    >>> result.total.tolist(), sorted(result.survivors)
    ([101, 202], ['ann', 'cyd'])
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
    from the requests and ``tolerated_dropout``) keeps rows with too few requesters from being opened: in
    a small cohort that may be every row.
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
) -> tuple[dict[str, Positions], dict[str, Words], int]:
    """Requests in ascending order, with their values in the same order."""
    if requests.keys() != values.keys():
        raise InputError(f"requests and values name different clients: {requests.keys() ^ values.keys()}")
    asked: dict[str, Positions] = {}
    blocks: dict[str, Words] = {}
    widths = set()
    for name, request in requests.items():
        some = whole_numbers(request, f"client {name!r}: row numbers", rows, flat=True)
        order = np.argsort(some, kind="stable")
        some = some[order].astype(np.intp, copy=False)
        if not ascends(some):
            raise InputError(f"client {name!r}: rows must be distinct")
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
        self._names = checked_names(names)
        round_id = randomness.bytes(16)
        degree, least = choose_graph(len(self._names), neighbours, threshold, round_id)
        one = SumParams(label="sum", ring=ring, min_contributors=min_contributors, layout=layout)  # type: ignore[arg-type]
        self.params = SessionParams(
            round_id=round_id,
            clients=len(self._names),
            threshold=least,
            neighbours=degree,
            active=active,
            sums=(one,),
        )
        limit = size_limit(self.params, layout, ring_named(ring).word_bytes)
        self._meter = Meter(self._names, CODEC, limit)
        self.cost = self._meter.cost
        policy = Policy(
            min_clients=2, min_threshold=2, min_contributors=min_contributors, max_words=layout.words
        )
        identities = {name: Identity.generate(randomness) for name in self._names} if active else {}
        self._pinned = {name: identity.public for name, identity in identities.items()} if active else None
        self._clients = {
            name: self._meter.at_client(
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
        no_shares, no_upload, no_unmask = (checked_dropouts(names, self._names) for names in dropped)

        clients = self._clients
        keys = [
            self._meter.up(name, Keys, self._meter.at_client(name, client.create_keys))
            for name, client in clients.items()
        ]
        server = self._meter.at_server(Server, self.params, keys, self._pinned)

        for name, roster in self._meter.down(self._meter.at_server(server.rosters), Roster, no_shares):
            self._meter.answer(server, name, clients[name].handle_roster, roster, rows.get(name, ()))

        gone = no_shares | no_upload
        for name, inbound in self._meter.down(self._meter.at_server(server.close_phase), InboundShares, gone):
            values = (dense.get(name, ()), tables.get(name, ()))
            self._meter.answer(server, name, _mask, clients[name], inbound, *values)

        gone |= no_unmask
        outbound = self._meter.at_server(server.close_phase)
        if self.params.active:
            for name, lists in self._meter.down(outbound, Survivors, gone):
                self._meter.answer(server, name, clients[name].handle_survivors, lists)
            outbound = self._meter.at_server(server.close_phase)
        for name, request in self._meter.down(outbound, UnmaskRequest, gone):
            self._meter.answer(server, name, clients[name].handle_unmask, request)
        self._meter.at_server(server.close_phase)
        return server.opened


def checked_names(names: Iterable[str]) -> list[str]:
    given = list(names)
    if any(not isinstance(name, str) or not 1 <= len(name) <= MAX_ID for name in given):
        raise InputError(f"client ids are strings of 1 to {MAX_ID} characters")
    if len(given) < 2:
        raise InputError(f"at least two clients are needed, not {len(given)}")
    return sorted(given)


def checked_dropouts(dropped: Collection[str], names: Collection[str]) -> set[str]:
    strangers = set(dropped) - set(names)
    if strangers:
        raise InputError(f"dropped clients that do not take part: {sorted(strangers)}")
    return set(dropped)


def _mask(
    client: Client, inbound: InboundShares, dense: ArrayLike, tables: Sequence[ArrayLike]
) -> MaskedVector:
    return client.create_masked(client.handle_inbound(inbound), dense, tables)


def choose_graph(
    clients: int, neighbours: int | None, threshold: int | None, seed: bytes
) -> tuple[int | None, int]:
    """The degree (None: complete) and the threshold to use."""
    if neighbours is None and clients > MAX_COMPLETE:
        plan = plan_graph(
            clients, dropout=SPARSE_DROPOUT, corruption=SPARSE_CORRUPTION, failure=SPARSE_FAILURE
        )
        return plan.neighbours, plan.threshold if threshold is None else threshold
    if neighbours is None or neighbours >= clients - 1:
        return None, default_threshold(clients) if threshold is None else threshold
    smallest = min(len(group) for group in random_cycles(clients, neighbours, seed)) + 1
    return neighbours, default_threshold(smallest) if threshold is None else threshold
