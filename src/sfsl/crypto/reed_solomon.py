"""Secrets from shares of which some are wrong.

Shares of Shamir's scheme are a Reed-Solomon code word (McEliece and Sarwate, 1981), so with r shares and a
threshold t up to (r - t) / 2 wrong ones can be found: one polynomial at most agrees with all others. It is
found with the extended Euclidean algorithm (Gao, "A new algorithm for decoding Reed-Solomon codes", 2003).
Polynomials are lists of coefficients, lowest first, without leading zeros.
"""

from collections.abc import Sequence
from itertools import zip_longest

from sfsl.crypto.secret import PRIME

Polynomial = list[int]


def correctable(shares: int, threshold: int) -> int:
    """How many of so many shares may be wrong."""
    return max(0, (shares - threshold) // 2)


def decode(points: Sequence[int], shares: Sequence[int], threshold: int) -> tuple[int, list[int]] | None:
    """The secret and the points whose shares are wrong; None if more are than can be found."""
    count = len(points)
    product = _product(points)
    above, below = product, _interpolated(points, shares, product)
    before, now = Polynomial(), [1]
    while 2 * (len(below) - 1) >= count + threshold:
        quotient, rest = _divided(above, below)
        above, below = below, rest
        before, now = now, _less(before, _times(quotient, now))
    found, rest = _divided(below, now)
    if rest or len(found) > threshold:
        return None
    wrong = [point for point, share in zip(points, shares, strict=True) if _at(found, point) != share]
    if len(wrong) > correctable(count, threshold):
        return None
    return (found[0] if found else 0), wrong


def _product(points: Sequence[int]) -> Polynomial:
    """The monic polynomial that is zero at the points."""
    found = [1]
    for point in points:
        found = [(a - point * b) % PRIME for a, b in zip([0, *found], [*found, 0], strict=True)]
    return found


def _interpolated(points: Sequence[int], shares: Sequence[int], product: Polynomial) -> Polynomial:
    """The polynomial through all points (Lagrange)."""
    total = [0] * len(points)
    for point, share in zip(points, shares, strict=True):
        others = [0] * len(points)  # the product without this point, by synthetic division
        carry = 0
        for place in range(len(points), 0, -1):
            carry = others[place - 1] = (product[place] + point * carry) % PRIME
        scale = share * pow(_at(others, point), -1, PRIME) % PRIME
        for place, coefficient in enumerate(others):
            total[place] += scale * coefficient
    return _trimmed([one % PRIME for one in total])


def _at(polynomial: Polynomial, point: int) -> int:
    value = 0
    for coefficient in reversed(polynomial):
        value = (value * point + coefficient) % PRIME
    return value


def _divided(above: Polynomial, below: Polynomial) -> tuple[Polynomial, Polynomial]:
    rest = list(above)
    quotient = [0] * max(0, len(above) - len(below) + 1)
    inverse = pow(below[-1], -1, PRIME)
    for place in range(len(quotient) - 1, -1, -1):
        factor = quotient[place] = rest[place + len(below) - 1] * inverse % PRIME
        for offset, coefficient in enumerate(below):
            rest[place + offset] = (rest[place + offset] - factor * coefficient) % PRIME
    return quotient, _trimmed(rest)


def _times(one: Polynomial, other: Polynomial) -> Polynomial:
    total = [0] * (len(one) + len(other) - 1 if one and other else 0)
    for place, factor in enumerate(one):
        for offset, coefficient in enumerate(other):
            total[place + offset] += factor * coefficient
    return _trimmed([value % PRIME for value in total])


def _less(one: Polynomial, other: Polynomial) -> Polynomial:
    return _trimmed([(a - b) % PRIME for a, b in zip_longest(one, other, fillvalue=0)])


def _trimmed(polynomial: Polynomial) -> Polynomial:
    while polynomial and not polynomial[-1]:
        polynomial.pop()
    return polynomial
