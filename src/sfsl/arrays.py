"""The kinds of arrays by name, and the one check of numbers of rows that a caller hands in."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfsl.errors import InputError

Indices = NDArray[np.int64]  # numbers of rows, clients or samples
Positions = NDArray[np.intp]  # where something stands in another array
Counts = NDArray[np.int64]
Bits = NDArray[np.bool_]
Values = NDArray[np.float32]  # what a model is made of
Reals = NDArray[np.float64]  # what is computed on the way

LARGEST_DOMAIN = 1 << 63  # so that every number fits a signed 64-bit word


def whole_numbers(
    given: ArrayLike,
    what: str,
    domain: int = LARGEST_DOMAIN,
    *,
    flat: bool = False,
    outside: type[InputError] = InputError,
) -> Indices:
    """A caller's numbers, checked to be whole and in 0..domain - 1, as a copy of any shape.

    ``what`` names them in errors, in the plural. ``flat`` refuses more dimensions than one; ``outside`` is
    the error for a number beyond the domain. A number that lies in it is not shown: it may be private.
    """
    try:
        array = np.asarray(given)
    except (ValueError, OverflowError) as error:
        raise InputError(f"{what} are an array of whole numbers ({error})") from None
    if flat and array.ndim != 1:
        raise InputError(f"{what} are a flat array of whole numbers, not one of {array.ndim} dimensions")
    if array.size == 0:
        return np.zeros(array.shape, np.int64)
    if array.dtype.kind not in "iu":
        raise InputError(f"{what} are whole numbers, not {array.dtype}")
    low, high = int(array.min()), int(array.max())
    if low < 0 or high >= domain:
        raise outside(f"{what} lie in the domain 0..{domain - 1}; {low if low < 0 else high} does not")
    return array.astype(np.int64)


def ascends(numbers: NDArray[np.integer]) -> bool:
    """Whether a flat array is in ascending order with nothing in it twice."""
    return bool(np.all(numbers[1:] > numbers[:-1]))


def find(wanted: NDArray[np.integer], ordered: Indices) -> tuple[Positions, Bits]:
    """Where each number stands in an ascending array, and whether it is there at all; any shape.

    The position of one that is not there is some other's. For few numbers this is faster than ``np.isin``.
    """
    if not len(ordered):
        return np.zeros(wanted.shape, np.intp), np.zeros(wanted.shape, np.bool_)
    positions = np.minimum(np.searchsorted(ordered, wanted), len(ordered) - 1)
    return positions, ordered[positions] == wanted
