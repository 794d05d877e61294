"""The server of a round: a state machine without I/O (spec round 5).

``close_phase`` ends a phase; whoever did not answer is out for the rest of the round. ``states`` has the
phases as a table, within which the session has its own. The store is read while the round runs, and never
written: ``outcome`` holds the commit for the caller to make.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfsl.arrays import Bits, Indices
from sfsl.codec import Message
from sfsl.crypto.secret import digest
from sfsl.errors import (
    Aborted,
    InvalidMessage,
    ParameterError,
    TooFewClients,
    UnexpectedSender,
    UnionFailed,
    WrongPhase,
)
from sfsl.rounds import states
from sfsl.rounds.commitment import CommittedRows, update_context
from sfsl.rounds.exchanges import UPDATE_SUM, Invitation, Request, Submodel
from sfsl.rounds.params import IndexSpace, RoundParams
from sfsl.rounds.record import RoundOutcome, RoundSums, conclude, read_sums
from sfsl.secagg.masking import parse_request
from sfsl.secagg.messages import Keys, SessionParams, SignedRequest, verify_request
from sfsl.secagg.server import Server
from sfsl.secagg.states import Machine, require_round, require_same
from sfsl.secagg.states import ServerPhase as SessionPhase
from sfsl.submodel import RowMaps, RowStore
from sfsl.union.protocol import open_union


class RoundServer(Machine[states.ServerState]):
    """Runs one round for the clients whose ``keys`` were taken at check-in, against one store. ``alone``:
    this cohort is the whole round. Otherwise there is no outcome, only ``sums``, for the caller to add to
    those of other cohorts."""

    moves = states.SERVER_MOVES

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
        names: bytes = b"",
    ) -> None:
        if session.sums != params.sums():
            raise ParameterError("the session's sums are not those of this round")
        if session.clients > params.update.rows.cohort:
            raise ParameterError("more clients than the quantization was planned for: the sum could overflow")
        if params.model != store.spec.model:
            raise ParameterError("the round is for another model than the store holds")
        super().__init__(states.UnitingSets({}))
        self._params, self._identities, self._names = params, identities, names
        self._session = Server(session, keys, identities, context=params.context(names))
        self._round_id, self._threshold = session.round_id, session.threshold
        self._store, self._maps, self._alone = store, maps, alone
        self._space, self._encoding = IndexSpace(params.model), params.union.build()

    def invitations(self) -> dict[str, Invitation]:
        return self._session.invitations(lambda roster: Invitation(roster, self._params))

    # -- inbound -------------------------------------------------------------------------------

    def receive(self, client: str, message: Message) -> None:
        """Accept one message, or raise and leave the state as it was. The same message again is silent."""
        if not isinstance(message, Request):
            self._session.receive(client, message)
            return
        require_round(message.round_id, self._round_id, f"what client {client!r} answers")
        if client in self._state.requests:
            require_same(message, self._state.requests[client], client)
            return
        state = self._due(Request, states.Requests)
        if client not in self._session.answered or self._session.position(client) != message.sender:
            raise UnexpectedSender(f"client {client!r} has no request to make")
        asked = parse_request(state.layout, message.bitmaps)
        self._require_derived(state, client, asked)
        if self._identities is not None:
            public, bound = self._identities[client], self._session.binding
            verify_request(public, bound, UPDATE_SUM, message.bitmaps, message.signature)
        elif message.signature is not None:
            raise InvalidMessage(f"client {client!r} signs a request outside active mode")
        state.asked[client] = asked
        state.requests[client] = message

    def _require_derived(self, state: states.Requests, client: str, asked: tuple[Bits, ...]) -> None:
        """Derived rows follow from the shared ones; a request that says otherwise is not one of ours."""
        tables = self._params.model.summed
        sets = {
            table.name: state.unions[table.name].at(bits) for table, bits in zip(tables, asked, strict=True)
        }
        shared = {table.name: sets[table.name] for table in tables if table.kind == "shared"}
        for name, rows in self._maps.with_derived(shared).items():
            if not np.array_equal(rows.rows, sets[name].rows):
                raise InvalidMessage(f"client {client!r} asks for other rows of {name!r} than follow")

    # -- phases --------------------------------------------------------------------------------

    def close_phase(self) -> dict[str, Message]:
        """End the phase and return what each remaining client is to be sent; or abort, for good."""
        state, outbound = self._state, dict[str, Message]()
        try:
            if isinstance(state, states.Requests):
                after, outbound = self._send_submodels(state)
            elif isinstance(state, states.UnitingSets | states.Updating):
                outbound = self._session.close_phase()
                if self._session.phase is not SessionPhase.OPENED:
                    return outbound
                if isinstance(state, states.Updating):
                    after = self._finish(state)
                else:
                    after, outbound = self._send_union(state)
            else:
                raise WrongPhase(f"nothing to close: the round is {self.phase.name}")
        except Aborted:
            self._enter(states.Stopped(state.requests))
            raise
        self._enter(after)
        return outbound

    def _send_union(self, state: states.UnitingSets) -> tuple[states.ServerState, dict[str, Message]]:
        union, message = open_union(self._session.opened.dense, self._round_id, self._encoding)
        require_rows(union)
        unions = self._maps.with_derived(self._space.rows(union))
        packed = digest("union indices", message.packed)
        after = states.Requests(state.requests, unions, self._params.layout(unions), packed, {})
        return after, dict.fromkeys(self._session.answered, message)

    def _send_submodels(self, state: states.Requests) -> tuple[states.ServerState, dict[str, Message]]:
        names = sorted(state.requests)
        if len(names) < self._threshold:
            raise TooFewClients(f"{len(names)} clients asked for rows, {self._threshold} are needed")
        dense = self._store.read_dense().values.astype("<f4").tobytes()
        tables = [
            as_downloaded(
                self._store.read_rows(table.name, state.unions[table.name]).values, self._params.precision
            )
            for table in self._params.model.summed
        ]
        committed = CommittedRows(tables, self._session.binding, proves=self._identities is not None)
        context = update_context(self._params.context(self._names), state.union, dense, committed.root)
        bitmaps = {name: state.requests[name].bitmaps for name in names}
        told = self._session.start_sum(names, state.layout, bitmaps, context)
        places = {name: self._session.position(name) for name in names}
        signed = {
            name: SignedRequest(one.bitmaps, one.signature)
            for name, one in state.requests.items()
            if one.signature is not None
        }
        participants = tuple(sorted(places.values()))
        ordered = sorted(names, key=places.__getitem__)
        return states.Updating(state.requests, state.unions), {
            name: Submodel(
                self._round_id,
                participants,
                tuple(values[bits].tobytes() for values, bits in zip(tables, state.asked[name], strict=True)),
                dense,
                b"" if signed else told[name],
                tuple(signed[other] for other in ordered if other != name) if signed else (),
                committed.root,
                committed.proof(state.asked[name]),
            )
            for name in names
        }

    def _finish(self, state: states.Updating) -> states.ServerState:
        opened = self._session.opened
        sums = read_sums(
            self._params, state.unions, opened.dense, opened.tables, opened.contributors, opened.survivors
        )
        outcome = conclude(self._store, self._params, sums) if self._alone else None
        return states.Done(state.requests, sums, outcome)

    @property
    def sums(self) -> RoundSums:
        if not isinstance(self._state, states.Done):
            raise WrongPhase(f"the round is {self.phase.name}")
        return self._state.sums

    @property
    def outcome(self) -> RoundOutcome:
        if not isinstance(self._state, states.Done) or self._state.outcome is None:
            raise WrongPhase(f"the round is {self.phase.name}")
        return self._state.outcome

    def __repr__(self) -> str:
        return f"RoundServer({self.phase.name})"


def as_downloaded(values: NDArray[np.float32], precision: str) -> NDArray[Any]:
    """Return rows in the precision of the download; what half precision cannot hold is cut to its largest."""
    kind = np.dtype(precision)
    limit = np.finfo(kind).max
    return np.clip(values, -limit, limit).astype(kind.newbyteorder("<"))


def require_rows(union: Indices) -> None:
    if not len(union):
        raise UnionFailed("nobody in the cohort has a row to train: the union is empty", capacity=1)
