"""What a simulation is given besides the rules of its rounds: privacy, sums, and which clients vanish."""

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal

from sfsl.errors import ParameterError
from sfsl.privacy import IndexPrivacy
from sfsl.rounds.exchanges import ORDER
from sfsl.rounds.params import RoundRules
from sfsl.training import LocalSettings


@dataclass(frozen=True)
class FaultPlan:
    """Which clients fail, and when. ``rates`` has, per exchange, the share of clients that vanish before they
    answer it. ``late`` is the share that is slow in any one: they answer when the phase is over."""

    rates: Mapping[str, float] = field(default_factory=dict)
    seed: int = 0
    late: float = 0.0

    def __post_init__(self) -> None:
        for exchange, rate in self.rates.items():
            if exchange not in ORDER:
                raise ParameterError(f"no exchange {exchange!r}; there are {', '.join(ORDER)}")
            if not 0 <= rate <= 1:
                raise ParameterError(f"a dropout rate of {rate} at {exchange!r} is not in 0..1")
        if not 0 <= self.late <= 1:
            raise ParameterError(f"a share of slow clients of {self.late} is not in 0..1")

    def vanish(self, round_number: int, exchange: str, clients: Collection[str]) -> set[str]:
        """Say which of these clients vanish before answering. The same arguments give the same answer."""
        return self._drawn(self.rates.get(exchange, 0.0), "vanish", round_number, exchange, clients)

    def slow(self, round_number: int, exchange: str, clients: Collection[str]) -> set[str]:
        """Say which of these clients answer too late. The same arguments give the same answer."""
        return self._drawn(self.late, "late", round_number, exchange, clients)

    def _drawn(
        self, rate: float, kind: str, round_number: int, exchange: str, clients: Collection[str]
    ) -> set[str]:
        """Draw by a number of each client's own, so that it does not matter who else is there."""
        place = f"{self.seed} {round_number} {exchange} {kind} "
        return {name for name in clients if rate and _number(place + name) < rate}


def _number(text: str) -> float:
    """Return a number that is uniform from 0 to 1."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") / 2**64


# How the sums are made: on the real protocol, or in the open, which is for experiments only.
Sums = Literal["masked", "plain"]


@dataclass(frozen=True)
class SimulationSettings:
    """What stays the same from round to round. ``privacy`` is each client's own choice.

    After every ``period`` rounds devices draw their permanent answers anew; 0 means never. ``max_rows`` is
    the largest submodel a client accepts. A round has ``cohorts``, each with keys, a union and sums of its
    own. ``together``: clients that train in one pass; which ones they are depends on nothing else, so that
    every carrier makes the same model bit for bit.
    """

    rules: RoundRules
    local: LocalSettings
    privacy: Mapping[str, IndexPrivacy]
    sums: Sums = "masked"
    period: int = 0
    max_rows: int = 2**32
    cohorts: int = 1
    together: int = 50
    faults: FaultPlan = field(default_factory=FaultPlan)

    def __post_init__(self) -> None:
        whole = self.rules.encoding == "whole"
        if whole and any(min(one.p5, one.p6) < 1 for one in {*self.privacy.values()}):
            raise ParameterError("with the full model everyone asks for every row: all probabilities are 1")
