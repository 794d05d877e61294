"""Arithmetic of F_p, p = 2^31 - 1, on arrays of 64-bit words below p."""

import numpy as np
from numpy.typing import NDArray

Field = NDArray[np.uint64]

P = 2**31 - 1
_P = np.uint64(P)
_BITS = np.uint64(31)


def times(left: Field, right: Field) -> Field:
    product = left * right  # below 2^62
    folded = (product & _P) + (product >> _BITS)  # 2^31 = 1 mod p; below 2p
    return np.minimum(folded, folded - _P)  # folded - p wraps to a huge value exactly when folded < p


def inverse(values: Field) -> Field:
    """x^(p-2), which is 1/x for x != 0 and 0 for 0. With e(k) = x^(2^k - 1): p - 2 = 4 (2^29 - 1) + 1."""

    def shift(power: Field, bits: int, last: Field) -> Field:
        for _ in range(bits):
            power = times(power, power)
        return times(power, last)

    e2 = shift(values, 1, values)
    e4 = shift(e2, 2, e2)
    e8 = shift(e4, 4, e4)
    e16 = shift(e8, 8, e8)
    e24 = shift(e16, 8, e8)
    e28 = shift(e24, 4, e4)
    e29 = shift(e28, 1, values)
    return shift(e29, 2, values)
