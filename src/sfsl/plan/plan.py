"""The whole prediction for one round, and for a fleet that runs one after the other."""

from dataclasses import dataclass

from sfsl.errors import ParameterError
from sfsl.plan.costs import Memory, Seconds, Speeds, cpu, measure, memory
from sfsl.plan.settings import PlanSettings
from sfsl.plan.traffic import RoundRows, Traffic, expected_rows, traffic


@dataclass(frozen=True)
class Plan:
    settings: PlanSettings
    heard: dict[str, int]
    rows: RoundRows
    traffic: Traffic
    seconds: Seconds
    memory: Memory

    @property
    def bytes_up(self) -> float:
        return sum(self.traffic.up.values())

    @property
    def bytes_down(self) -> float:
        return sum(self.traffic.down.values())

    @property
    def full_model_bytes(self) -> float:
        """A client of full-model secure learning moves so much in a round: every parameter, down and up."""
        model = self.settings.model
        return 8.0 * (model.dense + sum(table.rows * table.width for table in model.tables))

    def epsilon(self, rounds: int) -> float:
        return self.settings.privacy.epsilon(rounds)


def make_plan(settings: PlanSettings, speeds: Speeds | None = None) -> Plan:
    """Predict a round. ``speeds`` are measured on this machine where they are not given."""
    heard = settings.heard()
    rows = expected_rows(settings, heard)
    sent = traffic(settings, heard, rows)
    seconds = cpu(settings, heard, rows, sent, speeds or measure(settings.clients, settings.needed))
    return Plan(settings, heard, rows, sent, seconds, memory(settings, heard, rows, sent))


def rounds_per_day(fleet: int, clients: int, period_days: float, exposures: int = 1) -> float:
    """Count the rounds a fleet can fill in a day if each client takes part in ``exposures`` per period."""
    if fleet < clients or not period_days > 0 or exposures < 1:
        raise ParameterError(
            f"a fleet of {fleet} for rounds of {clients}, a period of {period_days:g} days and {exposures} "
            "rounds in it: the fleet fills at least one round, and the others are positive"
        )
    return fleet * exposures / (clients * period_days)
