"""One client of a round: a state machine without I/O (spec round 4). ``AnyClient`` is what clients of every
kind of round have in common.

Training is not done here: ``handle_submodel`` returns what was downloaded, the caller trains, and
``create_update`` takes the result. ``states`` has what a client knows in each phase.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfsl.arrays import Indices, Values
from sfsl.crypto.ring import Words
from sfsl.crypto.secret import Identity, Randomness, digest
from sfsl.errors import InputError, InvalidMessage, Refused
from sfsl.rounds import states
from sfsl.rounds.commitment import require_committed, update_context
from sfsl.rounds.exchanges import SUMS, Invitation, Request, Submodel
from sfsl.rounds.params import IndexSpace, RoundPolicy, ScoreBins
from sfsl.rounds.states import Phase as Phase
from sfsl.secagg import messages
from sfsl.secagg.client import Client, Start
from sfsl.secagg.masking import request_bitmaps
from sfsl.secagg.states import Machine, State, require_round
from sfsl.submodel import ModelSpec, RowMaps, RowSet, TrainedRows, encode_update
from sfsl.union.encoding import index_set
from sfsl.union.protocol import Union, read_union


@dataclass(frozen=True)
class Download:
    """A submodel: per table the rows asked for and their values, the dense part, the hyperparameters.
    ``scores`` are the bins in which scores of held-out samples are counted; None where they are not. ``cold``
    has the first values of rows that are not in it, which a client of hot rows keeps to itself."""

    asked: dict[str, RowSet]
    rows: dict[str, Values]
    dense: Values
    training: dict[str, float]
    scores: ScoreBins | None = None
    cold: Callable[[str, Indices], Values] | None = None


@dataclass(frozen=True)
class Trained:
    """What training made of a submodel. ``scores`` are two histograms, of positives and of negatives."""

    dense: ArrayLike
    samples: int
    rows: Mapping[str, TrainedRows]
    scores: tuple[ArrayLike, ArrayLike] | None = None


class Answers(Protocol):
    """What a client says about its indices. ``ClientState`` debits it durably before it leaves."""

    def expose(self, round_id: bytes) -> Mapping[str, Indices]:
        """Return the rows it brings to the union, by shared table."""

    def answer(
        self, round_id: bytes, unions: Mapping[str, ArrayLike], randomness: Randomness
    ) -> Mapping[str, NDArray[np.bool_]]:
        """Say which rows of each union it asks for."""


Remembered = TypeVar("Remembered", covariant=True)


@dataclass(frozen=True)
class Own(Generic[Remembered]):
    """What a client of a round has of its own, whatever a server says: its memory, its terms, its chance.

    ``memory`` is its privacy state: ``Answers``, in which the period has begun, or ``HotMemory``.
    ``rounding`` draws how numbers are rounded, where a simulation wants that to repeat itself. ``names`` is
    the digest of what rows are called, where it was told. ``identity`` and ``identities`` are as
    ``secagg.Client`` has them.
    """

    memory: Remembered
    model: ModelSpec
    maps: RowMaps
    policy: RoundPolicy
    randomness: Randomness
    rounding: Randomness | None = None
    names: bytes = b""
    identity: Identity | None = None
    identities: Mapping[str, bytes] | None = None


class AnyClient(Machine[State], Generic[Remembered]):
    """Takes part in one round of any kind, of ``sums`` secure sums. ``state`` is that of a client that was
    put away."""

    sums: ClassVar[int]

    def __init__(self, session: Client, own: Own[Remembered], state: State | None = None) -> None:
        super().__init__(state or states.New())
        self.session, self._own = session, own
        self._rounding = own.rounding or own.randomness

    @classmethod
    def join(
        cls, name: str, own: Own[Remembered], kept: State | None = None, state: State | None = None
    ) -> Self:
        """Return a client with a session of its own: a new one, or that which was ``kept``."""
        session = Client(
            name,
            own.policy.session,
            own.randomness,
            sums=cls.sums,
            identity=own.identity,
            identities=own.identities,
            state=kept,
        )
        return cls(session, own, state)

    def create_keys(self) -> messages.Keys:
        self._due(messages.Keys, states.New)
        keys = self.session.create_keys()
        self._enter(states.CheckedIn())
        return keys

    def handle_survivors(self, lists: messages.Survivors) -> messages.Consistency:
        self._due(messages.Survivors, State)
        return self.session.handle_survivors(lists)

    def handle_unmask(self, request: messages.UnmaskRequest) -> messages.UnmaskShares:
        state = self._due(messages.UnmaskRequest, State)
        answer = self.session.handle_unmask(request)
        if isinstance(state, states.Invited):  # the union is open, and the sum of updates comes
            self._enter(states.AwaitsUnion(state.params, state.encoding, state.round_id))
        else:
            self._enter(states.Finished())
        return answer

    @contextmanager
    def _leaving(self) -> Iterator[None]:
        """Make this client a dropout if anything fails: what it exposes or draws is not made twice."""
        try:
            yield
        except BaseException:
            self._enter(states.Left())
            raise

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.phase.name})"


class RoundClient(AnyClient[Answers]):
    """Takes part in one round of submodels."""

    moves = states.CLIENT_MOVES
    sums = SUMS

    def __init__(self, session: Client, own: Own[Answers], state: State | None = None) -> None:
        super().__init__(session, own, state)
        self._space, self._model, self._maps = IndexSpace(own.model), own.model, own.maps

    # -- exchange 1 ----------------------------------------------------------------------------

    def handle_invitation(self, invitation: Invitation) -> messages.SealedShares:
        self._due(Invitation, states.CheckedIn)
        params, roster = invitation.round, invitation.roster
        self._own.policy.require(params, self._model, roster.params.clients)
        if roster.params.sums != params.sums():
            raise Refused("the sums that were announced are not those of this round")
        if params.union.domain != self._space.domain:
            raise Refused("the union is over another index space than the model's shared tables")
        if roster.params.clients > params.update.rows.cohort:
            raise Refused("more clients than the quantization was planned for: the sum could overflow")
        after = states.Shared(params, params.union.build(), roster.params.round_id)
        answer = self.session.handle_roster(roster)
        self._enter(after)
        return answer

    # -- exchange 2 ----------------------------------------------------------------------------

    def handle_inbound(self, inbound: messages.InboundShares) -> messages.MaskedVector:
        """Send the masked set; its exposure is debited before it leaves, and never refunded."""
        state = self._due(messages.InboundShares, states.Shared)
        start = self.session.handle_inbound(inbound, state.params.context(self._own.names))
        with self._leaving():
            submitted = self._space.indices(self._own.memory.expose(state.round_id))
            elements = index_set(submitted, self._space.domain, self._space.domain)
            if len(elements) > state.encoding.capacity:
                # Silence would tell the server how large the set is, and a part of it what was left out.
                elements = elements[:0]
            vector = state.encoding.encode(elements, self._own.randomness)
            answer = self.session.create_masked(start, vector)
            self._enter(states.Uniting(state.params, state.encoding, state.round_id))
        return answer

    # -- exchange 4 ----------------------------------------------------------------------------

    def handle_union(self, message: Union) -> Request:
        """Answer, with randomized response, for every row of the union; debited before it leaves."""
        state = self._due(Union, states.AwaitsUnion)
        union = read_union(message, state.round_id, state.encoding)
        shared = self._space.rows(union)
        unions = self._maps.with_derived(shared)
        with self._leaving():  # an answer is drawn once
            answers = self._own.memory.answer(
                state.round_id, {name: rows.rows for name, rows in shared.items()}, self._own.randomness
            )
            asked = self._maps.with_derived({name: rows.at(answers[name]) for name, rows in shared.items()})
            self._require_size(asked)
            layout = state.params.layout(unions)
            positions = tuple(
                unions[table.name].positions_of(asked[table.name].rows) for table in self._model.summed
            )
            bitmaps = request_bitmaps(layout, positions)
            signature = self.session.sign_request(bitmaps)
            told, packed = (
                (state.params, state.encoding, state.round_id),
                digest("union indices", message.packed),
            )
            self._enter(states.Requested(*told, layout, asked, positions, packed))
        return Request(state.round_id, self.session.position, bitmaps, signature)

    # -- exchange 5 ----------------------------------------------------------------------------

    def handle_submodel(self, submodel: Submodel) -> Download:
        """Check what was downloaded and hand it over for training."""
        state = self._due(Submodel, states.Requested)
        params, summed = state.params, self._model.summed
        require_round(submodel.round_id, state.round_id, "a submodel")
        others = [place for place in submodel.participants if place != self.session.position]
        requesters, requests = self.session.read_requesters(
            state.layout, others, state.positions, submodel.requesters, submodel.requests
        )
        if len(submodel.rows) != len(summed):
            raise InvalidMessage(f"rows of {len(submodel.rows)} tables, the model has {len(summed)}")
        rows = {
            table.name: _floats(data, (len(state.asked[table.name]), table.width), params.precision)
            for table, data in zip(summed, submodel.rows, strict=True)
        }
        dense = _floats(submodel.dense, (self._model.dense,), "float32")
        if self.session.active:
            require_committed(submodel, self.session.binding, state.layout, state.positions)
        elif submodel.proof:
            raise InvalidMessage("a proof of rows outside active mode")
        # The model and the union are the same for all: whoever was told otherwise adds up to noise.
        context = update_context(params.context(self._own.names), state.union, submodel.dense, submodel.root)
        start = Start(state.layout, submodel.participants, state.positions, requesters, context, requests)
        self._enter(states.Training(params, state.asked, start))
        scores = self._own.policy.limits.scores(params.scores)
        return Download(state.asked, rows, dense, dict(params.training), scores)

    def create_update(self, trained: Trained) -> messages.MaskedVector:
        state = self._due(Start, states.Training)
        words = encode_update(
            self._model,
            state.params.update,
            dense=trained.dense,
            samples=trained.samples,
            trained=trained.rows,
            randomness=self._rounding,
        )
        counted = self._own.policy.limits.counted(state.params.scores, trained.scores)
        scores = histogram_words(counted, state.params.bins, words.dense.dtype)
        tables = words.over([state.asked[table.name] for table in self._model.summed])
        answer = self.session.create_masked(state.start, np.concatenate([words.dense, scores]), tables)
        self._enter(states.Uploaded())
        return answer

    # ------------------------------------------------------------------------------------------

    def _require_size(self, asked: Mapping[str, RowSet]) -> None:
        """Decline too large a submodel, never trim it: what is left out would depend on the client's data."""
        rows = sum(map(len, asked.values()))
        if rows > self._own.policy.max_rows:
            raise Refused(f"a submodel of {rows} rows, this client allows {self._own.policy.max_rows}")


def _floats(data: bytes, shape: tuple[int, ...], precision: str) -> Values:
    dtype = np.dtype(precision).newbyteorder("<")
    count = int(np.prod(shape))
    if len(data) != count * dtype.itemsize:
        raise InvalidMessage(f"{len(data)} bytes where {count} numbers of {dtype.itemsize} bytes are due")
    values = np.frombuffer(data, dtype).astype(np.float32).reshape(shape)
    if not np.isfinite(values).all():
        raise InvalidMessage("NaN or infinity in a downloaded model")
    return values


def histogram_words(scores: tuple[ArrayLike, ArrayLike] | None, bins: int, dtype: np.dtype[Any]) -> Words:
    """Put the two histograms one behind the other, as words of the ring."""
    if scores is None:
        return np.zeros(2 * bins, dtype)
    both = np.concatenate([np.asarray(one) for one in scores])
    if both.shape != (2 * bins,) or (both.size and both.dtype.kind not in "iu"):
        raise InputError(f"score histograms are two arrays of {bins} counts")
    return both.astype(dtype)
