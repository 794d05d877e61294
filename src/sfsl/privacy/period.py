"""When a period starts: a rule of the calendar, never a reaction to data (spec privacy 2)."""

from datetime import date, timedelta

import msgspec

from sfsl.errors import ParameterError


class Calendar(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Periods of so many days, counted from ``start``. The date comes in as an argument: no clock here."""

    start: date
    days: int

    def __post_init__(self) -> None:
        if isinstance(self.days, bool) or not isinstance(self.days, int) or self.days < 1:
            raise ParameterError(f"a period lasts a whole number of days from 1 up, not {self.days!r}")

    def period(self, day: date) -> int:
        """The number of the period that ``day`` falls into."""
        if day < self.start:
            raise ParameterError(
                f"{day} is before {self.start}, when periods start to count; check the clock"
            )
        return (day - self.start).days // self.days

    def first_day(self, period: int) -> date:
        return self.start + timedelta(days=period * self.days)
