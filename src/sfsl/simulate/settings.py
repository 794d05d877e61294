"""What a simulated round is given, and what it reports."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from sfsl.client.device import Learned
from sfsl.errors import ParameterError
from sfsl.privacy import IndexPrivacy
from sfsl.rounds import RoundOutcome
from sfsl.simulate.faults import FaultPlan
from sfsl.submodel import Commit, UpdateParams
from sfsl.training import LocalSettings

# How the sums are made: on the real protocol, or in the open, which is for experiments only.
Sums = Literal["masked", "plain"]


@dataclass(frozen=True)
class RoundSettings:
    """What stays the same from round to round. ``privacy`` is each client's own choice.

    Over the first ``kappa_rounds`` rounds the floor of averages rises from 1 to the update's kappa: at the
    start there is nothing yet to hold back. ``encoding`` is that of the union; ``whole``
    makes it the full model. After every ``period`` rounds devices draw their permanent answers anew; 0
    means never. ``max_rows`` is the largest submodel a client accepts. A round has ``cohorts``, each with
    keys, a union and sums of its own. ``together``: clients that train in one pass; which ones they are
    depends on nothing else, so that every engine makes the same model bit for bit.
    """

    update: UpdateParams
    local: LocalSettings
    privacy: Mapping[str, IndexPrivacy]
    min_contributors: int
    sums: Sums = "masked"
    kappa_rounds: int = 0
    threshold: int | None = None
    encoding: str = "auto"
    bins: int = 256
    precision: Literal["float32", "float16"] = "float32"
    period: int = 0
    max_rows: int = 2**32
    cohorts: int = 1
    together: int = 50
    faults: FaultPlan = field(default_factory=FaultPlan)

    def __post_init__(self) -> None:
        if self.encoding == "whole" and any(min(one.p5, one.p6) < 1 for one in {*self.privacy.values()}):
            raise ParameterError("with the full model everyone asks for every row: all probabilities are 1")

    def update_in(self, number: int) -> UpdateParams:
        """Of one round, counted from 1."""
        averaging = self.update.averaging
        if number > self.kappa_rounds:
            return self.update
        kappa = 1 + (averaging.kappa - 1) * (number - 1) / self.kappa_rounds
        return msgspec.structs.replace(self.update, averaging=msgspec.structs.replace(averaging, kappa=kappa))


@dataclass
class RoundReport:
    """What one round did and cost. ``aborted`` says why it did nothing, where it did nothing.

    ``commit`` is for the caller to make, also after an abort, where it only counts the round: a round is
    never repeated.
    Costs by exchange: bytes up and down and CPU seconds (without training) per client that answered, and
    the server's CPU seconds. With plain sums there is no protocol: bytes are those of sending everything
    in the clear. ``answered``: by exchange, the clients that costs are divided by. ``training_seconds`` is
    wall time, of all places that train together. ``cohorts_aborted`` of those that the round has did
    nothing; ``workers_lost`` took their clients along.
    """

    number: int
    cohort: int
    commit: Commit
    aborted: str | None = None
    outcome: RoundOutcome | None = None
    dropped: dict[str, int] = field(default_factory=dict)
    late: int = 0
    declined: dict[str, int] = field(default_factory=dict)
    diverged: int = 0
    samples: int = 0
    unknown_rows: int = 0
    loss: float = float("nan")
    bytes_up: dict[str, float] = field(default_factory=dict)
    bytes_down: dict[str, float] = field(default_factory=dict)
    client_seconds: dict[str, float] = field(default_factory=dict)
    server_seconds: dict[str, float] = field(default_factory=dict)
    training_seconds: float = 0.0
    answered: dict[str, int] = field(default_factory=dict)
    cohorts_aborted: int = 0
    workers_lost: int = 0

    def drop(self, exchange: str, clients: int = 1) -> None:
        self.dropped[exchange] = self.dropped.get(exchange, 0) + clients

    def decline(self, reason: Exception | str) -> None:
        kind = reason if isinstance(reason, str) else type(reason).__name__
        self.declined[kind] = self.declined.get(kind, 0) + 1

    def learn(self, learned: Iterable[Learned], seconds: float) -> None:
        """What clients say about their training, in which so many seconds went."""
        every = list(learned)
        losses = [one.loss * one.samples for one in every if one.samples]
        self.samples = sum(one.samples for one in every)
        self.unknown_rows = sum(one.unknown for one in every)
        self.diverged = sum(one.diverged for one in every)
        self.loss = sum(losses) / self.samples if self.samples else float("nan")
        self.training_seconds = seconds

    def charge(
        self,
        exchange: str,
        *,
        answered: int,
        up: int,
        down: int,
        client_seconds: float,
        server_seconds: float,
    ) -> None:
        clients = max(1, answered)
        self.answered[exchange] = answered
        self.bytes_up[exchange] = up / clients
        self.bytes_down[exchange] = down / clients
        self.client_seconds[exchange] = client_seconds / clients
        self.server_seconds[exchange] = server_seconds

    def add(self, other: "RoundReport") -> None:
        """Another cohort of the same round. Its outcome is for the caller to join."""
        samples = self.samples + other.samples
        losses = [one.loss * one.samples for one in (self, other) if one.samples]
        self.loss = sum(losses) / samples if samples else float("nan")
        self.cohort += other.cohort
        self.late += other.late
        self.diverged += other.diverged
        self.samples = samples
        self.unknown_rows += other.unknown_rows
        self.training_seconds += other.training_seconds
        for kind, count in other.declined.items():
            self.declined[kind] = self.declined.get(kind, 0) + count
        for exchange, count in other.dropped.items():
            self.drop(exchange, count)
        for exchange, seconds in other.server_seconds.items():
            self.server_seconds[exchange] = self.server_seconds.get(exchange, 0.0) + seconds
        for mine, theirs in (
            (self.bytes_up, other.bytes_up),
            (self.bytes_down, other.bytes_down),
            (self.client_seconds, other.client_seconds),
        ):
            for exchange, cost in theirs.items():
                here, there = self.answered.get(exchange, 0), other.answered.get(exchange, 0)
                mine[exchange] = (mine.get(exchange, 0.0) * here + cost * there) / max(1, here + there)
        for exchange, clients in other.answered.items():
            self.answered[exchange] = self.answered.get(exchange, 0) + clients
