"""Periods: when they start, by the calendar and never by data (spec privacy 2), and whom a server invites in
each: every client at most once, the policy ``period`` (spec privacy 7).

The clients' own ledgers enforce that limit; a server that keeps to it asks nobody in vain.
"""

from collections.abc import Iterable
from datetime import date, timedelta

import msgspec
import numpy as np

from sfsl.crypto.secret import Randomness
from sfsl.errors import InputError, ParameterError, TooFewClients


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


class PeriodSelection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who has been invited in a period. Immutable, so that a server commits it with the round.

    An invitation counts even if its round fails: the client may have debited it.
    """

    period: int = -1
    invited: frozenset[str] = frozenset()

    def choose(
        self, clients: Iterable[str], count: int, period: int, randomness: Randomness
    ) -> tuple[tuple[str, ...], "PeriodSelection"]:
        """Pick ``count`` of those not yet invited, uniformly; return them and the selection from now on."""
        if period < self.period:
            raise InputError(f"period {period} is over: clients were already invited in period {self.period}")
        invited = self.invited if period == self.period else frozenset()
        left = sorted(set(clients) - invited)
        if len(left) < count:
            raise TooFewClients(
                f"{count} clients wanted, but only {len(left)} have not been invited yet in period {period}; "
                "wait for the next period or take a smaller cohort"
            )
        cohort = choose_uniformly(left, count, randomness)
        return cohort, PeriodSelection(period, invited | frozenset(cohort))


def choose_uniformly(clients: Iterable[str], count: int, randomness: Randomness) -> tuple[str, ...]:
    """``count`` of the clients, each set of that size equally likely, in sorted order."""
    names = sorted(set(clients))
    if not 0 <= count <= len(names):
        raise InputError(f"cannot choose {count} of {len(names)} clients")
    # Sorting by independent random tickets shuffles uniformly; 16 bytes make ties a non-event.
    tickets = np.frombuffer(randomness.bytes(16 * len(names)), ">u8").reshape(-1, 2)
    first = np.lexsort((tickets[:, 1], tickets[:, 0]))[:count]
    return tuple(names[place] for place in np.sort(first))
