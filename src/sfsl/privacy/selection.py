"""Whom a server invites: each client at most once per period, the policy ``period`` (spec privacy 7).

The clients' own ledgers enforce the limit; a server that keeps to it asks nobody in vain.
"""

from collections.abc import Iterable

import msgspec
import numpy as np

from sfsl.crypto.secret import Randomness
from sfsl.errors import InputError, TooFewClients


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
