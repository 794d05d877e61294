"""How often someone may ask: a bucket of tokens each, in bounded memory."""

import math
from collections import OrderedDict

from sfsl.errors import ParameterError, TooMany


class Rates:
    """``per_second`` in the long run, ``burst`` at once, by name. Of ``most`` names the oldest are forgotten,
    which gives them a full bucket again: what bounds the names themselves is elsewhere."""

    def __init__(self, what: str, per_second: float, burst: int, most: int = 100_000) -> None:
        if per_second <= 0 or burst < 1 or most < 1:
            raise ParameterError(f"requests of {what}: more than 0 a second, and at least 1 at once")
        self._what = what
        self._per_second = per_second
        self._burst = burst
        self._most = most
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tokens, and when

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, name: str, now: float) -> None:
        """One request now, or ``TooMany``. A refused one takes nothing."""
        tokens, then = self._buckets.pop(name, (float(self._burst), now))
        tokens = min(float(self._burst), tokens + max(0.0, now - then) * self._per_second)
        allowed = tokens >= 1
        self._buckets[name] = (tokens - allowed, now)
        if len(self._buckets) > self._most:
            self._buckets.popitem(last=False)
        if not allowed:
            wait = math.ceil(1000 * (1 - tokens) / self._per_second)
            raise TooMany(f"too many requests of {self._what}; slow down", wait_ms=wait)
