"""The union on top of a secure sum: its parameters, its messages, its client and its server, and all of them
in one call: real state machines, encoded messages, one process."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import ArrayLike

from sfsl.arrays import LARGEST_DOMAIN, Indices
from sfsl.codec import Checked, Codec, Message, pack, unpack
from sfsl.crypto.ring import Words
from sfsl.crypto.secret import Randomness, SystemRandomness, digest
from sfsl.errors import (
    InputError,
    InvalidMessage,
    ParameterError,
    Refused,
    UnionFailed,
    WrongPhase,
    WrongRound,
)
from sfsl.secagg import messages
from sfsl.secagg.client import Client
from sfsl.secagg.facade import Cost, Session, Steps, checked_dropouts, checked_names
from sfsl.secagg.messages import Keys, Layout, Roster, RoundId, SumParams
from sfsl.secagg.server import Server
from sfsl.secagg.states import ServerPhase
from sfsl.union.bloom import Bloom, planned_rate
from sfsl.union.encoding import LARGEST_IDENTITY, Encoding, Identity, Whole, index_set
from sfsl.union.sketch import Sketch

ENCODINGS = ("auto", "identity", "bloom", "sketch", "whole")
SUM_LABEL = "union"
DEFAULT_FALSE_POSITIVE_RATE = 1e-4


def choose(
    encoding: str, domain: int, capacity: int, seed: bytes, false_positive_rate: float | None = None
) -> Encoding:
    """The encoding of that name; 'auto' is the shortest that is exact. Its ``reason`` says why. 'auto' leaves
    out 'bloom', which adds indices that nobody holds: each costs rows in every later step of the round, and
    at any size where bytes matter the sketch is several times shorter anyway. The rate of those indices is
    planned (``planned_rate``) where none is given."""
    match encoding:
        case "identity":
            return Identity(domain)
        case "bloom":
            return Bloom(domain, capacity, seed, false_positive_rate or planned_rate(domain, capacity))
        case "sketch":
            return Sketch(domain, capacity, seed)
        case "whole":
            return Whole(domain)
        case "auto":
            return _shortest(domain, capacity, seed)
    raise ParameterError(f"no encoding {encoding!r}; there are {', '.join(ENCODINGS)}")


def _shortest(domain: int, capacity: int, seed: bytes) -> Encoding:
    table = Sketch(domain, capacity, seed)
    sketch_bytes, identity_bytes = table.length * table.ring.word_bytes, 4 * domain
    if domain <= LARGEST_IDENTITY and identity_bytes <= sketch_bytes:
        why = f"one cell for each of {domain} indices takes {identity_bytes} bytes, a sketch {sketch_bytes}"
        return Identity(domain, reason=why)
    why = (
        f"a sketch for {capacity} elements takes {sketch_bytes} bytes, "
        f"one cell for each of {domain} indices {identity_bytes}"
    )
    return replace(table, reason=why)


def planned_capacity(
    domain: int, clients: int, largest_set: int, earlier: Sequence[int] = (), headroom: float = 0.25
) -> int:
    """The capacity to plan a round for: the worst case, or less if earlier unions say so. A union over
    capacity costs the round, and trying again costs every member a second exposure (spec 9.6), so the
    head-room is generous: a quarter more than the largest union seen so far."""
    if not 1 <= domain <= LARGEST_DOMAIN or clients < 1 or largest_set < 1:
        raise ParameterError("domain, clients and largest set are at least 1, the domain at most 2^63")
    if headroom < 0 or any(size < 0 for size in earlier):
        raise ParameterError("head-room and earlier union sizes are not negative")
    worst = min(domain, clients * largest_set)
    if not earlier:
        return worst
    return max(1, min(worst, math.ceil(max(earlier) * (1 + headroom))))


class UnionParams(Checked, frozen=True):
    """Which sets are united, and how they are encoded. ``seed`` is fresh for every round."""

    domain: Annotated[int, Meta(ge=1)]
    encoding: Literal["identity", "bloom", "sketch", "whole"]
    capacity: Annotated[int, Meta(ge=1, le=2**40)]
    seed: Annotated[bytes, Meta(min_length=32, max_length=32)]
    false_positive_rate: Annotated[float, Meta(gt=0, lt=1)] = DEFAULT_FALSE_POSITIVE_RATE

    def require_sound(self) -> None:
        if self.domain > LARGEST_DOMAIN:
            raise ParameterError(f"a domain has at most 2^63 indices, not {self.domain}")

    @classmethod
    def plan(
        cls, encoding: str, domain: int, capacity: int, seed: bytes, false_positive_rate: float | None = None
    ) -> "UnionParams":
        """Choose the encoding, and its rate of false positives where it has one."""
        chosen = choose(encoding, domain, capacity, seed, false_positive_rate)
        return cls(
            domain=domain,
            encoding=chosen.name,  # type: ignore[arg-type]
            capacity=capacity,
            seed=seed,
            false_positive_rate=getattr(chosen, "false_positive_rate", DEFAULT_FALSE_POSITIVE_RATE),
        )

    def build(self) -> Encoding:
        return choose(self.encoding, self.domain, self.capacity, self.seed, self.false_positive_rate)

    def sum_params(self) -> SumParams:
        """The secure sum that this union runs over."""
        encoding = self.build()
        return SumParams(
            label=SUM_LABEL,
            ring=encoding.ring.name,  # type: ignore[arg-type]
            min_contributors=1,
            layout=Layout(dense=encoding.length),
        )

    def context(self) -> bytes:
        """Masks are bound to it: clients that were told different parameters add up to noise."""
        return digest("union", msgspec.msgpack.encode(self))


class Invitation(Message, frozen=True, tag="union-invitation"):
    """Server to client: who is there, and what is to be united."""

    roster: Roster
    union: UnionParams


class Union(Message, frozen=True, tag="union"):
    """Server to client: the union, packed."""

    round_id: RoundId
    count: Annotated[int, Meta(ge=0, le=2**40)]
    packed: bytes


CODEC = Codec(Invitation, *messages.SESSION, Union)


class UnionClient:
    """Brings one set into a union. ``session`` is its secure-aggregation client, whose first sum this uses;
    a session with more sums goes on with it afterwards."""

    def __init__(self, session: Client, indices: ArrayLike, randomness: Randomness) -> None:
        self._session = session
        self._indices = indices
        self._randomness = randomness
        self._awaits_union = False

    def create_keys(self) -> Keys:
        return self._session.create_keys()

    def handle_invitation(self, invitation: Invitation) -> messages.SealedShares:
        """Join if the set fits as it is: it is declined, never trimmed, where it does not."""
        params = invitation.union
        if invitation.roster.params.sums[0] != params.sum_params():
            raise Refused("the sum that was announced is not the sum this union needs")
        encoding = params.build()
        elements = index_set(self._indices, params.domain, encoding.capacity)
        answer = self._session.handle_roster(invitation.roster)
        self._context, self._encoding, self._elements = params.context(), encoding, elements
        self._round_id = invitation.roster.params.round_id
        return answer

    def handle_inbound(self, inbound: messages.InboundShares) -> messages.MaskedVector:
        vector = self._encoding.encode(self._elements, self._randomness)
        start = self._session.handle_inbound(inbound, self._context)
        return self._session.create_masked(start, vector)

    def handle_survivors(self, lists: messages.Survivors) -> messages.Consistency:
        return self._session.handle_survivors(lists)

    def handle_unmask(self, request: messages.UnmaskRequest) -> messages.UnmaskShares:
        answer = self._session.handle_unmask(request)
        self._awaits_union = True
        return answer

    def handle_union(self, union: Union) -> Indices:
        if not self._awaits_union:
            raise WrongPhase("a union before this client helped to open one, or a second one")
        indices = read_union(union, self._round_id, self._encoding)
        self._awaits_union = False
        return indices


def read_union(union: Union, round_id: bytes, encoding: Encoding) -> Indices:
    """The union, checked for form. That it is the true one is the server's word (spec 9.5)."""
    if union.round_id != round_id:
        raise WrongRound("the union of another round")
    if union.count > most_indices(encoding):
        raise InvalidMessage(f"a union of {union.count} indices, over the capacity of the round")
    return unpack(union.packed, union.count, encoding.domain)


def most_indices(encoding: Encoding) -> int:
    """The largest union a client takes: the capacity, and room for a Bloom filter's false positives."""
    return 2 * encoding.capacity + 1024


class UnionServer:
    """Runs the first sum of ``session`` as a union, and hands the union to those who lasted. A union that
    does not decode aborts: nothing partial is returned, and a retry is a new round with new keys, id and seed
    that exposes its members a second time. The caller decides (spec 9.6)."""

    def __init__(self, session: Server, params: UnionParams) -> None:
        self._session = session
        self._params = params
        self._encoding = params.build()
        self._union: Indices | None = None

    def invitations(self) -> dict[str, Invitation]:
        return self._session.invitations(lambda roster: Invitation(roster, self._params))

    def receive(self, client: str, message: Message) -> None:
        self._session.receive(client, message)

    def close_phase(self) -> dict[str, Message]:
        """Close the session's phase; once the sum is open, all who answered to the end get the union."""
        outbound = self._session.close_phase()
        if self._session.phase is not ServerPhase.OPENED:
            return outbound
        self._union, message = open_union(self._session.opened.dense, self._session.round_id, self._encoding)
        return dict.fromkeys(self._session.answered, message)

    @property
    def union(self) -> Indices:
        if self._union is None:
            raise WrongPhase("there is no union yet")
        return self._union


def open_union(total: Words, round_id: bytes, encoding: Encoding) -> tuple[Indices, Union]:
    """Decode the sum that a session has just opened; or ``UnionFailed``."""
    union = encoding.decode(total)
    if len(union) > most_indices(encoding):
        raise UnionFailed("the sum decodes to more indices than the capacity", capacity=len(union))
    return union, Union(round_id, len(union), pack(union, encoding.domain))


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
    false_positive_rate: float | None = None,
    randomness: Randomness | None = None,
) -> UnionResult:
    """Unite sets of indices below ``domain`` so that the union is all that anyone learns.

    ``capacity`` is the largest union that fits (default: as many indices as there are clients times the
    largest set). One that does not fit raises ``UnionFailed`` with a capacity that would do; whether to
    try again is the caller's decision, since two unions over different survivors say more than one.
    The ``dropped`` clients vanish before they upload. The encoding "bloom" adds indices that nobody holds:
    1 % of the union at most are expected, unless ``false_positive_rate`` says how likely each is.

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
    union = UnionParams.plan(encoding, domain, capacity, seed, false_positive_rate)
    chosen = choose(encoding, domain, capacity, seed, false_positive_rate)
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
            messages.InboundShares: client.handle_inbound,
            messages.Survivors: client.handle_survivors,
            messages.UnmaskRequest: client.handle_unmask,
        }
        for name, client in clients.items()
    }
    outbound = session.run(server, meter.at_server(server.invitations), steps, ((), gone, ()))
    packed = 0
    for name, message in meter.down(outbound):
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
