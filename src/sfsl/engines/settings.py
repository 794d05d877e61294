"""What a simulated round is given, and what it reports."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from sfsl.engines.faults import FaultPlan
from sfsl.errors import ParameterError
from sfsl.privacy import IndexPrivacy
from sfsl.rounds import RoundOutcome
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
    means never. ``max_rows`` is the largest submodel a client accepts.
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
    in the clear. ``training_seconds`` is wall time of the whole cohort.
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

    def decline(self, reason: Exception) -> None:
        kind = type(reason).__name__
        self.declined[kind] = self.declined.get(kind, 0) + 1
