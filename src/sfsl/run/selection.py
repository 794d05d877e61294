"""Who is in a round, and what has to survive a crash for the next one: committed with the round's rows."""

from collections.abc import Iterable, Sequence
from typing import Self

import msgspec

from sfsl.errors import StoreCorrupt
from sfsl.privacy import PeriodSelection
from sfsl.privacy.selection import choose_uniformly
from sfsl.rounds import ScoreBins
from sfsl.simulate.seeded import SeededRandomness

# Streams of random numbers from the run's seed, told apart by their first word.
_COHORT = 1001


class SelectionState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``rounds`` counts the rounds each client was invited to. ``line`` is the last round's line of
    metrics, so that a crash right after the commit cannot lose it. ``scores``: the bins of the next
    round's scores, which follow from the last one's; None before there were any.
    """

    rounds: dict[str, int] = {}
    line: bytes = b""
    scores: ScoreBins | None = None
    period: PeriodSelection = PeriodSelection()

    @classmethod
    def decode(cls, data: bytes, where: str) -> Self:
        try:
            return msgspec.msgpack.decode(data, type=cls)
        except msgspec.MsgspecError as error:
            raise StoreCorrupt(f"the selection state in {where} cannot be read: {error}") from None

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)

    def invited(self, cohort: Iterable[str]) -> dict[str, int]:
        return self.rounds | {name: self.rounds.get(name, 0) + 1 for name in cohort}


def choose_cohort(clients: Sequence[str], count: int, seed: int, number: int) -> tuple[str, ...]:
    """``count`` of the clients, uniformly: a function of seed and round, the same after a crash."""
    return choose_uniformly(clients, count, SeededRandomness(_COHORT, seed, number))


def choose_in_period(
    selection: PeriodSelection, clients: Sequence[str], count: int, period: int, seed: int, number: int
) -> tuple[tuple[str, ...], PeriodSelection]:
    """``count`` of those that were not invited in this period yet."""
    return selection.choose(clients, count, period, SeededRandomness(_COHORT, seed, number))
