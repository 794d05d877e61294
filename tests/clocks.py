"""Time in tests: no outcome depends on how busy a machine is.

What a test waits for is a state, and ``PATIENCE`` only ends a test that hangs. Where the code under test has
a deadline, the deadline is far away and ``let_time_pass`` brings it about.
"""

import asyncio
import time
from collections.abc import Callable

PATIENCE = 600.0


def let_time_pass(seconds: float) -> None:
    """For the event loop that runs here, so much time has passed at once: timers that are due go off."""
    loop = asyncio.get_running_loop()
    now = loop.time
    loop.time = lambda: now() + seconds  # type: ignore[method-assign]


class SteppingClock:
    """A clock that only sleeping moves, for code that takes its clock and its sleep as parameters."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


async def until(condition: Callable[[], object], pause: float = 0.005) -> None:
    """Wait for a state, however long a busy machine takes to come to it."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it did not come to that"
        await asyncio.sleep(pause)
