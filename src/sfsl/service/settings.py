"""What the server of a deployment is told: its rounds, and how long it waits for whom."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from sfsl.errors import ParameterError
from sfsl.rounds.exchanges import Exchange
from sfsl.secagg import default_threshold
from sfsl.submodel import UpdateParams

DAY_MS = 86_400_000


@dataclass(frozen=True)
class CoordinatorSettings:
    """``cohort`` clients are in a round, or at least ``min_cohort`` after ``check_in_seconds``.

    ``threshold`` None is a little over two thirds of whoever is in the round. ``largest_set``: the most rows
    that a client may have; the union is planned for the worst case of it. ``update`` and ``training`` give
    the parameters of a round by its number. ``period_days`` 0 sets no limit on how often a client is
    invited. ``most_clients`` may wait at a time. After round ``rounds`` the server stops; 0 is never.
    ``grace_seconds``: how long a round may go on when the server is told to stop.
    """

    update: Callable[[int], UpdateParams]
    cohort: int
    min_cohort: int
    min_contributors: int
    largest_set: int
    training: Callable[[int], Mapping[str, float]]
    threshold: int | None = None
    encoding: str = "auto"
    bins: int = 256
    precision: Literal["float32", "float16"] = "float32"
    active: bool = False
    check_in_seconds: float = 60.0
    phase_seconds: float = 60.0
    training_seconds: float = 600.0
    poll_seconds: float = 25.0
    grace_seconds: float = 30.0
    period_days: int = 1
    most_clients: int = 10_000
    rounds: int = 0

    def __post_init__(self) -> None:
        if not 2 <= self.min_cohort <= self.cohort:
            raise ParameterError(
                f"a cohort of {self.min_cohort} at least and {self.cohort} at most: 2 or more, in this order"
            )
        if self.cohort > (planned := self.update(1).rows.cohort):
            raise ParameterError(f"a cohort of {self.cohort}, but sums are planned for {planned} clients")
        if self.threshold is not None and not self.cohort // 2 < self.threshold <= self.min_cohort:
            raise ParameterError(
                f"a threshold of {self.threshold}: more than half of the largest cohort ({self.cohort}) and "
                f"no more than the smallest ({self.min_cohort})"
            )
        if self.most_clients < self.cohort:
            raise ParameterError(f"{self.most_clients} may wait, which is fewer than a cohort")

    def threshold_of(self, clients: int) -> int:
        least = default_threshold(clients)
        if self.threshold is None:
            return least
        return max(self.threshold, least) if self.active else self.threshold

    def period(self, now_ms: int) -> int | None:
        """The number of the period that this moment is in; None where there are none."""
        return now_ms // (self.period_days * DAY_MS) if self.period_days else None

    def deadline(self, exchange: str) -> float:
        """Seconds that clients have for their answer."""
        return self.training_seconds if exchange == Exchange.SUBMODEL else self.phase_seconds
