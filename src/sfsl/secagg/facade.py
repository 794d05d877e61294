"""A secure sum in one call, for people who just want that (spec 4).

All clients and the server run in this process, but on the real state machines and through encoded
messages: what comes out is what a network would give, and the cost is the protocol's own.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ParamSpec, Protocol, TypedDict, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfsl.arrays import Positions, ascends, whole_numbers
from sfsl.codec import Codec, Message
from sfsl.crypto.ring import Ring, Words, ring_named
from sfsl.crypto.secret import Identity, Randomness, Secret, SystemRandomness
from sfsl.errors import InputError, Refused
from sfsl.secagg import messages
from sfsl.secagg.client import Client
from sfsl.secagg.graph import DEFAULT_DROPOUT, default_graph, default_min_contributors, random_cycles, seed_of
from sfsl.secagg.masking import Masker, Opened
from sfsl.secagg.messages import MAX_COMPLETE, Layout, Policy, SessionParams, SumParams, TableShape
from sfsl.secagg.server import Server
from sfsl.secagg.tree import Tree

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

_TRIES = 3
_WORDS = 1 << 18
# How a client answers each kind of message.
Steps = Mapping[type[Message], Callable[..., Message]]


@dataclass
class Cost:
    """What the protocol took: CPU seconds and encoded bytes, per client, and the server's CPU seconds."""

    client_seconds: dict[str, float] = field(default_factory=dict)
    client_bytes_up: dict[str, int] = field(default_factory=dict)
    client_bytes_down: dict[str, int] = field(default_factory=dict)
    server_seconds: float = 0.0


class Receiver(Protocol):
    """The server's side of a protocol that is metered."""

    def receive(self, client: str, message: Message, /) -> None: ...
    def close_phase(self) -> Mapping[str, Message]: ...


class Meter:
    """Carries messages between clients and a server, and keeps the bill."""

    def __init__(self, names: Iterable[str], codec: Codec, limit: int) -> None:
        self._names, self._codec, self.limit = list(names), codec, limit
        self.cost = self._blank()

    def _blank(self) -> Cost:
        names = self._names
        return Cost(dict.fromkeys(names, 0.0), dict.fromkeys(names, 0), dict.fromkeys(names, 0))

    def take(self) -> Cost:
        """The bill so far; a new one begins."""
        cost, self.cost = self.cost, self._blank()
        return cost

    def at_client(self, name: str, work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        start = time.thread_time()
        try:
            return work(*args, **options)
        finally:
            self.cost.client_seconds[name] += time.thread_time() - start

    def at_server(self, work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        start = time.thread_time()
        try:
            return work(*args, **options)
        finally:
            self.cost.server_seconds += time.thread_time() - start

    def up(self, name: str, message: Message) -> Any:
        """Bring the server what a client of ours made."""
        data = self.at_client(name, self._codec.encode, message)
        self.cost.client_bytes_up[name] += len(data)
        return self.at_server(self._codec.decode, data, limit=self.limit)

    def down(self, outbound: Mapping[str, Message], gone: Collection[str] = ()) -> Iterable[tuple[str, Any]]:
        """Encode a message that goes to many once, and deliver it to those who are still there."""
        last, data = None, b""
        for name, message in outbound.items():
            if name in gone:
                continue
            if message is not last:
                last, data = message, self.at_server(self._codec.encode, message)
            self.cost.client_bytes_down[name] += len(data)
            yield name, self.at_client(name, self._codec.decode, data, limit=self.limit)

    def answer(
        self, server: Receiver, name: str, work: Callable[P, Message], *args: P.args, **options: P.kwargs
    ) -> None:
        """Let a client answer. One that refuses (too few of its neighbours are left) is a dropout."""
        try:
            message = self.at_client(name, work, *args, **options)
        except Refused as reason:
            log.debug("client %s declined: %s", name, reason)
            return
        self.at_server(server.receive, name, self.up(name, message))


def mask_seconds(ring: Ring) -> float:
    """CPU time for one word of a vector that is masked as a whole, measured here and now."""
    masker = Masker(ring, ring.zeros(_WORDS), Layout(dense=_WORDS))
    key = Secret(bytes(32))
    return cpu_seconds(lambda: masker.add(key), 1) / _WORDS


def cpu_seconds(work: Callable[[], object], times: int) -> float:
    """CPU time of this thread for one call: the best of a few tries, since others use this machine too."""
    best = float("inf")
    for _ in range(_TRIES):
        start = time.thread_time()
        for _ in range(times):
            work()
        best = min(best, (time.thread_time() - start) / times)
    return best


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
    Rows asked for by fewer than ``min_contributors`` clients were left out: zero, zero contributors."""

    totals: Words
    contributors: NDArray[np.int64]
    survivors: frozenset[str]
    cost: Cost
    params: SessionParams
    min_contributors: int


class SumOptions(TypedDict, total=False):
    """What else ``aggregate`` takes, for whoever hands it on."""

    threshold: int | None
    neighbours: int | None
    active: bool
    dropped_before_shares: Collection[str]
    dropped_before_upload: Collection[str]
    dropped_before_unmask: Collection[str]


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
    wrap: bool = False,
    randomness: Randomness | None = None,
) -> Aggregate:
    """Sum vectors of unsigned whole numbers below the ring's modulus, without anyone seeing one of them.

    ``threshold`` (default: more than two thirds) is how many clients must last to the end, and one
    more than may collude with the server; on a sparse graph it counts a client's neighbours and itself.
    ``neighbours`` asks for a sparse graph of that degree and is the caller's responsibility; above 512
    clients degree and threshold are planned together (``default_graph``). A sum that would not fit the ring
    is refused, unless ``wrap`` says that sums are meant modulo its size. The ``dropped_…`` clients vanish at
    that step, for trying out.

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
    if not wrap:
        _require_room(ring, ((slice(None), vector) for vector in checked.values()), (length,))
    session = Session(checked, _sum(ring, 1, Layout(dense=length)), randomness, threshold, neighbours, active)
    dropped = (dropped_before_shares, dropped_before_upload, dropped_before_unmask)
    opened = session.sum({name: ((), vector, ()) for name, vector in checked.items()}, dropped)
    return Aggregate(opened.dense, frozenset(opened.survivors), session.meter.cost, session.params)


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
    wrap: bool = False,
    randomness: Randomness | None = None,
) -> AggregateRows:
    """Sum rows of a table where each client has values for the rows it asks for, and sends no others.

    The server sees who asks for which row, and each row's sum. ``min_contributors`` (default: computed
    from the requests and ``tolerated_dropout``) keeps rows with too few requesters from being opened: in
    a small cohort that may be every row. Sums that would not fit the ring are refused, unless ``wrap``.
    """
    asked, ordered, width = _checked_rows(requests, values, rows, ring)
    if not wrap:
        _require_room(ring, ((some, ordered[name]) for name, some in asked.items()), (rows, width))
    counts = np.bincount(np.concatenate([np.zeros(0, np.intp), *asked.values()]), minlength=rows)
    if min_contributors is None:
        min_contributors = default_min_contributors(counts, dropout=tolerated_dropout)
    layout = Layout(dense=0, tables=(TableShape(rows=rows, width=width),))
    session = Session(asked, _sum(ring, min_contributors, layout), randomness, threshold, None, active)
    dropped = (dropped_before_shares, dropped_before_upload, dropped_before_unmask)
    opened = session.sum({name: ((some,), (), (ordered[name],)) for name, some in asked.items()}, dropped)
    survivors, cost = frozenset(opened.survivors), session.meter.cost
    return AggregateRows(
        opened.tables[0], opened.contributors[0], survivors, cost, session.params, min_contributors
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


def _require_room(
    ring: str, parts: Iterable[tuple[Positions | slice, Words]], shape: tuple[int, ...]
) -> None:
    """Add up what all bring, in two halves of 32 bits, and refuse what wraps around."""
    low, high = np.zeros(shape, np.uint64), np.zeros(shape, np.uint64)
    for where, words in parts:
        wide = words.astype(np.uint64)
        low[where] += wide & np.uint64(0xFFFFFFFF)
        high[where] += wide >> np.uint64(32)
    high += low >> np.uint64(32)
    modulus = ring_named(ring).modulus
    wraps = high >= 1 << 32 if modulus == 1 << 64 else low >= modulus
    if wraps.any():
        wider = "take ring='z64', smaller numbers" if modulus < 1 << 64 else "take smaller numbers"
        raise InputError(
            f"{int(wraps.sum())} of {wraps.size} sums do not fit the ring {ring} (0..{modulus - 1}) and "
            f"would wrap around; {wider}, or wrap=True if sums modulo {modulus} are what you want"
        )


def _sum(ring: str, min_contributors: int, layout: Layout) -> SumParams:
    return SumParams(label="sum", ring=ring, min_contributors=min_contributors, layout=layout)  # type: ignore[arg-type]


class Session:
    """All parties of one session of one sum in this process, and what the session costs. Messages of other
    protocols around it may have ``room`` bytes more."""

    def __init__(
        self,
        names: Iterable[str],
        one: SumParams,
        randomness: Randomness | None,
        threshold: int | None,
        neighbours: int | None,
        active: bool,
        codec: Codec = messages.CODEC,
        room: int = 0,
        least_survivors: int | None = None,
    ) -> None:
        names, randomness = checked_names(names), randomness or SystemRandomness()
        round_id, count, layout = randomness.bytes(16), len(names), one.layout or Layout(dense=0)
        self.meter = Meter(names, codec, 0)
        policy = Policy(
            min_clients=2, min_threshold=2, min_contributors=one.min_contributors, max_words=layout.words
        )
        own = {name: Identity.generate(randomness) for name in names} if active else {}
        self._pinned = {name: identity.public for name, identity in own.items()} if active else None
        made = partial(Client, policy=policy, randomness=randomness, identities=self._pinned)
        self.clients = {
            name: self.meter.at_client(name, made, name, identity=own.get(name)) for name in names
        }
        self._keys = [self.meter.at_client(name, one.create_keys) for name, one in self.clients.items()]
        degree, least = choose_graph(self._keys, neighbours, threshold, round_id)
        self.params = SessionParams(
            round_id=round_id,
            clients=count,
            threshold=least,
            neighbours=degree,
            active=active,
            sums=(one,),
            least_survivors=least_survivors,
        )
        self.meter.limit = room + messages.size_limit(self.params, layout, ring_named(one.ring).word_bytes)

    def check_in(self, context: bytes = b"") -> Server:
        """The server, which has been given everyone's keys."""
        keys = [self.meter.up(one.client, one) for one in self._keys]
        return self.meter.at_server(Server, self.params, keys, self._pinned, context=context)

    def run(
        self,
        server: Receiver,
        outbound: Mapping[str, Message],
        steps: Mapping[str, Steps],
        dropped: Sequence[Collection[str]],
    ) -> Mapping[str, Message]:
        """Every exchange, from the first ``outbound`` messages to those that follow the opened sum. Who is
        ``dropped`` before the shares, the upload and the opening does not answer from there on."""
        lost, gone = [checked_dropouts(names, self.clients) for names in dropped], set[str]()
        for names in [*lost, set()] if self.params.active else lost:
            gone |= names
            for name, message in self.meter.down(outbound, gone):
                self.meter.answer(server, name, steps[name][type(message)], message)
            outbound = self.meter.at_server(server.close_phase)
        return outbound

    def sum(
        self,
        values: Mapping[str, tuple[Sequence[ArrayLike], ArrayLike, Sequence[ArrayLike]]],
        dropped: Sequence[Collection[str]],
    ) -> Opened:
        """The opened sum of each client's rows asked for, dense part and tables."""
        steps: dict[str, Steps] = {
            name: {
                messages.Roster: partial(client.handle_roster, rows=rows),
                messages.InboundShares: partial(_mask, client, dense, tables),
                messages.Survivors: client.handle_survivors,
                messages.UnmaskRequest: client.handle_unmask,
            }
            for name, (rows, dense, tables) in values.items()
            for client in (self.clients[name],)
        }
        server = self.check_in()
        self.run(server, self.meter.at_server(server.rosters), steps, dropped)
        return server.opened


def _mask(
    client: Client, dense: ArrayLike, tables: Sequence[ArrayLike], inbound: messages.InboundShares
) -> Message:
    return client.create_masked(client.handle_inbound(inbound), dense, tables)


def checked_names(names: Iterable[str]) -> list[str]:
    given = list(names)
    if any(not isinstance(name, str) or not 1 <= len(name) <= messages.MAX_ID for name in given):
        raise InputError(f"client ids are strings of 1 to {messages.MAX_ID} characters")
    if len(given) < 2:
        raise InputError(f"at least two clients are needed, not {len(given)}")
    return sorted(given)


def checked_dropouts(dropped: Collection[str], names: Collection[str]) -> set[str]:
    strangers = set(dropped) - set(names)
    if strangers:
        raise InputError(f"dropped clients that do not take part: {sorted(strangers)}")
    return set(dropped)


def choose_graph(
    keys: Sequence[messages.Keys], neighbours: int | None, threshold: int | None, round_id: bytes
) -> tuple[int | None, int]:
    """The degree (None: complete) and the threshold to use among clients in order of their ids."""
    clients = len(keys)
    if neighbours is None and clients > MAX_COMPLETE:
        plan = default_graph(clients)
        neighbours, least = plan.neighbours, plan.threshold
    elif neighbours is None or neighbours >= clients - 1:
        neighbours, least = None, messages.default_threshold(clients)
    else:
        root = Tree([messages.Member(position, one) for position, one in enumerate(keys)]).root
        holders = min(map(len, random_cycles(clients, neighbours, seed_of(round_id, root)))) + 1
        least = messages.default_threshold(holders)
    return neighbours, least if threshold is None else threshold
