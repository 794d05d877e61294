"""A private set union in one call: real state machines, encoded messages, one process."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from sfsl.arrays import Indices
from sfsl.crypto.secret import Randomness, SystemRandomness
from sfsl.errors import InputError
from sfsl.secagg.facade import Session, Steps, checked_dropouts, checked_names
from sfsl.secagg.messages import InboundShares, Survivors, UnmaskRequest
from sfsl.secagg.meter import Cost
from sfsl.union.encoding import index_set
from sfsl.union.protocol import (
    CODEC,
    DEFAULT_FALSE_POSITIVE_RATE,
    Invitation,
    Union,
    UnionClient,
    UnionParams,
    UnionServer,
    choose,
    most_indices,
    planned_capacity,
)


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
    seed = randomness.bytes(32)
    chosen = choose(encoding, domain, capacity, seed, false_positive_rate)
    union = UnionParams(
        domain=domain,
        encoding=chosen.name,  # type: ignore[arg-type]
        capacity=capacity,
        seed=seed,
        false_positive_rate=false_positive_rate,
    )
    if largest > chosen.capacity:
        enough = planned_capacity(domain, clients=len(names), largest_set=largest)
        raise InputError(
            f"client {owner!r} brings {largest} indices, over the capacity of {chosen.capacity}; "
            f"a capacity of {enough} would do for {len(names)} such clients"
        )
    room = 16 * most_indices(chosen)
    session = Session(names, union.sum_params(), randomness, threshold, neighbours, active, CODEC, room)
    clients = {name: UnionClient(session.clients[name], elements[name], randomness) for name in names}
    secagg, meter = session.check_in(union.context()), session.meter
    server = meter.at_server(UnionServer, secagg, union)
    steps: dict[str, Steps] = {
        name: {
            Invitation: client.handle_invitation,
            InboundShares: client.handle_inbound,
            Survivors: client.handle_survivors,
            UnmaskRequest: client.handle_unmask,
        }
        for name, client in clients.items()
    }
    outbound = session.run(server, meter.at_server(server.invitations), steps, ((), gone, ()))
    packed = 0
    for name, message in meter.down(outbound, Union):
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
