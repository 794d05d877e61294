"""Which clients vanish when: a plan that a seed reproduces."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from sfsl.errors import ParameterError

# The exchanges of a round, by what the server sends (spec round 1).
EXCHANGES = ("invitation", "inbound", "unmask-union", "union", "submodel", "unmask-update")


@dataclass(frozen=True)
class FaultPlan:
    """Per exchange the share of clients that vanish before they answer it."""

    rates: Mapping[str, float] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        for exchange, rate in self.rates.items():
            if exchange not in EXCHANGES:
                raise ParameterError(f"no exchange {exchange!r}; there are {', '.join(EXCHANGES)}")
            if not 0 <= rate <= 1:
                raise ParameterError(f"a dropout rate of {rate} at {exchange!r} is not in 0..1")

    def vanish(self, round_number: int, exchange: str, clients: Collection[str]) -> set[str]:
        """Who of these clients vanishes before answering. The same arguments give the same answer."""
        rate = self.rates.get(exchange, 0.0)
        if rate == 0:
            return set()
        rng = np.random.default_rng([self.seed, round_number, EXCHANGES.index(exchange)])
        names = sorted(clients)
        return {name for name, draw in zip(names, rng.random(len(names)), strict=True) if draw < rate}
