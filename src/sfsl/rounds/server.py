"""The server of a round: a state machine without I/O (spec round 5).

    SHARES -> UNITING -> [CONSISTENCY] -> OPENING_UNION -> REQUESTS -> UPDATES -> [CONSISTENCY] ->
    OPENING_UPDATE -> DONE

``close_phase`` ends a phase; whoever was not heard is out for the rest of the round. The store is read
while the round runs, and never written: ``outcome`` holds the commit for the caller to make.
"""

from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfsl.arrays import Bits, Indices
from sfsl.codec import Message
from sfsl.crypto.identity import verify
from sfsl.crypto.kdf import digest
from sfsl.errors import (
    Aborted,
    AuthenticationFailed,
    ConflictingMessage,
    InvalidMessage,
    ParameterError,
    TooFewClients,
    UnexpectedSender,
    UnionFailed,
    WrongPhase,
    WrongRound,
)
from sfsl.rounds.index_space import IndexSpace
from sfsl.rounds.messages import Invitation, Request, Submodel
from sfsl.rounds.outcome import RoundOutcome, RoundSums, conclude, read_sums
from sfsl.rounds.params import RoundParams
from sfsl.secagg import server as secagg
from sfsl.secagg.messages import Keys, SignedRequest
from sfsl.secagg.params import Layout, SessionParams
from sfsl.secagg.rows import parse_request
from sfsl.secagg.transcript import request_parts
from sfsl.submodel import RowMaps, RowStore
from sfsl.union.server import open_union


class Phase(Enum):
    UNITING = auto()
    REQUESTS = auto()
    UPDATING = auto()
    DONE = auto()
    ABORTED = auto()


class RoundServer:
    """Runs one round for the clients whose ``keys`` were taken at check-in, against one store.

    ``alone``: this cohort is the whole round. Otherwise there is no outcome, only ``sums``, for the caller
    to add to those of other cohorts.
    """

    def __init__(
        self,
        session: SessionParams,
        params: RoundParams,
        keys: Sequence[Keys],
        store: RowStore,
        maps: RowMaps,
        identities: Mapping[str, bytes] | None = None,
        *,
        alone: bool = True,
    ) -> None:
        if session.sums != params.sums():
            raise ParameterError("the session's sums are not those of this round")
        if session.clients > params.update.rows.cohort:
            raise ParameterError("more clients than the quantization was planned for: the sum could overflow")
        if params.model != store.spec.model:
            raise ParameterError("the round is for another model than the store holds")
        self.phase = Phase.UNITING
        self._params = params
        self._identities = identities
        self._session = secagg.Server(session, keys, identities, context=params.context())
        self._round_id = session.round_id
        self._threshold = session.threshold
        self._store = store
        self._maps = maps
        self._space = IndexSpace(params.model)
        self._encoding = params.union.build()
        self._requests: dict[str, Request] = {}
        self._asked: dict[str, tuple[Bits, ...]] = {}
        self._alone = alone
        self._sums: RoundSums | None = None
        self._outcome: RoundOutcome | None = None

    def invitations(self) -> dict[str, Invitation]:
        made: dict[int, Invitation] = {}
        rosters = self._session.rosters()
        for roster in rosters.values():
            made.setdefault(id(roster), Invitation(roster, self._params))
        return {name: made[id(roster)] for name, roster in rosters.items()}

    # -- inbound -------------------------------------------------------------------------------

    def receive(self, client: str, message: Message) -> None:
        """Accept one message, or raise and leave the state as it was."""
        if not isinstance(message, Request):
            self._session.receive(client, message)
            return
        if message.round_id != self._round_id:
            raise WrongRound(f"client {client!r} answers another round")
        if client in self._requests:
            if message != self._requests[client]:
                raise ConflictingMessage(f"a second, different request from client {client!r}")
            return
        if self.phase is not Phase.REQUESTS:
            raise WrongPhase(f"a request from {client!r} while the round is {self.phase.name}")
        if client not in self._session.answered or self._session.position(client) != message.sender:
            raise UnexpectedSender(f"client {client!r} has no request to make")
        asked = parse_request(self._layout, message.bitmaps)
        self._require_derived(client, asked)
        if self._identities is not None:
            self._require_signature(client, message)
        elif message.signature is not None:
            raise InvalidMessage(f"client {client!r} signs a request outside active mode")
        self._asked[client] = asked
        self._requests[client] = message

    def _require_derived(self, client: str, asked: tuple[Bits, ...]) -> None:
        """Derived rows follow from the shared ones; a request that says otherwise is not one of ours."""
        sets = {
            table.name: self._unions[table.name].at(bits)
            for table, bits in zip(self._params.model.summed, asked, strict=True)
        }
        shared = {
            table.name: sets[table.name] for table in self._params.model.summed if table.kind == "shared"
        }
        for name, rows in self._maps.with_derived(shared).items():
            if not np.array_equal(rows.rows, sets[name].rows):
                raise InvalidMessage(f"client {client!r} asks for other rows of {name!r} than follow")

    def _require_signature(self, client: str, message: Request) -> None:
        if message.signature is None:
            raise AuthenticationFailed("an unsigned request for rows in active mode")
        parts = request_parts(self._session.binding, 1, message.bitmaps)
        verify((self._identities or {})[client], message.signature, "request", *parts)

    # -- phases --------------------------------------------------------------------------------

    def close_phase(self) -> dict[str, Message]:
        """End the phase and return what each remaining client is to be sent; or abort, for good."""
        try:
            if self.phase is Phase.REQUESTS:
                return self._send_submodels()
            if self.phase is Phase.UNITING:
                outbound = self._session.close_phase()
                return self._send_union() if self._session.phase is secagg.Phase.OPENED else outbound
            if self.phase is Phase.UPDATING:
                outbound = self._session.close_phase()
                if self._session.phase is secagg.Phase.OPENED:
                    self._finish()
                return outbound
        except Aborted:
            self.phase = Phase.ABORTED
            raise
        raise WrongPhase(f"nothing to close: the round is {self.phase.name}")

    def _send_union(self) -> dict[str, Message]:
        union, message = open_union(self._session, self._encoding)
        require_rows(union)
        self._unions = self._maps.with_derived(self._space.rows(union))
        self._union_digest = digest("union indices", message.packed)
        self._layout: Layout = self._params.layout(self._unions)
        self.phase = Phase.REQUESTS
        return dict.fromkeys(self._session.answered, message)

    def _send_submodels(self) -> dict[str, Message]:
        names = sorted(self._requests)
        if len(names) < self._threshold:
            raise TooFewClients(f"{len(names)} clients asked for rows, {self._threshold} are needed")
        dense = self._store.read_dense().values.astype("<f4").tobytes()
        context = digest("update", self._params.context(), self._union_digest, digest("dense", dense))
        bitmaps = {name: self._requests[name].bitmaps for name in names}
        told = self._session.start_sum(names, self._layout, bitmaps, context)
        places = {name: self._session.position(name) for name in names}
        tables = [
            as_downloaded(self._store.read_rows(table.name, self._unions[table.name]).values, self._params)
            for table in self._params.model.summed
        ]
        signed = {
            name: SignedRequest(one.bitmaps, one.signature)
            for name, one in self._requests.items()
            if one.signature is not None
        }
        participants = tuple(sorted(places.values()))
        ordered = sorted(names, key=places.__getitem__)
        self.phase = Phase.UPDATING
        return {
            name: Submodel(
                self._round_id,
                participants,
                tuple(values[bits].tobytes() for values, bits in zip(tables, self._asked[name], strict=True)),
                dense,
                b"" if signed else told[name],
                tuple(signed[other] for other in ordered if other != name) if signed else (),
            )
            for name in names
        }

    def _finish(self) -> None:
        opened = self._session.opened
        self._sums = read_sums(
            self._params, self._unions, opened.dense, opened.tables, opened.contributors, opened.survivors
        )
        if self._alone:
            self._outcome = conclude(self._store, self._params, self._sums)
        self.phase = Phase.DONE

    @property
    def sums(self) -> RoundSums:
        if self._sums is None:
            raise WrongPhase(f"the round is {self.phase.name}")
        return self._sums

    @property
    def outcome(self) -> RoundOutcome:
        if self._outcome is None:
            raise WrongPhase(f"the round is {self.phase.name}")
        return self._outcome

    def __repr__(self) -> str:
        return f"RoundServer({self.phase.name})"


def as_downloaded(values: NDArray[np.float32], params: RoundParams) -> NDArray[Any]:
    """Rows in the precision of the download; what half precision cannot hold is cut to its largest."""
    kind = np.dtype(params.precision)
    limit = np.finfo(kind).max
    return np.clip(values, -limit, limit).astype(kind.newbyteorder("<"))


def require_rows(union: Indices) -> None:
    if not len(union):
        raise UnionFailed("nobody in the cohort has a row to train: the union is empty", capacity=1)
