"""What the opened sums of a round come to, and what is written down about it: the only record of a round."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Self

import msgspec
import numpy as np
from msgspec import Meta

from sfsl.arrays import Counts, Indices, Values
from sfsl.correction import Correction
from sfsl.crypto.ring import Words
from sfsl.rounds.hot import HotState
from sfsl.rounds.params import RoundParams, ScoreBins
from sfsl.scores import auc_error_bound, auc_from_histograms, log_loss_from_histograms, rate_log_loss
from sfsl.submodel import Applied, ModelSums, RowSet, RowStore, apply_sums, decode_sums

Histograms = tuple[Counts, Counts]
_MOST = 2**40  # scores in a bin, of all clients together
Share = Annotated[float, Meta(ge=0, le=1)]
Number = Annotated[float, Meta(ge=0)]
Count = Annotated[int, Meta(ge=0)]
# Where it could be farther off than this, an AUC from histograms says nothing, and is not shown.
WORST_AUC_ERROR = 0.1
WORST_LOG_LOSS_ERROR = 0.05


@dataclass(frozen=True)
class RoundSums:
    """What a cohort opened. ``scores`` are the summed histograms (positives, negatives). Cohorts of one round
    that have no client in common add up: rows are averaged once, over all of them."""

    model: ModelSums
    contributors: dict[str, Counts]
    survivors: tuple[str, ...]
    scores: Histograms | None

    def __add__(self, other: Self) -> Self:
        model = self.model + other.model
        contributors = {name: np.zeros(len(union), np.int64) for name, union in model.unions.items()}
        for one in (self, other):
            for name, count in one.contributors.items():
                contributors[name][model.unions[name].positions_of(one.model.unions[name].rows)] += count
        scores = self.scores or other.scores
        if self.scores is not None and other.scores is not None:
            scores = (self.scores[0] + other.scores[0], self.scores[1] + other.scores[1])
        return type(self)(model, contributors, self.survivors + other.survivors, scores)


@dataclass(frozen=True)
class RoundOutcome:
    """What a finished round comes to. ``scores`` are the summed histograms (positives, negatives), in
    ``bins``; ``noise`` is the deviation of what noise adds to each count. ``hot`` is what a round over hot
    rows leaves for the next."""

    applied: Applied
    survivors: tuple[str, ...]
    union: dict[str, RowSet]
    contributors: dict[str, Counts]
    scores: Histograms | None
    bins: ScoreBins | None = None
    hot: HotState | None = None
    noise: float = 0.0


def read_sums(
    params: RoundParams,
    unions: Mapping[str, RowSet],
    dense: Words,
    tables: Sequence[Words],
    contributors: Sequence[Counts],
    survivors: tuple[str, ...],
) -> RoundSums:
    """Read the words of an opened sum as numbers."""
    end, names = params.model.dense_words, [table.name for table in params.model.summed]
    model = decode_sums(
        params.model,
        params.update,
        unions=unions,
        dense=dense[:end],
        tables=tables,
        contributors=contributors,
    )
    clicks, others = dense[end:].astype(np.int64).reshape(2, params.bins)
    # Where somebody counted below nothing, it is no number of samples.
    sound = params.bins and all(((one >= 0) & (one < _MOST)).all() for one in (clicks, others))
    counts = dict(zip(names, contributors, strict=True))
    return RoundSums(model, counts, survivors, (clicks, others) if sound else None)


def conclude(store: RowStore, params: RoundParams, sums: RoundSums) -> RoundOutcome:
    """Return what sums make of a round. The store is only read."""
    applied = apply_sums(store, params.update, sums.model, selection=b"")
    return RoundOutcome(
        applied, sums.survivors, sums.model.unions, sums.contributors, sums.scores, params.scores
    )


_QUALITY = (
    "auc", "log_loss", "ndcg", "recall", "auc_valid", "log_loss_valid", "auc_secure", "log_loss_secure",
    "base_log_loss_secure", "loss",
)  # fmt: skip
_COSTS = ("bytes_up", "bytes_down", "client_seconds", "server_seconds")


class RoundRecord(msgspec.Struct, frozen=True):
    """What one round did and cost. Bytes and client seconds are per client that answered, by exchange.

    ``late`` are messages that came when their phase was over. ``declined`` counts clients by why they took no
    part; a server on a network knows only of those that said so ("Decline"). ``auc`` is that of the central
    test set after the round, where it was evaluated; ``auc_secure`` that of the cohort's own held-out samples
    before it, from securely summed histograms, and at most ``auc_secure_error`` from that of the scores
    themselves; None where that is a lot, as in the first round, whose bins are too wide. ``log_loss``,
    ``ndcg`` and ``recall`` go with ``auc`` (``sfsl.scores.Evaluation``); ``auc_valid`` and ``log_loss_valid``
    are of the validation devices, which are not in the test set, and fit the ``correction`` of the scores by
    which both log losses are measured. ``log_loss_secure`` goes with
    ``auc_secure``; it is that of scores moved by the one constant that fits them best, since what is summed
    tells scores apart and not what they are; ``base_log_loss_secure`` is that of the constant alone, the
    click rate of the same samples.

    ``unknown_rows`` are rows that clients' data names and the model does not have; ``opened`` those with at
    least one contributor.
    ``training_seconds`` are those of all places that train, ``wall_seconds`` those of this process;
    ``exchange_seconds``, on a network, last from when an exchange's messages are there until it is closed.
    Of a round of several cohorts, ``cohorts_aborted`` added nothing. ``workers_lost`` are those of a cluster,
    each with the clients it had. ``lost``: the round stands, but its record was lost with a damaged or full
    disk; nothing else in it means anything. ``restored``: no client took part; an earlier version of the
    model was put back, which is named here.

    >>> import sfsl
    >>> def show(line: sfsl.RoundRecord):
    ...     print(line.round, line.aborted, line.survivors)
    >>> run = sfsl.train(rounds=1, clients=4, on_round=show, settings={
    ...     "data.users": 12, "data.scale": 0.03, "model.kind": "logistic", "round.min_contributors": 1})
    1 None 4
    """

    round: Annotated[int, Meta(ge=1)]
    aborted: str | None
    cohort: Count
    survivors: Count
    dropped: dict[str, Count]
    late: Count
    declined: dict[str, Count]
    diverged: Count
    samples: Count
    unknown_rows: Count
    loss: float | None
    auc: Share | None
    auc_secure: Share | None
    auc_secure_error: Share | None
    union: dict[str, Count]
    opened: dict[str, Count]
    moved: dict[str, Count]
    refused: dict[str, Count]
    bytes_up: dict[str, Number]
    bytes_down: dict[str, Number]
    client_seconds: dict[str, Number]
    server_seconds: dict[str, Number]
    training_seconds: Number
    wall_seconds: Number
    exchange_seconds: dict[str, Number] = {}
    cohorts_aborted: Count = 0
    workers_lost: Count = 0
    log_loss: Number | None = None
    ndcg: Share | None = None
    recall: Share | None = None
    log_loss_secure: Number | None = None
    log_loss_secure_error: Number | None = None
    base_log_loss_secure: Number | None = None
    auc_valid: Share | None = None
    log_loss_valid: Number | None = None
    correction: Correction | None = None
    lost: bool = False
    restored: str = ""

    @classmethod
    def of_lost(cls, number: int) -> Self:
        """Return what stands in the place of a record that was lost."""
        empty = RoundTally().record(number, None)
        return msgspec.structs.replace(empty, lost=True)  # type: ignore[return-value]

    def validation(self, keep: str) -> float | None:
        """Return the figure that chooses a model, the smaller the better; None where it was not measured.
        ``keep`` is ``auc`` or ``log_loss``, for which AUC stands in where scores are no chances."""
        if keep == "log_loss" and self.log_loss_valid is not None:
            return self.log_loss_valid
        return None if self.auc_valid is None else -self.auc_valid

    def scalars(self) -> dict[str, float]:
        """Return what is drawn over rounds: quality, costs (of a client, but for the server's seconds) and
        clients; nothing of what was not measured."""
        bills = {name: getattr(self, name) for name in _COSTS}
        found = {
            **{f"quality/{name}": getattr(self, name) for name in _QUALITY},
            **{f"cost/{name}": sum(bill.values()) if bill else None for name, bill in bills.items()},
            "cost/wall_seconds": self.wall_seconds,
            "clients/cohort": self.cohort,
            "clients/survivors": self.survivors,
            "clients/dropped": sum(self.dropped.values()),
            "clients/late": self.late,
            "clients/declined": sum(self.declined.values()),
            "clients/aborted": int(self.aborted is not None),
        }
        return {name: float(value) for name, value in found.items() if value is not None}

    def encode(self) -> bytes:
        """Return the record as JSON; what is not a number is null there."""
        return msgspec.json.encode(self)


@dataclass(frozen=True)
class Learned:
    """What training made of one client, besides its upload. ``personal``: by table the rows that never leave
    it, and how far each moved."""

    samples: int
    loss: float
    diverged: bool
    unknown: int
    personal: Mapping[str, tuple[Indices, Values]]


@dataclass
class RoundTally:
    """What a round has done and cost so far: sums over clients, by exchange. Tallies of cohorts add up.

    ``answered`` has, by exchange, the clients that costs are divided by. ``loss`` is summed over samples.
    Seconds of clients are CPU time without training, ``server_seconds`` CPU time, ``training_seconds`` wall
    time of all places that train together.
    """

    cohort: int = 0
    answered: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    late: int = 0
    declined: dict[str, int] = field(default_factory=dict)
    diverged: int = 0
    samples: int = 0
    unknown_rows: int = 0
    loss: float = 0.0
    bytes_up: dict[str, float] = field(default_factory=dict)
    bytes_down: dict[str, float] = field(default_factory=dict)
    client_seconds: dict[str, float] = field(default_factory=dict)
    server_seconds: dict[str, float] = field(default_factory=dict)
    exchange_seconds: dict[str, float] = field(default_factory=dict)
    training_seconds: float = 0.0
    cohorts_aborted: int = 0
    workers_lost: int = 0

    def up(self, exchange: str, size: float) -> None:
        _count(self.bytes_up, exchange, size)

    def down(self, exchange: str, size: float) -> None:
        _count(self.bytes_down, exchange, size)

    def drop(self, exchange: str, clients: int = 1) -> None:
        _count(self.dropped, exchange, clients)

    def decline(self, reason: Exception | str) -> None:
        _count(self.declined, reason if isinstance(reason, str) else type(reason).__name__, 1)

    def learn(self, learned: Iterable[Learned], seconds: float) -> None:
        """Add what clients say about their training, in which so many seconds went."""
        for one in learned:
            self.samples += one.samples
            self.unknown_rows += one.unknown
            self.diverged += one.diverged
            self.loss += one.loss * one.samples if one.samples else 0.0
        self.training_seconds += seconds

    def add(self, other: "RoundTally") -> None:
        """Add another cohort of the same round."""
        for name, value in vars(other).items():
            mine = getattr(self, name)
            if isinstance(mine, dict):
                for key, count in value.items():
                    _count(mine, key, count)
            else:
                setattr(self, name, mine + value)

    def record(
        self, number: int, outcome: RoundOutcome | None, *, aborted: str | None = None, seconds: float = 0.0
    ) -> RoundRecord:
        """Return the record of round ``number``, which came to ``outcome`` or was aborted."""
        # A record has the fields of a tally, but for whom costs are divided by.
        fields: dict[str, Any] = {
            name: dict(one) if isinstance(one, dict) else one
            for name, one in vars(self).items()
            if name != "answered"
        }
        for name in ("bytes_up", "bytes_down", "client_seconds"):
            total = fields[name]
            fields[name] = {key: total[key] / max(1, self.answered.get(key, 0)) for key in total}
        loss = self.loss / self.samples if self.samples else math.nan
        fields["loss"] = loss if math.isfinite(loss) else None
        fields |= _ending(outcome)
        return RoundRecord(round=number, aborted=aborted, auc=None, wall_seconds=seconds, **fields)


def secure_auc(outcome: RoundOutcome | None) -> tuple[float | None, float | None]:
    """Return the AUC of the cohort's held-out samples, and how far it may be off."""
    if outcome is None or outcome.scores is None:
        return None, None
    auc, error = auc_from_histograms(*outcome.scores), auc_error_bound(*outcome.scores)
    if not math.isfinite(error):
        return None, None
    # Noise in a count moves the AUC by half of that count's share at the most; three deviations of it all.
    clicks, others = (max(1.0, float(one.sum())) for one in outcome.scores)
    spread = outcome.noise * math.sqrt(len(outcome.scores[0]))
    error = min(1.0, error + 1.5 * spread * math.hypot(1 / clicks, 1 / others))
    return (auc if error <= WORST_AUC_ERROR else None), error


def secure_log_loss(outcome: RoundOutcome | None) -> dict[str, float | None]:
    """Return the fields of a record about the log loss of the cohort's held-out samples."""
    if outcome is None or outcome.scores is None or outcome.bins is None:
        return {}
    loss, error = log_loss_from_histograms(*outcome.scores, *outcome.bins.log_odds)
    clicks, others = (float(one.sum()) for one in outcome.scores)
    error += 3 * outcome.noise * math.sqrt(2 * len(outcome.scores[0])) / max(1.0, clicks + others)
    if not math.isfinite(error):
        return {}
    return {
        "log_loss_secure": loss if error <= WORST_LOG_LOSS_ERROR else None,
        "log_loss_secure_error": error,
        "base_log_loss_secure": rate_log_loss(clicks, others),
    }


def refused(outcome: RoundOutcome | None) -> dict[str, int]:
    """Count the rows, by table, whose sums no honest cohort can make; ``dense`` is 1 if its sum is such."""
    if outcome is None:
        return {}
    return outcome.applied.refused | ({"dense": 1} if outcome.applied.dense_refused else {})


def _ending(outcome: RoundOutcome | None) -> dict[str, Any]:
    """Return the fields of a record that follow from the round's outcome, if it has one."""
    auc, error = secure_auc(outcome)
    ending: dict[str, Any] = {"auc_secure": auc, "auc_secure_error": error, "refused": refused(outcome)}
    ending |= secure_log_loss(outcome)
    if outcome is None:
        return ending | {"survivors": 0, "union": {}, "opened": {}, "moved": {}}
    return ending | {
        "survivors": len(outcome.survivors),
        "union": {name: len(rows) for name, rows in outcome.union.items()},
        "opened": {name: int(np.count_nonzero(one)) for name, one in outcome.contributors.items()},
        "moved": outcome.applied.moved,
    }


def _count(counts: dict[str, Any], name: str, more: float) -> None:
    counts[name] = counts.get(name, 0) + more
