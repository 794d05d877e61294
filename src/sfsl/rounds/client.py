"""One client of a round: a state machine without I/O (spec round 4).

Training is not done here: ``handle_submodel`` returns what was downloaded, the caller trains, and
``create_update`` takes the result.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfsl.arrays import Indices, Values
from sfsl.crypto.kdf import digest
from sfsl.crypto.randomness import Randomness
from sfsl.crypto.ring import Words
from sfsl.errors import InputError, InvalidMessage, Refused, WrongPhase, WrongRound
from sfsl.rounds.index_space import IndexSpace
from sfsl.rounds.messages import Invitation, Request, Submodel
from sfsl.rounds.params import RoundParams, RoundPolicy
from sfsl.rounds.score_bins import ScoreBins
from sfsl.secagg.client import Client, Start
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
from sfsl.secagg.rows import request_bitmaps
from sfsl.submodel import ModelSpec, RowMaps, RowSet, TrainedRows, encode_update
from sfsl.union.client import read_union
from sfsl.union.encoding import index_set
from sfsl.union.messages import Union


class Phase(Enum):
    NEW = auto()
    CHECKED_IN = auto()
    SHARED = auto()
    UNITING = auto()
    AWAITS_UNION = auto()
    REQUESTED = auto()
    TRAINING = auto()
    UPLOADED = auto()
    FINISHED = auto()
    LEFT = auto()


@dataclass(frozen=True)
class Download:
    """A submodel: per table the rows asked for and their values, the dense part, the hyperparameters.

    ``scores`` are the bins in which scores of held-out samples are counted; None where they are not.
    """

    asked: dict[str, RowSet]
    rows: dict[str, Values]
    dense: Values
    training: dict[str, float]
    scores: ScoreBins | None = None


@dataclass(frozen=True)
class Trained:
    """What training made of a submodel. ``scores``: two histograms, of positives and of negatives."""

    dense: ArrayLike
    samples: int
    rows: Mapping[str, TrainedRows]
    scores: tuple[ArrayLike, ArrayLike] | None = None


class Answers(Protocol):
    """What a client says about its indices. ``ClientState`` debits it durably before it leaves."""

    def expose(self, round_id: bytes) -> Mapping[str, Indices]:
        """The rows it brings to the union, by shared table."""

    def answer(
        self, round_id: bytes, unions: Mapping[str, ArrayLike], randomness: Randomness
    ) -> Mapping[str, NDArray[np.bool_]]:
        """Which rows of each union it asks for."""


class RoundClient:
    """Takes part in one round. ``answers`` is its privacy state, in which the period has begun.

    ``rounding`` draws how numbers are rounded, where a simulation wants that to repeat itself.
    """

    def __init__(
        self,
        session: Client,
        answers: Answers,
        model: ModelSpec,
        maps: RowMaps,
        policy: RoundPolicy,
        randomness: Randomness,
        rounding: Randomness | None = None,
    ) -> None:
        self.phase = Phase.NEW
        self._session = session
        self._answers = answers
        self._model = model
        self._maps = maps
        self._policy = policy
        self._randomness = randomness
        self._rounding = rounding or randomness
        self._space = IndexSpace(model)

    def create_keys(self) -> Keys:
        self._require_phase(Phase.NEW)
        keys = self._session.create_keys()
        self.phase = Phase.CHECKED_IN
        return keys

    # -- exchange 1 ----------------------------------------------------------------------------

    def handle_invitation(self, invitation: Invitation) -> SealedShares:
        self._require_phase(Phase.CHECKED_IN)
        params, roster = invitation.round, invitation.roster
        self._policy.require(params, self._model)
        if roster.params.sums != params.sums():
            raise Refused("the sums that were announced are not those of this round")
        if params.union.domain != self._space.domain:
            raise Refused("the union is over another index space than the model's shared tables")
        if roster.params.clients > params.update.rows.cohort:
            raise Refused("more clients than the quantization was planned for: the sum could overflow")
        answer = self._session.handle_roster(roster)
        self._params: RoundParams = params
        self._encoding = params.union.build()
        self._round_id = roster.params.round_id
        self.phase = Phase.SHARED
        return answer

    # -- exchange 2 ----------------------------------------------------------------------------

    def handle_inbound(self, inbound: InboundShares) -> MaskedVector:
        """The exposure is debited before the masked set leaves, and never refunded."""
        self._require_phase(Phase.SHARED)
        start = self._session.handle_inbound(inbound, self._params.context())
        self.phase = Phase.LEFT  # whatever fails from here on, this client is a dropout
        submitted = self._space.indices(self._answers.expose(self._round_id))
        elements = index_set(submitted, self._space.domain, self._encoding.capacity)
        vector = self._encoding.encode(elements, self._randomness)
        answer = self._session.create_masked(start, vector)
        self.phase = Phase.UNITING
        return answer

    # -- exchanges 3 and 6 ---------------------------------------------------------------------

    def handle_survivors(self, lists: Survivors) -> Consistency:
        return self._session.handle_survivors(lists)

    def handle_unmask(self, request: UnmaskRequest) -> UnmaskShares:
        after = {Phase.UNITING: Phase.AWAITS_UNION, Phase.UPLOADED: Phase.FINISHED}
        if self.phase not in after:
            raise WrongPhase(f"nothing to open: this client is {self.phase.name}")
        answer = self._session.handle_unmask(request)
        self.phase = after[self.phase]
        return answer

    # -- exchange 4 ----------------------------------------------------------------------------

    def handle_union(self, message: Union) -> Request:
        """Answer, with randomized response, for every row of the union; debited before it leaves."""
        self._require_phase(Phase.AWAITS_UNION)
        union = read_union(message, self._round_id, self._encoding)
        shared = self._space.rows(union)
        unions = self._maps.with_derived(shared)
        self.phase = Phase.LEFT  # an answer is drawn once; whatever fails from here on, this client is out
        answers = self._answers.answer(
            self._round_id, {name: rows.rows for name, rows in shared.items()}, self._randomness
        )
        asked = self._maps.with_derived({name: rows.at(answers[name]) for name, rows in shared.items()})
        self._require_size(asked)
        self._layout = self._params.layout(unions)
        self._asked, self._positions = (
            asked,
            tuple(unions[table.name].positions_of(asked[table.name].rows) for table in self._model.summed),
        )
        bitmaps = request_bitmaps(self._layout, self._positions)
        self._union_digest = digest("union indices", message.packed)
        self.phase = Phase.REQUESTED
        return Request(self._round_id, self._session.position, bitmaps, self._session.sign_request(bitmaps))

    # -- exchange 5 ----------------------------------------------------------------------------

    def handle_submodel(self, submodel: Submodel) -> Download:
        """Check what was downloaded and hand it over for training."""
        self._require_phase(Phase.REQUESTED)
        if submodel.round_id != self._round_id:
            raise WrongRound("a submodel of another round")
        others = [place for place in submodel.participants if place != self._session.position]
        requesters, requests = self._session.read_requesters(
            self._layout, others, self._positions, submodel.requesters, submodel.requests
        )
        rows = {
            table.name: _floats(data, (len(self._asked[table.name]), table.width), self._params.precision)
            for table, data in zip(
                self._model.summed, _as_many(submodel.rows, self._model.summed), strict=True
            )
        }
        dense = _floats(submodel.dense, (self._model.dense,), "float32")
        # The dense model and the union are the same for all: whoever was told otherwise adds up to noise.
        context = digest(
            "update", self._params.context(), self._union_digest, digest("dense", submodel.dense)
        )
        self._start = Start(
            self._layout, submodel.participants, self._positions, requesters, context, requests
        )
        self.phase = Phase.TRAINING
        return Download(self._asked, rows, dense, dict(self._params.training), self._params.scores)

    def create_update(self, trained: Trained) -> MaskedVector:
        self._require_phase(Phase.TRAINING)
        words = encode_update(
            self._model,
            self._params.update,
            dense=trained.dense,
            samples=trained.samples,
            trained=trained.rows,
            randomness=self._rounding,
        )
        scores = histogram_words(trained.scores, self._params.bins, words.dense.dtype)
        tables = words.over([self._asked[table.name] for table in self._model.summed])
        answer = self._session.create_masked(self._start, np.concatenate([words.dense, scores]), tables)
        self.phase = Phase.UPLOADED
        return answer

    # ------------------------------------------------------------------------------------------

    def _require_phase(self, phase: Phase) -> None:
        if self.phase is not phase:
            raise WrongPhase(f"this client is {self.phase.name}, this needs {phase.name}")

    def _require_size(self, asked: Mapping[str, RowSet]) -> None:
        """Declined, never trimmed: what is left out would depend on the client's data."""
        rows = sum(len(some) for some in asked.values())
        if rows > self._policy.max_rows:
            raise Refused(f"a submodel of {rows} rows, this client allows {self._policy.max_rows}")

    def __repr__(self) -> str:
        return f"RoundClient({self.phase.name})"


def _as_many(blobs: tuple[bytes, ...], tables: tuple[Any, ...]) -> tuple[bytes, ...]:
    if len(blobs) != len(tables):
        raise InvalidMessage(f"rows of {len(blobs)} tables, the model has {len(tables)}")
    return blobs


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
    """The two histograms one behind the other, as words of the ring."""
    if scores is None:
        return np.zeros(2 * bins, dtype)
    both = np.concatenate([np.asarray(one) for one in scores])
    if both.shape != (2 * bins,) or (both.size and both.dtype.kind not in "iu"):
        raise InputError(f"score histograms are two arrays of {bins} counts")
    return both.astype(dtype)
