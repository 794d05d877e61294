"""What a plan is made from: everything about a round that is known before it runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from sfsl.errors import ParameterError
from sfsl.plan.loads import DerivedLoad, Load, SharedLoad
from sfsl.privacy import PRESETS, IndexPrivacy
from sfsl.rounds.exchanges import ORDER, Exchange
from sfsl.secagg import default_threshold
from sfsl.secagg.graph import DEFAULT_BOUND, DEFAULT_DROPOUT
from sfsl.secagg.messages import MAX_COMPLETE
from sfsl.submodel import ModelSpec

# The exchanges whose answers the plan counts: shares, masked sets, requests, updates.
COUNTED = (Exchange.INVITATION, Exchange.INBOUND, Exchange.UNION, Exchange.SUBMODEL)


@dataclass(frozen=True)
class PlanSettings:
    """All that a plan depends on; ``loads`` says what clients need of each shared and derived table.

    ``largest_set`` is the most rows that one client brings to the union, in all shared tables; the union is
    planned for so many from each, or for ``capacity``. ``min_contributors`` None is the least that keeps
    rows opened alone below ``bound`` at ``tolerated`` dropout. ``dropout`` is the share of clients that
    vanish before they answer an exchange.
    """

    clients: int
    model: ModelSpec
    loads: Mapping[str, Load]
    privacy: IndexPrivacy = PRESETS["cpp2"]
    dropout: Mapping[str, float] = field(default_factory=dict)
    min_contributors: int | None = None
    tolerated: float = DEFAULT_DROPOUT
    bound: float = DEFAULT_BOUND
    threshold: int | None = None
    largest_set: int | None = None
    capacity: int | None = None
    encoding: str = "auto"
    bins: int = 256
    precision: Literal["float32", "float16"] = "float32"
    ring: Literal["z32", "z64"] = "z32"
    id_length: int = 10

    def __post_init__(self) -> None:
        if not 2 <= self.clients <= MAX_COMPLETE:
            raise ParameterError(
                f"{self.clients} clients in a round; 2 to {MAX_COMPLETE} are possible, a larger fleet runs "
                "several cohorts side by side"
            )
        for table in self.model.summed:
            expected = SharedLoad if table.source is None else DerivedLoad
            if not isinstance(self.loads.get(table.name), expected):
                raise ParameterError(f"the plan needs to know what clients have of table {table.name!r}")
        for exchange, rate in self.dropout.items():
            if exchange not in ORDER or not 0 <= rate < 1:
                raise ParameterError(
                    f"a dropout of {rate} at {exchange!r}: shares are from 0 to below 1, the exchanges are "
                    f"{', '.join(ORDER)}"
                )
        if self.min_contributors is not None and self.min_contributors < 1:
            raise ParameterError("min_contributors is 1 (the paper) or more")
        if self.id_length < 1:
            raise ParameterError("a client's id has at least one letter")

    @property
    def needed(self) -> int:
        return self.threshold or default_threshold(self.clients)

    def shared(self, table: str) -> SharedLoad:
        load = self.loads[table]
        assert isinstance(load, SharedLoad)  # noqa: S101 - __post_init__ saw to it
        return load

    @property
    def set_size(self) -> float:
        """A client has so many rows of all shared tables, on average."""
        return sum(load.per_client for load in self.loads.values() if isinstance(load, SharedLoad))

    def heard(self) -> dict[str, int]:
        """Return how many clients are expected to answer each exchange."""
        left = float(self.clients)
        heard: dict[str, int] = {Exchange.CHECK_IN: self.clients}
        for exchange in ORDER:
            left *= 1 - self.dropout.get(exchange, 0.0)
            heard[exchange] = round(left)
        short = [exchange for exchange, count in heard.items() if count < self.needed]
        if short:
            raise ParameterError(
                f"{heard[short[0]]} clients are expected to answer {short[0]!r}, {self.needed} are needed: "
                "most rounds would abort. Plan with less dropout or a lower threshold"
            )
        return heard
