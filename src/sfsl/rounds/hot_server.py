"""The server's side of rounds over hot rows: the plan, the sum, and what it makes of the model (spec hot).

Everything after the sum is post-processing: it costs no privacy.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from sfsl.arrays import Counts, Reals
from sfsl.codec import Message
from sfsl.crypto.ring import Words
from sfsl.errors import ParameterError, WrongPhase
from sfsl.privacy.accounting import deviation_for, honest_survivors, multiplier
from sfsl.rounds.exchanges import HotInvitation
from sfsl.rounds.hot import (
    CUT_SHARE,
    SAMPLE_SHARE,
    HotParams,
    HotState,
    Published,
    Said,
    blob_digest,
    blocks_of,
    choose_hot,
    listen,
)
from sfsl.rounds.hot_bounds import Bounds, Part
from sfsl.rounds.params import HotRules, IndexSpace, RoundRules, ScoreBins
from sfsl.rounds.record import RoundOutcome
from sfsl.rounds.server import as_downloaded
from sfsl.secagg.messages import Keys, SessionParams
from sfsl.secagg.server import Server
from sfsl.secagg.states import ServerPhase as SessionPhase
from sfsl.submodel import Applied, Commit, ModelSpec, ModelSums, RowMaps, RowSet, RowStore, apply_sums
from sfsl.submodel.quantize import WeightedSums

# Words stay this many deviations of the noise, and all clients' clips, away from where they would wrap.
_DEVIATIONS = 10
_HALF = 2**31
# A clip's worth of words, in roots of the length of a vector: rounding costs a fortieth of it.
_LEVELS = 40
MOST_SURVEYED = 1 << 22  # rows: 16 MiB from each client, once
# Noise of one client in words, at the least.
_FINE = 20
# By how much the clip follows the share of clients that were cut, whose target is a half.
_FOLLOW = 1.0


@dataclass(frozen=True)
class HotSums:
    """What a cohort opened, as signed numbers."""

    words: NDArray[np.int64]
    survivors: tuple[str, ...]


@dataclass(frozen=True)
class HotRound:
    """A round that the server has planned: its parameters, what everybody downloads, and what the rounds
    before it left."""

    params: HotParams
    state: HotState
    rules: RoundRules
    published: Published | None = None

    @property
    def number(self) -> int:
        return self.params.number

    def rho(self, clients: int) -> float:
        """Return what the round costs each of so many clients that were invited."""
        return self.params.rho(honest_of(self.rules, clients))

    def contents(self) -> dict[bytes, bytes]:
        """Return what everybody downloads, in bytes, by its digest; nothing in a survey."""
        if self.published is None:
            return {}
        return {self.params.hot: self.published.hot.encode(), self.params.blob: self.published.blob}

    def read(self, words: Words, survivors: tuple[str, ...]) -> HotSums:
        return HotSums(words.view(np.int32).astype(np.int64), survivors)

    def conclude(self, store: RowStore, maps: RowMaps, sums: HotSums) -> RoundOutcome:
        """Return what the sum makes of the model, or of the counts. The store is only read."""
        if self.params.kind == "survey":
            return self._counted(maps, sums)
        return self._moved(store, sums)

    def _counted(self, maps: RowMaps, sums: HotSums) -> RoundOutcome:
        state, rules, params = self.state, _hot(self.rules), self.params
        counts = sums.words / params.levels + (np.frombuffer(state.counts, "<f8") if state.counts else 0.0)
        state = msgspec.structs.replace(
            state,
            surveys=state.surveys + 1,
            surveyed=state.surveyed + len(sums.survivors),
            variance=state.variance + len(sums.survivors) * (params.deviation / params.levels) ** 2,
            counts=counts.astype("<f8").tobytes(),
        )
        if state.surveys >= rules.surveys:
            old = state.hot_set()
            found = choose_hot(
                params.model,
                maps,
                counts,
                state.surveyed,
                math.sqrt(state.variance),
                rules.words(params.model, self.rules.bins, self.rules.precision),
                version=1 if old is None else old.version + 1,
            )
            state = HotState(surveys=state.surveys, hot=found.encode(), clip=state.clip)
        applied = Applied(Commit(params.number), {}, {}, dense_refused=False)
        return RoundOutcome(applied, sums.survivors, {}, {}, None, hot=state)

    def _moved(self, store: RowStore, sums: HotSums) -> RoundOutcome:
        assert self.published is not None  # noqa: S101 -- whoever plans a round that trains publishes
        params, hot = self.params, self.published.hot
        values: Reals = (sums.words * (params.clip / params.levels)).astype(np.float64)
        clients, sets = len(sums.survivors), hot.sets(params.model)
        noise = params.deviation * math.sqrt(clients) * params.clip / params.levels
        owners, parts, start = dict[str, Counts](), dict[str, Part](), params.model.dense
        for table in params.model.summed:
            end = start + len(sets[table.name]) * table.width
            owners[table.name] = np.maximum(1, np.rint(hot.shares(table.name) * clients)).astype(np.int64)
            parts[table.name] = Part(values[start:end].reshape(-1, table.width), owners[table.name])
            start = end
        whole = Part(values[: params.model.dense][None], np.array([max(1, clients)]))
        bounds, said = Bounds(params, max(1, clients), noise), dict(self.state.said)
        *cut_rows, cut_dense = bounds.model([*parts.values(), whole])
        rows = {}
        for (name, part), cut_sums in zip(parts.items(), cut_rows, strict=True):
            seen = self._listen(said, name, cut_sums, part.owners, noise) if noise else None
            changed = int((cut_sums != part.sums).any(axis=1).sum())
            rows[name] = WeightedSums(cut_sums, part.owners, changed, noise, seen)
        dense = WeightedSums(
            cut_dense, np.array([clients]), 0, noise, self._heard(said, cut_dense[0], clients, noise)
        )
        model = ModelSums(sets, rows, dense)
        applied = apply_sums(store, self.rules.update_in(params.number), model, selection=b"")
        scores = None
        if params.bins:
            counted = bounds.histograms(values[start : start + 2 * params.bins])
            counted = counted / (SAMPLE_SHARE * params.clip)
            clicks, others = np.maximum(0, np.rint(counted)).astype(np.int64).reshape(2, -1)
            scores = (clicks, others)
        cut = float(np.clip(values[-1] / (CUT_SHARE * params.clip * max(1, clients)), 0, 1))
        clip = params.clip * math.exp(_FOLLOW * (cut - 0.5))
        state = msgspec.structs.replace(self.state, clip=float(np.clip(clip, 1e-4, 1e4)), said=said)
        noise = params.deviation * math.sqrt(clients) / (params.levels * SAMPLE_SHARE)
        return RoundOutcome(applied, sums.survivors, sets, owners, scores, params.scores, state, noise)

    def _heard(self, said: dict[str, Said], dense: Reals, clients: int, noise: float) -> Reals | None:
        """Listen to the dense part, block by block; None where there is no noise, or nothing to listen to."""
        if not (noise and len(dense)):
            return None
        at = blocks_of(len(dense))
        seen = np.zeros(len(dense))
        seen[at] = self._listen(said, "", dense[at], np.full(len(at), clients), noise)
        return seen

    def _listen(self, said: dict[str, Said], part: str, sums: Reals, owners: Counts, noise: float) -> Reals:
        """Take in noisy sums of one part of the model, of the dense part as blocks, and return what is seen
        of an owner's squared move by now."""
        clip = self.params.clip
        said[part] = listen(said.get(part), sums / clip, owners, noise / clip)
        return clip**2 * said[part].seen(noise / clip)


def plan_hot(
    rules: RoundRules,
    model: ModelSpec,
    store: RowStore,
    *,
    clients: int,
    state: HotState,
    scores: ScoreBins | None = None,
) -> HotRound:
    """Plan the next round of so many clients: a survey, until there were as many as the rules want."""
    own, number = _hot(rules), store.round + 1
    honest = honest_of(rules, clients)
    if state.counts and len(state.counts) != 8 * IndexSpace(model).domain:
        state = HotState(hot=state.hot, clip=state.clip)  # the catalogue grew: surveys begin anew
    if state.surveys < own.surveys:
        if (domain := IndexSpace(model).domain) > MOST_SURVEYED:
            raise ParameterError(
                f"the shared tables have {domain:,} rows, and a survey takes a word of each: at most "
                f"{MOST_SURVEYED:,} are possible; make the tables as large as the catalogue is"
            )
        # A mark is so many words that noise of a few words is not too coarse for it.
        levels = (
            1
            if math.isinf(own.survey_rho)
            else math.ceil(_FINE * math.sqrt(honest / own.marks) / multiplier(own.survey_rho))
        )
        draft = HotParams(
            number=number, kind="survey", model=model, deviation=0, levels=levels, marks=own.marks
        )
        return HotRound(_with_noise(draft, own.survey_rho, honest, clients), state, rules)
    hot = state.hot_set()
    if hot is None:
        raise ParameterError("surveys are done, and there are no hot rows; the store is of another scheme")
    sets = hot.sets(model)
    draft = HotParams(
        number=number,
        kind="train",
        model=model,
        deviation=0,
        clip=state.clip or own.clip,
        rows={name: len(rows) for name, rows in sets.items()},
        hot=hot.digest(),
        blob=bytes(32),
        seed=store.spec.seed,
        training=dict(rules.training(number)),
        precision=rules.precision,
        scores=rules.score_bins(scores),
    )
    levels = min(math.ceil(_LEVELS * math.sqrt(draft.length)), _HALF // (4 * clients))
    blob = _blob(draft, store, sets)
    draft = msgspec.structs.replace(draft, levels=levels, blob=blob_digest(blob))
    return HotRound(_with_noise(draft, own.rho, honest, clients), state, rules, Published(hot, blob))


def honest_of(rules: RoundRules, clients: int) -> int:
    """Return how many honest clients are certainly in a sum of so many that opens."""
    return honest_survivors(rules.threshold_of(clients), clients, _hot(rules).corruption)


def _with_noise(params: HotParams, rho: float, honest: int, clients: int) -> HotParams:
    """Return the parameters with as much noise as it takes for each to pay rho."""
    params = msgspec.structs.replace(params, deviation=deviation_for(rho, params.sensitivity, honest))
    largest = clients * params.sensitivity + _DEVIATIONS * params.deviation * math.sqrt(clients)
    if largest >= _HALF:
        raise ParameterError(
            f"{clients} clients with noise of {params.deviation:,.0f} words each could wrap around in words "
            "of 32 bits; allow more epsilon, or take fewer clients"
        )
    return params


def _blob(params: HotParams, store: RowStore, sets: Mapping[str, RowSet]) -> bytes:
    parts = [store.read_dense().values.astype("<f4").tobytes()]
    for table in params.model.summed:
        values = store.read_rows(table.name, sets[table.name]).values
        parts.append(as_downloaded(values, params.precision).tobytes())
    return b"".join(parts)


def _hot(rules: RoundRules) -> HotRules:
    if rules.hot is None:
        raise ParameterError("these rules are not for rounds over hot rows")
    return rules.hot


class HotServer:
    """Runs one such round for the clients whose ``keys`` were taken at check-in, as ``RoundServer`` does."""

    def __init__(
        self,
        session: SessionParams,
        plan: HotRound,
        keys: Sequence[Keys],
        store: RowStore,
        maps: RowMaps,
        identities: Mapping[str, bytes] | None = None,
        *,
        alone: bool = True,
        names: bytes = b"",
    ) -> None:
        if session.sums != plan.params.sums():
            raise ParameterError("the session's sum is not that of this round")
        self._plan, self._store, self._maps, self._alone = plan, store, maps, alone
        self._session = Server(session, keys, identities, context=plan.params.context(names))
        self._sums: HotSums | None = None
        self._outcome: RoundOutcome | None = None

    def invitations(self) -> dict[str, HotInvitation]:
        return self._session.invitations(lambda roster: HotInvitation(roster, self._plan.params))

    def receive(self, client: str, message: Message) -> None:
        self._session.receive(client, message)

    def close_phase(self) -> dict[str, Message]:
        """End the phase and return what each remaining client is to be sent; or abort, for good."""
        outbound = self._session.close_phase()
        if self._session.phase is SessionPhase.OPENED:
            opened = self._session.opened
            self._sums = self._plan.read(opened.dense, opened.survivors)
            if self._alone:
                self._outcome = self._plan.conclude(self._store, self._maps, self._sums)
        return outbound

    @property
    def sums(self) -> HotSums:
        if self._sums is None:
            raise WrongPhase("the round is not over")
        return self._sums

    @property
    def outcome(self) -> RoundOutcome:
        if self._outcome is None:
            raise WrongPhase("the round is not over")
        return self._outcome
