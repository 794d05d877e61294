"""What the server of a deployment is told: the rules of its rounds, and how long it waits for whom."""

from dataclasses import dataclass

from sfsl.errors import ParameterError
from sfsl.rounds.exchanges import TRAINS
from sfsl.rounds.params import RoundRules

DAY_MS = 86_400_000


@dataclass(frozen=True)
class ServiceSettings:
    """``cohort`` clients are in a round, or at least ``min_cohort`` after ``check_in_seconds``.

    ``largest_set`` is the most rows that a client may have; the union is planned for the worst case of it.
    ``period_days`` 0 sets no limit on how often a client is invited. ``most_clients`` may wait at a time.
    After round ``rounds`` the server stops; 0 is never. ``grace_seconds``: how long a round may go on when
    the server is told to stop.
    """

    rules: RoundRules
    cohort: int
    min_cohort: int
    largest_set: int
    check_in_seconds: float = 60.0
    phase_seconds: float = 60.0
    training_seconds: float = 600.0
    poll_seconds: float = 25.0
    grace_seconds: float = 30.0
    period_days: int = 1
    most_clients: int = 10_000
    rounds: int = 0

    def __post_init__(self) -> None:
        threshold = self.rules.threshold
        if not 2 <= self.min_cohort <= self.cohort:
            raise ParameterError(
                f"a cohort of {self.min_cohort} at least and {self.cohort} at most: 2 or more, in this order"
            )
        if self.cohort > (planned := self.rules.update.rows.cohort):
            raise ParameterError(f"a cohort of {self.cohort}, but sums are planned for {planned} clients")
        if threshold is not None and not self.cohort // 2 < threshold <= self.min_cohort:
            raise ParameterError(
                f"a threshold of {threshold}: more than half of the largest cohort ({self.cohort}) and "
                f"no more than the smallest ({self.min_cohort})"
            )
        if self.most_clients < self.cohort:
            raise ParameterError(f"{self.most_clients} may wait, which is fewer than a cohort")

    def period(self, now_ms: int) -> int | None:
        """Return the number of the period that this moment is in; None where there are none."""
        return now_ms // (self.period_days * DAY_MS) if self.period_days else None

    def deadline(self, exchange: str) -> float:
        """Return the seconds that clients have for their answer."""
        return self.training_seconds if exchange == TRAINS else self.phase_seconds
