"""Periods, whom a server invites in each, and what a client has given away so far, in them and in noisy sums
(spec privacy 2, 5 and 7).

Periods start by the calendar and never by data. In each a server invites every client at most once, the
policy ``period``. The clients' own ledgers enforce that limit; a server that keeps to it asks nobody in
vain.

A ledger is immutable arithmetic: a debit makes a new one, which ``ClientState`` writes before anything
leaves.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cached_property
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from sfsl.crypto.secret import Randomness
from sfsl.errors import BudgetExhausted, InputError, ParameterError, TooFewClients
from sfsl.privacy.accounting import epsilon_of, rho_for
from sfsl.privacy.parameters import IndexPrivacy, epsilon_after

# Sums of the same evidence in another order differ in the last digits; a limit is not meant that finely.
_ROUNDING = 1e-9


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
    """Who has been invited in a period. Immutable, so that a server commits it with the round. An invitation
    counts even if its round fails: the client may have debited it."""

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


@dataclass(frozen=True)
class Budget:
    """The limits of a client's operator. Epsilon is per index and has no default: it must be chosen.
    ``exposures_per_period``: in how many rounds of a period the union and the sums may be opened with this
    client in them. Epsilon does not cover what they show; raising this from 1 is a decision.

    ``epsilon_hot`` at ``delta_hot`` is the limit for all that noisy sums ever show of this client, 0 where it
    takes part in none; ``rho_per_round`` is the most that one of them may cost."""

    epsilon_per_period: float
    epsilon_total: float
    exposures_per_period: int = 1
    epsilon_hot: float = 0.0
    delta_hot: float = 1e-6
    rho_per_round: float = math.inf

    def __post_init__(self) -> None:
        limits = (self.epsilon_per_period, self.epsilon_total, self.epsilon_hot, self.rho_per_round)
        if not all(limit >= 0 for limit in limits):
            raise ParameterError("a limit on epsilon or rho is a number from 0 up (math.inf for none)")
        if not 0 < self.delta_hot < 1:
            raise ParameterError(f"delta lies between 0 and 1 (usual: 1e-6), not {self.delta_hot!r}")
        limit = self.exposures_per_period
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
            raise ParameterError("a limit on exposures is a whole number from 0 up")

    @cached_property
    def rho(self) -> float:
        """All that noisy sums may cost, in rho."""
        return rho_for(self.epsilon_hot, self.delta_hot)


class ClosedPeriod(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One line per past period: its number, exposures, rounds answered, epsilon per index."""

    number: int
    exposures: int
    answered: int
    epsilon: float


class Ledger(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Counts of the current period, one line for each closed one, and two counters that never go back.
    ``begun`` counts every exposure and every hot round ever debited. ``lost`` counts rounds that the server
    has seen and this ledger has not, and ``lost_epsilon`` is what they are charged with."""

    exposures: int = 0
    answered: int = 0
    yes_evidence: float = 0.0
    no_evidence: float = 0.0
    closed: tuple[ClosedPeriod, ...] = ()
    begun: int = 0
    lost: int = 0
    lost_epsilon: float = 0.0

    def epsilon(self, p1: float, p2: float) -> float:
        """Epsilon per index in the current period, whose permanent answers were drawn with p1 and p2."""
        return epsilon_after(p1, p2, self.yes_evidence, self.no_evidence)

    @property
    def epsilon_before(self) -> float:
        """Epsilon per index of all earlier periods together."""
        return math.fsum(period.epsilon for period in self.closed) + self.lost_epsilon

    def check_round(self, budget: Budget, privacy: IndexPrivacy) -> None:
        """Raise unless one more round, its exposure and its answer, fits the budget."""
        if self.exposures >= budget.exposures_per_period:
            raise BudgetExhausted(
                f"{self.exposures} of {budget.exposures_per_period} exposures of this period are spent; the "
                "client sits out until the next period. Each opened union and sum narrows down who has what, "
                "which epsilon does not cover: raise the limit only knowing that"
            )
        self.check_answer(budget, privacy)

    def check_answer(self, budget: Budget, privacy: IndexPrivacy) -> None:
        """Raise unless one more answer fits the epsilon limits."""
        after = self.after_answer(privacy).epsilon(privacy.p1, privacy.p2)
        if after > budget.epsilon_per_period + _ROUNDING:
            raise BudgetExhausted(
                f"after {self.answered} rounds another answer would bring epsilon to {after:.4g} in this "
                f"period, where {budget.epsilon_per_period:.4g} are allowed; the client sits out until the "
                "next period"
            )
        if self.epsilon_before + after > budget.epsilon_total + _ROUNDING:
            raise BudgetExhausted(
                f"another answer would bring epsilon over all periods to {self.epsilon_before + after:.4g}, "
                f"where {budget.epsilon_total:.4g} are allowed; the client takes no further part"
            )

    def after_exposure(self) -> "Ledger":
        return msgspec.structs.replace(self, exposures=self.exposures + 1, begun=self.begun + 1)

    def after_answer(self, privacy: IndexPrivacy) -> "Ledger":
        yes, no = privacy.evidence
        return msgspec.structs.replace(
            self,
            answered=self.answered + 1,
            yes_evidence=self.yes_evidence + yes,
            no_evidence=self.no_evidence + no,
        )

    def after_period(self, number: int, p1: float, p2: float) -> "Ledger":
        """Close a period: what it cost stays on the books for ever."""
        line = ClosedPeriod(number, self.exposures, self.answered, self.epsilon(p1, p2))
        return Ledger(
            closed=(*self.closed, line), begun=self.begun, lost=self.lost, lost_epsilon=self.lost_epsilon
        )

    def after_hot_round(self) -> "Ledger":
        return msgspec.structs.replace(self, begun=self.begun + 1)

    def after_loss(self, acknowledged: int, epsilon: float) -> "Ledger":
        """Own up to rounds that only the server remembers, each at the most that it can have cost."""
        missing = acknowledged - self.begun
        return msgspec.structs.replace(
            self,
            begun=acknowledged,
            lost=self.lost + missing,
            lost_epsilon=self.lost_epsilon + missing * epsilon,
        )


class HotLedger(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What noisy sums have cost: ``rho`` in ``rounds``, of which ``lost`` are known from the server only and
    charged with the most that a round may cost. ``last``: the digest of the last round that was paid for."""

    rho: Annotated[float, Meta(ge=0)] = 0.0
    rounds: int = 0
    lost: int = 0
    last: bytes = b""

    def check(self, budget: Budget, rho: float) -> None:
        """Raise unless one more round at this cost fits the budget."""
        if not rho > 0:
            raise InputError(f"a hot round costs more than nothing, not rho {rho!r}")
        if budget.epsilon_hot == 0:
            raise BudgetExhausted("this client's owner allows no hot rounds (epsilon_hot is 0)")
        if rho > budget.rho_per_round * (1 + _ROUNDING):
            raise BudgetExhausted(
                f"the round costs rho {rho:.4g}, where the owner allows {budget.rho_per_round:.4g} at most; "
                "the client sits it out and waits for one with more noise"
            )
        if self.rho + rho > budget.rho * (1 + _ROUNDING):
            left = max(0.0, budget.rho - self.rho)
            raise BudgetExhausted(
                f"the round costs rho {rho:.4g} and {left:.4g} of {budget.rho:.4g} is left: epsilon is "
                f"{epsilon_of(self.rho, budget.delta_hot):.4g} after {self.rounds} rounds, where "
                f"{budget.epsilon_hot:.4g} is allowed at delta {budget.delta_hot:.3g}; the client takes no "
                "part in a round that costs more than is left"
            )

    def after_round(self, name: bytes, rho: float) -> "HotLedger":
        return HotLedger(self.rho + rho, self.rounds + 1, self.lost, name)

    def after_loss(self, missing: int, budget: Budget) -> "HotLedger":
        """Own up to rounds that only the server remembers, each at the most that it can have cost. Where the
        owner allows no hot round, none of them was one."""
        most = min(budget.rho_per_round, budget.rho)
        if most == 0:
            return self
        rho = self.rho + missing * most
        return HotLedger(rho, self.rounds + missing, self.lost + missing, self.last)
