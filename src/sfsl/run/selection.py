"""Who is in a simulated round: a function of the run's seed and the round, the same after a crash."""

from collections.abc import Sequence

from sfsl.privacy import PeriodSelection, choose_uniformly
from sfsl.simulate.seeded import SeededRandomness

# Streams of random numbers from the run's seed, told apart by their first word.
_COHORT = 1001


def choose_cohort(clients: Sequence[str], count: int, seed: int, number: int) -> tuple[str, ...]:
    """Choose ``count`` of the clients, each set of that size equally likely."""
    return choose_uniformly(clients, count, SeededRandomness(_COHORT, seed, number))


def choose_in_period(
    selection: PeriodSelection, clients: Sequence[str], count: int, period: int, seed: int, number: int
) -> tuple[tuple[str, ...], PeriodSelection]:
    """Choose ``count`` of those that were not invited in this period yet."""
    return selection.choose(clients, count, period, SeededRandomness(_COHORT, seed, number))
