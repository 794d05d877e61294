"""How long a client waits before it tries again."""

from sfsl.client import Backoff
from sfsl.testing import SeededRandomness


def test_a_wait_never_overflows() -> None:
    assert 30 <= Backoff(SeededRandomness("a")).delay(10**6) <= 60
