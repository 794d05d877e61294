"""The policy ``period``: each client at most once, uniformly, and over again in the next period."""

from collections import Counter

import msgspec
import pytest

from sfsl.errors import InputError, TooFewClients
from sfsl.privacy import PeriodSelection, choose_uniformly
from sfsl.testing import SeededRandomness

CLIENTS = [f"client-{number}" for number in range(10)]


def test_everyone_once_per_period() -> None:
    randomness, selection = SeededRandomness(1), PeriodSelection()
    invited: list[str] = []
    for _ in range(3):
        cohort, selection = selection.choose(CLIENTS, 3, 5, randomness)
        assert len(cohort) == 3
        invited += cohort
    assert len(set(invited)) == 9
    with pytest.raises(TooFewClients, match="only 1 have not been invited yet in period 5"):
        selection.choose(CLIENTS, 3, 5, randomness)
    cohort, selection = selection.choose(CLIENTS, 3, 6, randomness)
    assert selection == PeriodSelection(6, frozenset(cohort))
    with pytest.raises(InputError, match="period 5 is over"):
        selection.choose(CLIENTS, 3, 5, randomness)


def test_a_selection_is_a_value() -> None:
    """Choosing leaves the old selection as it was, and it can be stored with the round."""
    before = PeriodSelection()
    _, after = before.choose(CLIENTS, 4, 0, SeededRandomness(2))
    assert before == PeriodSelection()
    stored = msgspec.msgpack.encode(after)
    assert msgspec.msgpack.decode(stored, type=PeriodSelection) == after


def test_choices_are_uniform() -> None:
    randomness = SeededRandomness(3)
    seen = Counter(choose_uniformly("abcde", 2, randomness) for _ in range(4000))
    assert len(seen) == 10
    assert all(320 < count < 480 for count in seen.values())


def test_choosing_more_than_there_are() -> None:
    with pytest.raises(InputError, match="cannot choose 3 of 2"):
        choose_uniformly(["a", "b", "b"], 3, SeededRandomness(4))
    assert choose_uniformly(["b", "a"], 2, SeededRandomness(4)) == ("a", "b")
    assert choose_uniformly([], 0, SeededRandomness(4)) == ()
