"""A client of a round over hot rows: a state machine without I/O, and what it adds to the sum (spec hot)."""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfsl.arrays import Indices, Reals, Values
from sfsl.crypto.ring import Z32, Words
from sfsl.crypto.secret import Randomness
from sfsl.errors import Deceived, InputError, InvalidMessage, NotFinite, ParameterError, Refused, WrongPhase
from sfsl.privacy.accounting import honest_survivors
from sfsl.privacy.noise import DiscreteGaussian
from sfsl.rounds import states
from sfsl.rounds.client import AnyClient, Download, Trained
from sfsl.rounds.exchanges import HotInvitation
from sfsl.rounds.hot import (
    CUT_SHARE,
    SAMPLE_SHARE,
    SCORES_SHARE,
    UPDATE_SHARE,
    HotParams,
    Published,
    blob_bytes,
    blob_digest,
)
from sfsl.rounds.params import IndexSpace, RoundPolicy
from sfsl.secagg import messages
from sfsl.secagg.client import Start
from sfsl.secagg.graph import default_graph
from sfsl.secagg.messages import SessionParams
from sfsl.submodel import ModelSpec, RowSet
from sfsl.submodel.quantize import round_stochastic
from sfsl.submodel.store import initial_rows


class HotMemory(Protocol):
    """What a client of these rounds remembers. ``ClientState`` debits durably before anything leaves."""

    def spend(self, round_id: bytes, rho: float) -> None:
        """Debit what taking part costs, or raise: once for each round."""

    def owned(self) -> Mapping[str, Indices]:
        """Return the rows of its data, by shared table."""


class HotClient(AnyClient[HotMemory]):
    """Takes part in one round over hot rows; its policy has its owner's limits."""

    moves = states.HOT_MOVES
    sums = 1

    def handle_invitation(self, invitation: HotInvitation) -> messages.SealedShares:
        """Share secrets, if the round is one that this client's owner allows."""
        self._due(HotInvitation, states.CheckedIn)
        params, session = invitation.round, invitation.roster.params
        if params.model != self._own.model:
            raise Refused("the round is for another model than this client has")
        if session.sums != params.sums():
            raise Refused("the sum that was announced is not that of this round")
        rho = require_hot(self._own.policy, params, session)
        answer = self.session.handle_roster(invitation.roster)
        self._enter(states.HotShared(params, session.round_id, rho))
        return answer

    def handle_survey(self, inbound: messages.InboundShares) -> messages.MaskedVector:
        """Send marks of the own rows, under noise and masks; debited before they leave."""
        state = self._due(messages.InboundShares, states.HotShared)
        if state.params.kind != "survey":
            raise WrongPhase("this round trains, and is no survey")
        vector = survey_vector(state.params, self._own.memory.owned(), self._rounding)
        start = self.session.handle_inbound(inbound, state.params.context(self._own.names))
        self._enter(states.HotTraining(state.params, state.round_id, state.rho, start, {}))
        return self._leave(vector)

    def handle_model(self, inbound: messages.InboundShares, published: Published) -> Download:
        """Check what was downloaded and hand it over for training."""
        state = self._due(messages.InboundShares, states.HotShared)
        if state.params.kind != "train":
            raise WrongPhase("this round is a survey, in which nobody trains")
        download = open_published(state.params, published)
        start = self.session.handle_inbound(inbound, state.params.context(self._own.names))
        self._enter(states.HotTraining(state.params, state.round_id, state.rho, start, download.asked))
        if not state.params.hides_samples(state.rho):
            download = replace(download, scores=self._own.policy.limits.scores(download.scores))
        return download

    def create_update(self, trained: Trained) -> messages.MaskedVector:
        """Send what was learned, under noise and masks; debited before it leaves."""
        state = self._due(Start, states.HotTraining)
        if not state.params.hides_samples(state.rho):
            counted = self._own.policy.limits.counted(state.params.scores, trained.scores)
            trained = replace(trained, scores=counted)
        return self._leave(learned_vector(state.params, state.sets, trained, self._rounding))

    def _leave(self, vector: NDArray[np.int64]) -> messages.MaskedVector:
        state = self._due(Start, states.HotTraining)
        with self._leaving():
            self._own.memory.spend(state.round_id, state.rho)
            words = with_noise(state.params, vector, self._own.randomness)
            answer = self.session.create_masked(state.start, words)
        self._enter(states.Uploaded())
        return answer


def require_hot(policy: RoundPolicy, params: HotParams, session: SessionParams) -> float:
    """Return what the round costs a client by its own count of who is honest; refuse what it does not allow.

    A client trusts neither the server's claims about noise nor all others: those that may collude with the
    server add no noise for it.
    """
    limits = policy.hot
    if limits is None:
        raise Refused("a round over hot rows, which this client does not take part in")
    try:
        honest = honest_survivors(session.fewest, session.clients, limits.corruption)
        rho = params.rho(honest)
    except ParameterError as error:  # of the server's choosing
        raise Refused(f"noise that covers nothing: {error}") from None
    if session.neighbours is not None:
        graph = default_graph(session.clients, corruption=limits.corruption)
        if session.neighbours < graph.neighbours or session.threshold < graph.threshold:
            raise Refused(
                f"{session.neighbours} neighbours, of whom {session.threshold} open a secret; among "
                f"{session.clients} clients this one wants {graph.neighbours} and {graph.threshold}"
            )
    if rho > limits.max_rho:
        raise Refused(
            f"a round that costs rho = {rho:.4g}; this client's owner allows {limits.max_rho:.4g} a round"
        )
    if params.kind == "train" and params.clip > policy.max_clip:
        raise Refused(f"updates of a norm up to {params.clip:g}, this client allows {policy.max_clip:g}")
    if params.kind == "survey" and params.marks > limits.max_marks:
        raise Refused(f"a survey of {params.marks} marks, this client allows {limits.max_marks}")
    size = 4 * params.length + (blob_bytes(params) if params.kind == "train" else 0)
    if size > limits.max_bytes:
        raise Refused(f"a round that takes {size:,} bytes, this client allows {limits.max_bytes:,}")
    return rho


def open_published(params: HotParams, published: Published) -> Download:
    """Read what was downloaded, once it has proved to be what everyone was promised."""
    if published.hot.digest() != params.hot or blob_digest(published.blob) != params.blob:
        raise Deceived("the model that was downloaded is not the one that the round was announced with")
    if len(published.blob) != blob_bytes(params):
        raise InvalidMessage(f"a model of {len(published.blob)} bytes where {blob_bytes(params)} are due")
    sets = published.hot.sets(params.model)
    start, rows = 4 * params.model.dense, {}
    dense = np.frombuffer(published.blob, "<f4", count=params.model.dense).astype(np.float32)
    kind = np.dtype(params.precision).newbyteorder("<")
    for table in params.model.summed:
        count = len(sets[table.name])
        if count != params.rows[table.name]:
            raise InvalidMessage(
                f"{count} hot rows of table {table.name!r}, {params.rows[table.name]} are due"
            )
        part = np.frombuffer(published.blob, kind, count=count * table.width, offset=start)
        rows[table.name] = part.astype(np.float32).reshape(count, table.width)
        start += part.nbytes
    if not all(np.isfinite(one).all() for one in (dense, *rows.values())):
        raise InvalidMessage("NaN or infinity in a downloaded model")
    cold = partial(_initial, params.model, params.seed)
    return Download(sets, rows, dense, dict(params.training), params.scores, cold)


def _initial(model: ModelSpec, seed: bytes, table: str, rows: Indices) -> Values:
    return initial_rows(seed, model.table(table), rows)


def survey_vector(params: HotParams, own: Mapping[str, Indices], randomness: Randomness) -> NDArray[np.int64]:
    """Mark the client's rows; of more than ``marks``, so many, each choice of them equally likely."""
    space = IndexSpace(params.model)
    indices = np.unique(space.indices(own))
    if len(indices) > params.marks:
        tickets = np.frombuffer(randomness.bytes(16 * len(indices)), ">u8").reshape(-1, 2)
        indices = indices[np.lexsort((tickets[:, 1], tickets[:, 0]))[: params.marks]]
    vector = np.zeros(params.length, np.int64)
    vector[indices] = params.levels
    return vector


def update_vector(
    params: HotParams, sets: Mapping[str, RowSet], trained: Trained, randomness: Randomness
) -> NDArray[np.int64]:
    """Return a client's update in words: its norm is at most ``params.sensitivity``, whatever it learned."""
    parts = [_finite(trained.dense, (params.model.dense,), "the dense part")]
    for table in params.model.summed:
        if (own := trained.rows.get(table.name)) is None:
            raise InputError(f"table {table.name!r} is not in this update; an empty set of rows would be")
        moves = np.zeros((len(sets[table.name]), table.width))
        places = sets[table.name].positions_of(own.rows.rows)
        moves[places] = _finite(own.deltas, (len(places), table.width), f"table {table.name!r}")
        parts.append(moves.ravel())
    update, cut = _within(np.concatenate(parts), UPDATE_SHARE * params.clip)
    scores = np.zeros(2 * params.bins)
    if trained.scores is not None:
        both = [_finite(one, (params.bins,), "a histogram of scores") for one in trained.scores]
        scores[:] = np.concatenate(both)
    counted, _ = _within(SAMPLE_SHARE * scores, SCORES_SHARE)
    vector = np.concatenate([update, params.clip * counted, [CUT_SHARE * params.clip if cut else 0.0]])
    # Rounding errors of floating point must not lead beyond the norm that noise is for.
    words = round_stochastic(vector * (params.levels / params.clip) * (1 - 1e-9), randomness)
    if math.sqrt(float(np.square(words.astype(np.float64)).sum())) > params.sensitivity:
        raise InputError("an update longer than it may be after rounding")
    return words


def learned_vector(
    params: HotParams, sets: Mapping[str, RowSet], trained: Trained, randomness: Randomness
) -> NDArray[np.int64]:
    """Return a client's update, or zeros where training went beyond all numbers. A client that stayed away
    because of what it learned would tell the server so, and nothing accounts for that."""
    try:
        return update_vector(params, sets, trained, randomness)
    except NotFinite:
        return np.zeros(params.length, np.int64)


def with_noise(params: HotParams, vector: NDArray[np.int64], randomness: Randomness) -> Words:
    """Add the client's noise, and return words of the ring."""
    if params.deviation:
        vector = vector + DiscreteGaussian(params.deviation).draw(len(vector), randomness)
    return vector.astype(Z32.dtype)


def _finite(given: ArrayLike, shape: tuple[int, ...], what: str) -> Reals:
    try:
        values = np.asarray(given, np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{what} of this update is no array of numbers ({error})") from None
    if values.shape != shape:
        raise InputError(f"{what} of this update has the shape {values.shape}; {shape} is due")
    if not np.isfinite(values).all():
        raise NotFinite(f"{what} of this update has numbers that are NaN or infinite; nothing was encoded")
    return values


def _within(vector: Reals, longest: float) -> tuple[Reals, bool]:
    """Cut a vector to a norm, and say whether that was needed. Squares of large numbers may be infinite, so
    the norm is taken in units of the largest."""
    largest = float(np.abs(vector).max(initial=0.0))
    if largest * math.sqrt(vector.size) <= longest:
        return vector, False
    inside = vector / largest
    norm = float(np.linalg.norm(inside))
    return (inside * (longest / norm), True) if norm > longest / largest else (vector, False)
