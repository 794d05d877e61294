"""The union on top of a secure sum: its messages, its client and its server."""

from typing import Annotated

from msgspec import Meta
from numpy.typing import ArrayLike

from sfsl.arrays import Indices
from sfsl.codec import Codec, Message
from sfsl.crypto.secret import Randomness
from sfsl.errors import InvalidMessage, Refused, UnionFailed, WrongPhase, WrongRound
from sfsl.packing import pack, unpack
from sfsl.secagg import messages
from sfsl.secagg.client import Client
from sfsl.secagg.messages import SESSION, InboundShares, Keys, Roster, Survivors, UnmaskRequest
from sfsl.secagg.params import RoundId
from sfsl.secagg.server import Phase, Server
from sfsl.union.encoding import Encoding, index_set
from sfsl.union.params import UnionParams


class Invitation(Message, frozen=True, tag="union-invitation"):
    """Server to client: who is there, and what is to be united."""

    roster: Roster
    union: UnionParams


class Union(Message, frozen=True, tag="union"):
    """Server to client: the union, packed."""

    round_id: RoundId
    count: Annotated[int, Meta(ge=0, le=2**40)]
    packed: bytes


CODEC = Codec(Invitation, *SESSION, Union)


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

    def handle_inbound(self, inbound: InboundShares) -> messages.MaskedVector:
        vector = self._encoding.encode(self._elements, self._randomness)
        start = self._session.handle_inbound(inbound, self._context)
        return self._session.create_masked(start, vector)

    def handle_survivors(self, lists: Survivors) -> messages.Consistency:
        return self._session.handle_survivors(lists)

    def handle_unmask(self, request: UnmaskRequest) -> messages.UnmaskShares:
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
        if self._session.phase is not Phase.OPENED:
            return outbound
        self._union, message = open_union(self._session, self._encoding)
        return dict.fromkeys(self._session.answered, message)

    @property
    def union(self) -> Indices:
        if self._union is None:
            raise WrongPhase("there is no union yet")
        return self._union


def open_union(session: Server, encoding: Encoding) -> tuple[Indices, Union]:
    """Decode the sum that the session has just opened; or ``UnionFailed``."""
    union = encoding.decode(session.opened.dense)
    if len(union) > most_indices(encoding):
        raise UnionFailed("the sum decodes to more indices than the capacity", capacity=len(union))
    return union, Union(session.round_id, len(union), pack(union, encoding.domain))
