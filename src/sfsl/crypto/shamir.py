"""Shamir sharing of 32-byte secrets over the prime field of p = 2^256 + 297 (spec 2.7).

The prime exceeds 2^256, so every 32-byte string is an element and no secret is folded.
"""

from collections.abc import Sequence
from math import prod

from sfsl.crypto.secret import Randomness, Secret
from sfsl.errors import InvalidMessage, KeyMismatch, ParameterError

PRIME = 2**256 + 297
SECRET_BYTES = 32
SHARE_BYTES = 33


def split(secret: Secret, threshold: int, points: Sequence[int], randomness: Randomness) -> list[bytes]:
    """One share per point; any ``threshold`` of them give the secret, fewer say nothing about it."""
    if len(secret) != SECRET_BYTES:
        raise ParameterError(f"a secret of {SECRET_BYTES} bytes is needed, not {len(secret)}")
    if not 2 <= threshold <= len(points):
        raise ParameterError(f"threshold {threshold} does not fit {len(points)} shares (2 at the least)")
    if len(set(points)) != len(points) or not all(0 < point < PRIME for point in points):
        raise ParameterError("share points must be distinct and in 1..p-1")
    # Highest power first, the secret last: Horner's order. Points are small, so one reduction at the
    # end costs less than one per step.
    coefficients = [
        *(_element(randomness) for _ in range(threshold - 1)),
        int.from_bytes(secret.reveal(), "big"),
    ]
    shares = []
    for point in points:
        value = 0
        for coefficient in coefficients:
            value = value * point + coefficient
        shares.append((value % PRIME).to_bytes(SHARE_BYTES, "big"))
    return shares


def parse_share(share: bytes) -> int:
    """A share received from someone else as a field element."""
    value = int.from_bytes(share, "big")
    if len(share) != SHARE_BYTES or value >= PRIME:
        raise InvalidMessage("a share that is not an element of the sharing field")
    return value


class Interpolation:
    """Lagrange weights at zero for one set of points, computed once and used for every secret."""

    def __init__(self, points: Sequence[int]) -> None:
        if len(set(points)) != len(points):
            raise ParameterError("share points must be distinct")
        self._weights = [_weight(point, points) for point in points]

    def secret(self, shares: Sequence[int]) -> Secret:
        """The secret behind the shares, in the order of the points."""
        return as_secret(sum(w * s for w, s in zip(self._weights, shares, strict=True)) % PRIME)


def as_secret(element: int) -> Secret:
    if element >> (8 * SECRET_BYTES):
        raise KeyMismatch("the shares do not belong to one secret")
    return Secret(element.to_bytes(SECRET_BYTES, "big"))


def _weight(point: int, points: Sequence[int]) -> int:
    others = [other for other in points if other != point]
    denominator = prod(other - point for other in others)
    return prod(others) * pow(denominator, -1, PRIME) % PRIME


def _element(randomness: Randomness) -> int:
    """A uniform field element: 33 bytes cut to 257 bits, redrawn until below the prime."""
    while True:
        value = int.from_bytes(randomness.bytes(SHARE_BYTES), "big") & ((1 << 257) - 1)
        if value < PRIME:
            return value
