"""From settings and a cohort to the parameters of a round; what survives a restart; the line of metrics."""

from dataclasses import replace
from typing import Self

import msgspec

from sfsl.crypto.randomness import Randomness
from sfsl.errors import StoreCorrupt
from sfsl.rounds import IndexSpace, RoundOutcome, RoundParams, ScoreBins
from sfsl.rounds.record import RoundLine
from sfsl.secagg import SessionParams
from sfsl.service.outcomes import ending
from sfsl.service.running import Bill
from sfsl.service.settings import CoordinatorSettings
from sfsl.submodel import Commit, ModelSpec
from sfsl.union import UnionParams, choose, planned_capacity


class RoundState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Committed with a round: its line of metrics, which a crash cannot lose so, and the next one's bins."""

    line: bytes = b""
    scores: ScoreBins | None = None

    @classmethod
    def decode(cls, data: bytes) -> Self:
        try:
            return msgspec.msgpack.decode(data, type=cls) if data else cls()
        except msgspec.MsgspecError as error:
            raise StoreCorrupt(f"the store's state of the last round cannot be read: {error}") from None

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)

    def last_line(self) -> RoundLine | None:
        try:
            return msgspec.json.decode(self.line, type=RoundLine) if self.line else None
        except msgspec.MsgspecError as error:
            raise StoreCorrupt(f"the store's line of the last round cannot be read: {error}") from None

    def after(self, settings: CoordinatorSettings, outcome: RoundOutcome | None, line: RoundLine) -> Self:
        scores = self.scores
        if outcome is not None and outcome.scores is not None:
            scores = (scores or ScoreBins(bins=settings.bins)).after(*outcome.scores)
        return type(self)(line.encode(), scores)

    def bins(self, settings: CoordinatorSettings) -> ScoreBins | None:
        """Of the next round. Those of another number of bins are not gone on with."""
        if not settings.bins:
            return None
        if self.scores is not None and self.scores.bins == settings.bins:
            return self.scores
        return ScoreBins(bins=settings.bins)


def plan_round(
    settings: CoordinatorSettings,
    model: ModelSpec,
    state: RoundState,
    number: int,
    clients: int,
    randomness: Randomness,
) -> tuple[SessionParams, RoundParams]:
    """A round for so many clients. The server does not know their sets: it plans for the largest allowed."""
    domain = IndexSpace(model).domain
    capacity = planned_capacity(domain, clients, settings.largest_set)
    seed = randomness.bytes(32)
    params = RoundParams(
        number=number,
        model=model,
        union=UnionParams(
            domain=domain,
            encoding=choose(settings.encoding, domain, capacity, seed).name,  # type: ignore[arg-type]
            capacity=capacity,
            seed=seed,
        ),
        update=settings.update(number),
        min_contributors=settings.min_contributors,
        training=dict(settings.training(number)),
        precision=settings.precision,
        scores=state.bins(settings),
    )
    session = SessionParams(
        round_id=randomness.bytes(16),
        clients=clients,
        threshold=settings.threshold_of(clients),
        neighbours=None,
        active=settings.active,
        sums=params.sums(),
    )
    return session, params


def committed(outcome: RoundOutcome | None, number: int, state: RoundState) -> Commit:
    """What is written after a round. One that aborted only counts: a round is never repeated."""
    commit = outcome.applied.commit if outcome is not None else Commit(number)
    return replace(commit, selection=state.encode())


def line_of(
    number: int, cohort: int, bill: Bill, outcome: RoundOutcome | None, aborted: str | None, seconds: float
) -> RoundLine:
    """What only clients know (losses, rows unknown to the model, seconds of theirs) is not in it."""
    return RoundLine(
        round=number,
        aborted=aborted,
        cohort=cohort,
        dropped={name: count for name, count in bill.dropped.items() if count},
        late=bill.late,
        declined={"Decline": bill.declined} if bill.declined else {},
        diverged=0,
        samples=outcome.applied.samples if outcome else 0,
        unknown_rows=0,
        loss=None,
        auc=None,
        bytes_up=bill.per_client(bill.bytes_up),
        bytes_down=bill.per_client(bill.bytes_down),
        client_seconds={},
        server_seconds=dict(bill.server_seconds),
        training_seconds=0.0,
        wall_seconds=seconds,
        exchange_seconds=dict(bill.wall_seconds),
        **ending(outcome),
    )
