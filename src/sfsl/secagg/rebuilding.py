"""Secrets from the shares that arrived, also if some are wrong; and who dealt what does not fit (spec 4.4).

A wrong share may be its holder's doing or its dealer's: nobody but the two saw it. But if no more clients
lie than ``correctable`` says, an honest dealer's secret can always be corrected, so whoever's cannot has
dealt it so. Holders are never accused: that would let a dealer choose whom.
"""

from collections.abc import Callable, Mapping
from typing import TypeVar

from sfsl.crypto.reed_solomon import correctable, decode
from sfsl.crypto.secret import Secret
from sfsl.crypto.shamir import Interpolation, as_secret
from sfsl.errors import KeyMismatch
from sfsl.secagg.transcript import point

T = TypeVar("T")


class Rebuilding:
    """The secrets of one opening. ``doubted`` are holders whose shares were corrected; they are asked last
    from then on, so that whoever lies about all secrets costs one decoding."""

    def __init__(self, threshold: int) -> None:
        self.doubted: set[int] = set()
        self._threshold = threshold
        self._weights: dict[tuple[int, ...], Interpolation] = {}

    def secret(self, dealer: str, shares: Mapping[int, int], checked: Callable[[Secret], T]) -> T:
        """What ``checked`` makes of it, which raises ``KeyMismatch``. ``shares``: by holder, and enough."""
        chosen = sorted(shares, key=lambda holder: (holder in self.doubted, holder))[: self._threshold]
        points = tuple(map(point, chosen))
        if points not in self._weights:
            self._weights[points] = Interpolation(points)
        try:
            return checked(self._weights[points].secret([shares[holder] for holder in chosen]))
        except KeyMismatch as error:
            if not correctable(len(shares), self._threshold):
                raise KeyMismatch(f"{error}; with no shares to spare, who lied cannot be told") from None
        holders = {point(holder): holder for holder in shares}
        found = decode(list(holders), list(shares.values()), self._threshold)
        try:
            if found is None:
                raise KeyMismatch("the shares do not belong to one secret")
            secret = checked(as_secret(found[0]))
        except KeyMismatch as error:
            raise KeyMismatch(str(error), (dealer,)) from None
        self.doubted.update(holders[one] for one in found[1])
        return secret
