"""Public parameters of a round, what a client insists on (spec round 2 and 3), and the rules by which a
deployment or a simulation plans rounds: ``plan_round`` is the only builder of a round's parameters."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol, Self

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import ArrayLike, NDArray

from sfsl.arrays import LARGEST_DOMAIN, Indices
from sfsl.codec import Checked
from sfsl.crypto.secret import digest
from sfsl.errors import InputError, ParameterError, Refused
from sfsl.secagg import SessionParams, default_threshold
from sfsl.secagg.graph import GraphPlan, default_graph
from sfsl.secagg.messages import MAX_COMPLETE, Layout, Policy, SumParams, TableShape
from sfsl.submodel import ModelSpec, RowSet, UpdateParams
from sfsl.submodel.update import MOST_PULL
from sfsl.union import UnionParams, planned_capacity

MAX_BINS = 4096
_FARTHEST = 50.0  # log-odds beyond which no score is told from 0 or 1
UPDATE_LABEL = "update"
_KEYS_AND_SHARES = 1 << 16  # bytes of a round beside the model and the vector, about


class ScoreBins(Checked, frozen=True):
    """Bins of the log-odds of scores from 0 to 1, all equally likely under a logistic distribution.

    A young model scores everything nearly alike, and its scores wander as a whole; bins of equal width
    could not tell them apart. So the bins follow: ``after`` puts them where the last scores were, as
    narrow as these were close together and as wide as they have moved. Both follow from opened sums, and
    cost no privacy.
    """

    bins: Annotated[int, Meta(ge=1, le=MAX_BINS)]
    centre: Annotated[float, Meta(ge=-_FARTHEST, le=_FARTHEST)] = 0.0
    scale: Annotated[float, Meta(ge=1e-6, le=_FARTHEST)] = 1.0

    @property
    def edges(self) -> NDArray[np.float64]:
        """The inner edges, as scores."""
        return np.asarray(1 / (1 + np.exp(-self._log_odds(np.arange(1, self.bins)))), np.float64)

    @property
    def log_odds(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """All edges, of which the outermost are infinite, and the middles of the bins, as log-odds."""
        with np.errstate(divide="ignore"):
            return self._log_odds(np.arange(self.bins + 1)), self._log_odds(np.arange(self.bins) + 0.5)

    def after(self, clicks: ArrayLike, others: ArrayLike) -> Self:
        """Return the bins of the next round, after these were counted."""
        counts = (np.asarray(clicks) + np.asarray(others)).astype(np.float64)
        if not counts.sum():
            return self
        share = counts / counts.sum()
        _, middle = self.log_odds
        centre = float(share @ middle)
        # Scores that share a bin are not known apart; a little of the scale allows for that.
        spread = max(float(np.sqrt(share @ (middle - centre) ** 2)), self.scale / 32)
        scale = 0.6 * spread + 0.8 * abs(centre - self.centre)
        return type(self)(
            bins=self.bins,
            centre=float(np.clip(centre, -_FARTHEST, _FARTHEST)),
            scale=float(np.clip(scale, 1e-6, _FARTHEST)),
        )

    def _log_odds(self, places: ArrayLike) -> NDArray[np.float64]:
        """Return the log-odds at these places, counted in bins from the left."""
        share = np.asarray(places, np.float64) / self.bins
        return np.asarray(self.centre + self.scale * np.log(share / (1 - share)), np.float64)


class IndexSpace:
    """Takes rows of the shared tables to indices of the union and back."""

    def __init__(self, model: ModelSpec) -> None:
        self._starts: dict[str, tuple[int, int]] = {}
        end = 0
        for table in model.tables:
            if table.kind == "shared":
                self._starts[table.name] = (end, end + table.rows)
                end += table.rows
        if not 0 < end <= LARGEST_DOMAIN:
            raise ParameterError(f"the shared tables have {end} rows in all; 1 to 2^63 are possible")
        self.domain = end

    def indices(self, rows: Mapping[str, Indices]) -> Indices:
        parts = [rows[name] + start for name, (start, _) in self._starts.items()]
        return np.concatenate([np.zeros(0, np.int64), *parts])

    def rows(self, indices: Indices) -> dict[str, RowSet]:
        """Split ascending indices by table."""
        split = {}
        for name, (start, end) in self._starts.items():
            first, last = np.searchsorted(indices, [start, end])
            split[name] = RowSet(indices[first:last] - start)
        return split


class RoundParams(Checked, frozen=True):
    """What a round is about. ``training`` holds hyperparameters for the clients, by name. ``precision`` is
    that of downloaded rows; the dense part always comes whole. ``scores`` are the bins of the two score
    histograms of the secure evaluation; None leaves it out."""

    number: Annotated[int, Meta(ge=1)]
    model: ModelSpec
    union: UnionParams
    update: UpdateParams
    min_contributors: Annotated[int, Meta(ge=1, le=65_535)]
    training: dict[Annotated[str, Meta(max_length=64)], float]
    precision: Literal["float32", "float16"] = "float32"
    scores: ScoreBins | None = None

    def require_sound(self) -> None:
        if len(self.training) > 64:
            raise ParameterError("at most 64 hyperparameters")

    @property
    def bins(self) -> int:
        """The number of bins of each of the two histograms."""
        return 0 if self.scores is None else self.scores.bins

    def sums(self) -> tuple[SumParams, SumParams]:
        """Return the session's two sums: the union, and the update, whose layout is known later."""
        ring, least = self.update.rows.ring, self.min_contributors
        return self.union.sum_params(), SumParams(
            label=UPDATE_LABEL, ring=ring, min_contributors=least, layout=None
        )

    def layout(self, unions: dict[str, RowSet]) -> Layout:
        """Lay out what is summed: dense part and weight, the histograms, and per table rows and weights."""
        shapes = (TableShape(rows=len(unions[one.name]), width=one.words) for one in self.model.summed)
        return Layout(dense=self.model.dense_words + 2 * self.bins, tables=tuple(shapes))

    def context(self, names: bytes = b"") -> bytes:
        """Digest everything a client was told about the round; it is bound into the masks of both sums.
        ``names`` is the digest of what rows are called, where the server says so (spec catalogue 4): clients
        that were told different names add up to noise."""
        return digest("round", msgspec.msgpack.encode(self), *([names] if names else []))


class HotLimits(Checked, frozen=True):
    """What a client's owner allows of rounds over hot rows: the most that one of them may cost (rho), which
    share of a cohort it thinks may collude with the server and add no noise, how many rows a survey may ask
    for, and how many bytes a round may take, down and up."""

    max_rho: Annotated[float, Meta(gt=0)]
    corruption: Annotated[float, Meta(ge=0, lt=1)] = 0.1
    max_marks: Annotated[int, Meta(ge=1)] = 2**24
    max_bytes: Annotated[int, Meta(ge=1)] = 2**40


class ExactLimits(Checked, frozen=True):
    """What a client's owner allows of rounds of exact sums (spec limits); hardly anything, unless said.

    Histograms of held-out scores are all zero in rounds of more than ``bins``, of bins narrower than
    ``least_scale``, or where fewer than ``least_samples`` of its own would be counted. Of its samples a row
    weighs ``row_samples`` at the most; ``dataset``: any number, and all that it has on every row it asks for.
    ``least_set``: a union must have room for so many rows of each client, whatever this one has.
    """

    bins: Annotated[int, Meta(ge=0, le=MAX_BINS)] = 0
    least_scale: Annotated[float, Meta(ge=0)] = 0.1
    least_samples: Annotated[int, Meta(ge=0)] = 10
    row_samples: Annotated[int, Meta(ge=1)] = 2
    dataset: bool = False
    least_set: Annotated[int, Meta(ge=1)] = 64

    def require_weights(self, update: UpdateParams) -> None:
        """Refuse weights that count more of this client's samples than its owner allows. A row that one
        client alone trained weighs what this client says."""
        kind, most = update.averaging.weights, update.rows.max_weight
        if self.dataset or kind == "owners":
            return
        if kind == "dataset":
            raise Refused(
                "weights that tell how many samples this client has, which its owner does not allow"
            )
        if most > self.row_samples:
            raise Refused(
                f"rows that weigh up to {most} samples tell how many of this client's touch each; it allows "
                f"{self.row_samples}"
            )

    def scores(self, told: ScoreBins | None) -> ScoreBins | None:
        """Return the bins that it counts scores in, if any: what it leaves out is zero in its words."""
        fits = told is not None and told.bins <= self.bins and told.scale >= self.least_scale
        return told if fits else None

    def counted(
        self, told: ScoreBins | None, scores: tuple[ArrayLike, ArrayLike] | None
    ) -> tuple[ArrayLike, ArrayLike] | None:
        """Return the histograms that leave: none where they are finer than allowed, or of few samples."""
        if scores is None or self.scores(told) is None:
            return None
        try:
            samples = sum(float(np.sum(np.asarray(one, np.float64))) for one in scores)
        except (TypeError, ValueError) as error:
            raise InputError(f"score histograms are two arrays of counts ({error})") from None
        return scores if samples >= self.least_samples else None


# Where server and clients are one program, as in a simulation, there is nobody to beware of.
ANYTHING = ExactLimits(bins=MAX_BINS, least_scale=0, least_samples=0, dataset=True, least_set=1)


class RoundPolicy(Checked, frozen=True):
    """What a client insists on beyond the session's policy. It declines a round that does not fit. ``exact``:
    it takes part in sums without noise, within ``limits``. ``hot`` None: in none over hot rows."""

    session: Policy
    max_clip: Annotated[float, Meta(gt=0)]
    max_rows: Annotated[int, Meta(ge=1)]
    exact: bool = True
    hot: HotLimits | None = None
    limits: ExactLimits = ExactLimits()

    def require_exact(self) -> None:
        """Refuse all rounds of exact sums, where this client's owner has not allowed them."""
        if not self.exact:
            raise Refused("a round of exact sums, which this client's owner has not allowed (--exact-sums)")

    def require(self, params: RoundParams, own: ModelSpec, clients: int) -> None:
        """Refuse a round of exact sums, of so many clients, by what everybody is told of it: nothing here
        depends on this client's data."""
        self.require_exact()
        if params.model != own:
            raise Refused("the round is for another model than this client has")
        if max(params.update.rows.clip, params.update.dense.clip) > self.max_clip:
            raise Refused(f"updates clipped at more than {self.max_clip}, which this client allows")
        self.limits.require_weights(params.update)
        room = params.union.build().capacity
        least = min(params.union.domain, clients * self.limits.least_set)
        if room < least:
            raise Refused(
                f"a union with room for {room} rows; of {clients} clients this one wants room for {least}, "
                "so that staying away tells nothing about the size of its set"
            )


@dataclass(frozen=True)
class HotRules:
    """How rounds over hot rows are planned. The first ``surveys`` rounds count owners, each client marking
    ``marks`` rows at the most. A client pays ``survey_rho`` for a survey and ``rho`` for a round that trains;
    infinite: no noise. ``corruption``: the share of a cohort that may collude with the server. Hot rows have
    to fit a download and upload of ``megabytes``. ``clip`` is the first one; it follows the clients.
    ``delta`` is what costs are stated at."""

    rho: float
    survey_rho: float
    marks: int = 256
    surveys: int = 1
    megabytes: float = 1.5
    corruption: float = 0.1
    clip: float = 0.1
    delta: float = 1e-6

    def words(self, model: ModelSpec, bins: int, precision: str) -> int:
        """Return how many parameters of rows there is room for, down and up, beside everything else."""
        left = self.megabytes * 2**20 - 8 * model.dense - 4 * (2 * bins + 1) - _KEYS_AND_SHARES
        room = int(left / (4 + np.dtype(precision).itemsize))
        if room <= 0:
            raise ParameterError(
                f"hot.megabytes = {self.megabytes:g} leaves no room for rows beside a dense part of "
                f"{model.dense:,} parameters; {8 * model.dense / 2**20:.1f} MiB are for that alone"
            )
        return room


@dataclass(frozen=True)
class RoundRules:
    """What stays the same from round to round, whoever carries it.

    Over the first ``kappa_rounds`` rounds the floor of averages rises from 1 to the update's kappa: at the
    start there is nothing yet to hold back. Rows move half as far after ``row_halving`` rounds, a third as
    far after twice as many, as their samples come again; 0 keeps the rate. The pull of their step is that of
    a pass, which has ``pull_rounds`` rounds (0: one); it begins after the first pass and is whole after two:
    what comes for the first time is not known by heart. ``training`` gives the clients' hyperparameters by
    the number of the round. ``threshold`` None is a little over two thirds of whoever is in a round.
    ``encoding`` is that of the union; ``whole`` makes it the full model. ``bins`` 0 leaves the secure
    evaluation out. With ``hot`` rounds are over hot rows.
    """

    update: UpdateParams
    training: Callable[[int], Mapping[str, float]]
    min_contributors: int
    kappa_rounds: int = 0
    row_halving: int = 0
    pull_rounds: int = 0
    threshold: int | None = None
    encoding: str = "auto"
    bins: int = 256
    precision: Literal["float32", "float16"] = "float32"
    active: bool = False
    hot: HotRules | None = None

    @property
    def scheme(self) -> str:
        return "sfsl" if self.hot is None else "hot"

    @property
    def sums(self) -> int:
        """The sums of a session, for which a client checks in with keys."""
        return 2 if self.hot is None else 1

    def update_in(self, number: int) -> UpdateParams:
        """Return the parameters of the update in round ``number``, counted from 1."""
        averaging, step = self.update.averaging, self.update.row_step
        if number <= self.kappa_rounds:
            kappa = 1 + (averaging.kappa - 1) * (number - 1) / self.kappa_rounds
            averaging = msgspec.structs.replace(averaging, kappa=kappa)
        if self.row_halving:
            left = 1 / (1 + (number - 1) / self.row_halving)
            step = msgspec.structs.replace(step, rate=step.rate * left)
            if averaging.max_move is not None:
                averaging = msgspec.structs.replace(averaging, max_move=averaging.max_move * left)
        if step.pull:
            # What a round has of all that was said shrinks with the passes, and the pull of a pass does not.
            passes = (number - 1) / max(1, self.pull_rounds)
            begun = min(1.0, max(0.0, passes - 1)) if self.pull_rounds else 1.0
            step = msgspec.structs.replace(step, pull=min(step.pull * begun * passes, MOST_PULL))
        return msgspec.structs.replace(self.update, averaging=averaging, row_step=step)

    def threshold_of(self, clients: int) -> int:
        """Return how many of so many clients must last through a round."""
        least = self.graph(clients).survivors if self.sparse(clients) else default_threshold(clients)
        if self.threshold is None:
            return least
        return max(self.threshold, least) if self.active else self.threshold

    def sparse(self, clients: int) -> bool:
        """Whether so many clients are too many for each to share masks with every other."""
        return self.hot is not None and clients > MAX_COMPLETE

    def graph(self, clients: int) -> GraphPlan:
        """Return the sparse graph of a cohort of so many."""
        return default_graph(clients, corruption=self.hot.corruption if self.hot else 0.0)

    def score_bins(self, kept: ScoreBins | None) -> ScoreBins | None:
        """Return the bins of the next round: those that were kept, unless the rules want another number."""
        if not self.bins:
            return None
        return kept if kept is not None and kept.bins == self.bins else ScoreBins(bins=self.bins)


def plan_round(
    rules: RoundRules,
    model: ModelSpec,
    *,
    number: int,
    clients: int,
    largest_set: int,
    seed: bytes,
    scores: ScoreBins | None,
) -> RoundParams:
    """Plan round ``number`` for so many clients, none of which brings more than ``largest_set`` rows.
    ``seed`` is public randomness for the union's hash functions; ``scores`` the bins that the last round
    left."""
    domain = IndexSpace(model).domain
    capacity = planned_capacity(domain, clients, largest_set)
    return RoundParams(
        number=number,
        model=model,
        union=UnionParams.plan(rules.encoding, domain, capacity, seed),
        update=rules.update_in(number),
        min_contributors=rules.min_contributors,
        training=dict(rules.training(number)),
        precision=rules.precision,
        scores=rules.score_bins(scores),
    )


class Summed(Protocol):
    """Parameters of any kind of round: they say what its session sums."""

    def sums(self) -> tuple[SumParams, ...]: ...


def plan_session(
    rules: RoundRules, params: Summed, *, clients: int, round_id: bytes, threshold: int | None = None
) -> SessionParams:
    """Plan the session of a round for the clients that checked in. ``threshold``, of whom must last, follows
    the rules where it is None."""
    least, neighbours, survivors = rules.threshold_of(clients) if threshold is None else threshold, None, None
    if rules.sparse(clients):
        graph = rules.graph(clients)
        least, neighbours, survivors = graph.threshold, graph.neighbours, max(least, graph.survivors)
    return SessionParams(
        round_id=round_id,
        clients=clients,
        threshold=least,
        neighbours=neighbours,
        active=rules.active,
        sums=params.sums(),
        least_survivors=survivors,
    )
