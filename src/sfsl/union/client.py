"""One client of a private set union, on top of its secure-aggregation session (spec 9.3)."""

from numpy.typing import ArrayLike

from sfsl.arrays import Indices
from sfsl.crypto.randomness import Randomness
from sfsl.errors import InvalidMessage, Refused, WrongPhase, WrongRound
from sfsl.packing import unpack
from sfsl.secagg.client import Client
from sfsl.secagg.messages import (
    Consistency,
    InboundShares,
    Keys,
    MaskedVector,
    SealedShares,
    Survivors,
    UnmaskRequest,
    UnmaskShares,
)
from sfsl.union.encoding import Encoding, index_set
from sfsl.union.messages import Invitation, Union


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

    def handle_invitation(self, invitation: Invitation) -> SealedShares:
        """Join if the set fits as it is: it is declined, never trimmed, where it does not."""
        params = invitation.union
        announced = invitation.roster.params.sums[0]
        if announced != params.sum_params():
            raise Refused("the sum that was announced is not the sum this union needs")
        encoding = params.build()
        elements = index_set(self._indices, params.domain, encoding.capacity)
        answer = self._session.handle_roster(invitation.roster)
        self._context, self._encoding, self._elements = params.context(), encoding, elements
        self._round_id = invitation.roster.params.round_id
        return answer

    def handle_inbound(self, inbound: InboundShares) -> MaskedVector:
        vector = self._encoding.encode(self._elements, self._randomness)
        start = self._session.handle_inbound(inbound, self._context)
        return self._session.create_masked(start, vector)

    def handle_survivors(self, lists: Survivors) -> Consistency:
        return self._session.handle_survivors(lists)

    def handle_unmask(self, request: UnmaskRequest) -> UnmaskShares:
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
