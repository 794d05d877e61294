"""A private set union in one call: real state machines, encoded messages, one process."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from sfsl.arrays import Indices
from sfsl.crypto.identity import Identity
from sfsl.crypto.secret import Randomness, SystemRandomness
from sfsl.errors import InputError
from sfsl.secagg.client import Client
from sfsl.secagg.facade import checked_dropouts, checked_names, choose_graph
from sfsl.secagg.messages import (
    InboundShares,
    Keys,
    Survivors,
    UnmaskRequest,
    size_limit,
)
from sfsl.secagg.meter import Cost, Meter
from sfsl.secagg.params import Layout, Policy, SessionParams
from sfsl.secagg.server import Server
from sfsl.union.encoding import Encoding, index_set
from sfsl.union.encodings import choose
from sfsl.union.params import DEFAULT_FALSE_POSITIVE_RATE, UnionParams
from sfsl.union.protocol import CODEC, Invitation, Union, UnionClient, UnionServer, most_indices
from sfsl.union.sizing import planned_capacity


@dataclass(frozen=True)
class UnionResult:
    """``indices`` is the union of the sets of ``survivors``, ascending.

    ``encoding`` is how sets became vectors, for the given ``reason``, with room for ``capacity`` indices.

    >>> import sfsl
    >>> result = sfsl.private_set_union({"ann": {3}, "bob": {17}}, domain=100)
    >>> result.indices.tolist(), result.encoding, result.false_positives_expected
    ([3, 17], 'identity', 0.0)
    """

    indices: Indices
    encoding: str
    reason: str
    capacity: int
    false_positives_expected: float
    survivors: frozenset[str]
    cost: Cost
    vector_bytes: int
    packed_bytes: int


def private_set_union(
    sets: Mapping[str, Iterable[int]],
    domain: int,
    *,
    encoding: str = "auto",
    capacity: int | None = None,
    threshold: int | None = None,
    dropped: Collection[str] = (),
    neighbours: int | None = None,
    active: bool = False,
    false_positive_rate: float = DEFAULT_FALSE_POSITIVE_RATE,
    randomness: Randomness | None = None,
) -> UnionResult:
    """Unite sets of indices below ``domain`` so that the union is all that anyone learns.

    ``capacity`` is the largest union that fits (default: as many indices as there are clients times the
    largest set). One that does not fit raises ``UnionFailed`` with a capacity that would do; whether to
    try again is the caller's decision, since two unions over different survivors say more than one.
    The ``dropped`` clients vanish before they upload.

    >>> import sfsl
    >>> result = sfsl.private_set_union({"ann": {3, 17, 2_000_000_000}, "bob": {17}}, domain=2**31)
    >>> result.indices.tolist(), result.encoding
    ([3, 17, 2000000000], 'sketch')
    """
    randomness = randomness or SystemRandomness()
    names = checked_names(sets)
    gone = checked_dropouts(dropped, names)
    elements = {name: _elements(name, sets[name], domain) for name in names}
    if capacity is None:
        most = max(map(len, elements.values()))
        capacity = planned_capacity(domain, clients=len(names), largest_set=max(1, most))
    largest, owner = max((len(one), name) for name, one in elements.items())
    union, chosen = _union_params(encoding, domain, capacity, false_positive_rate, randomness.bytes(32))
    if largest > chosen.capacity:
        enough = planned_capacity(domain, clients=len(names), largest_set=largest)
        raise InputError(
            f"client {owner!r} brings {largest} indices, over the capacity of {chosen.capacity}; "
            f"a capacity of {enough} would do for {len(names)} such clients"
        )
    round_id = randomness.bytes(16)
    degree, least = choose_graph(len(names), neighbours, threshold, round_id)
    params = SessionParams(
        round_id=round_id,
        clients=len(names),
        threshold=least,
        neighbours=degree,
        active=active,
        sums=(union.sum_params(),),
    )
    limit = size_limit(params, Layout(dense=chosen.length), chosen.ring.word_bytes)
    meter = Meter(names, CODEC, limit + 16 * most_indices(chosen))
    identities = {name: Identity.generate(randomness) for name in names} if active else {}
    pinned = {name: identity.public for name, identity in identities.items()} if active else None
    policy = Policy(min_clients=2, min_threshold=2, min_contributors=1, max_words=chosen.length)
    clients = {}
    for name in names:
        session = meter.at_client(
            name, Client, name, policy, randomness, identity=identities.get(name), identities=pinned
        )
        clients[name] = UnionClient(session, elements[name], randomness)

    keys = [meter.up(name, Keys, meter.at_client(name, clients[name].create_keys)) for name in names]
    secagg = meter.at_server(Server, params, keys, pinned, context=union.context())
    server = meter.at_server(UnionServer, secagg, union)
    for name, invitation in meter.down(meter.at_server(server.invitations), Invitation):
        meter.answer(server, name, clients[name].handle_invitation, invitation)
    for name, inbound in meter.down(meter.at_server(server.close_phase), InboundShares, gone):
        meter.answer(server, name, clients[name].handle_inbound, inbound)
    outbound = meter.at_server(server.close_phase)
    if active:
        for name, lists in meter.down(outbound, Survivors):
            meter.answer(server, name, clients[name].handle_survivors, lists)
        outbound = meter.at_server(server.close_phase)
    for name, request in meter.down(outbound, UnmaskRequest):
        meter.answer(server, name, clients[name].handle_unmask, request)
    packed = 0
    for name, message in meter.down(meter.at_server(server.close_phase), Union):
        meter.at_client(name, clients[name].handle_union, message)
        packed = len(message.packed)
    return UnionResult(
        server.union,
        chosen.name,
        chosen.reason,
        chosen.capacity,
        chosen.false_positives_expected,
        frozenset(secagg.opened.survivors),
        meter.cost,
        chosen.length * chosen.ring.word_bytes,
        packed,
    )


def _elements(name: str, indices: Iterable[int], domain: int) -> Indices:
    try:
        return index_set(indices if isinstance(indices, np.ndarray) else list(indices), domain, domain)
    except InputError as error:
        raise InputError(f"client {name!r}: {error}") from None


def _union_params(
    encoding: str, domain: int, capacity: int, rate: float, seed: bytes
) -> tuple[UnionParams, Encoding]:
    chosen = choose(encoding, domain, capacity, seed)
    params = UnionParams(
        domain=domain,
        encoding=chosen.name,  # type: ignore[arg-type]
        capacity=capacity,
        seed=seed,
        false_positive_rate=rate,
    )
    return params, params.build() if chosen.name == "bloom" else chosen
