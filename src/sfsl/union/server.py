"""The server of a private set union, on top of its secure-aggregation session (spec 9.3)."""

from sfsl.arrays import Indices
from sfsl.codec import Message
from sfsl.errors import UnionFailed, WrongPhase
from sfsl.packing import pack
from sfsl.secagg.server import Phase, Server
from sfsl.union.client import most_indices
from sfsl.union.encoding import Encoding
from sfsl.union.messages import Invitation, Union
from sfsl.union.params import UnionParams


class UnionServer:
    """Runs the first sum of ``session`` as a union, and hands the union to those who lasted.

    A union that does not decode aborts: nothing partial is returned, and a retry is a new round with new
    keys, id and seed that exposes its members a second time. The caller decides (spec 9.6).
    """

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
        """As the session's; when the sum is open, the union for everyone who answered to the end."""
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
