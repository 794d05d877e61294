"""How long to wait before trying again: longer each time, and never in step with others."""

from dataclasses import dataclass

from sfsl.crypto.secret import Randomness


@dataclass(frozen=True)
class Backoff:
    """Delays double from ``first`` to ``longest`` seconds; each is then drawn from its upper half.

    After an outage all clients come back at once unless chance spreads them; but a delay of nearly
    nothing would make a busy server busier.
    """

    randomness: Randomness
    first: float = 1.0
    longest: float = 60.0
    most_obeyed: float = 3600.0

    def delay(self, attempt: int, asked: float = 0.0) -> float:
        """Return the seconds before try ``attempt`` + 2. ``asked``: what the server wants, within reason."""
        own = min(self.longest, self.first * 2.0 ** min(attempt, 32))
        least = min(max(asked, 0.0), self.most_obeyed)
        share = int.from_bytes(self.randomness.bytes(4), "big") / 2**32
        return least + own * (0.5 + 0.5 * share)
