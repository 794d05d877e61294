"""An invertible sketch of an index set over a prime field (spec private-set-union).

The nearest prior art sums invertible sketches securely to find heavy hitters (arXiv 2307.13347) and shows
counts; here every element carries a uniform factor instead.

Each index x has one cell in each quarter of the table. A client that holds x draws a uniform r in F_p and
adds r * (1, digits of x, check(x)) to each. Over all owners that is rho * (1, digits, check), rho uniform
whatever their number. To decode, take a cell that holds a single element (its ratios give an x that passes
the check and belongs there), subtract the element from its other cells, and go on.

**Digits.** x is written in base p, so that every digit is an element of F_p. A top digit of at most
TRIED_VALUES values is not stored: each value is tried. So 2^31 costs one word of digits and 2^63 two.

**One check word is enough.** The ratio x' of a cell that holds several elements is as good as uniform: it
passes the check with probability t/p, where t <= TRIED_VALUES candidates lie in the domain, and belongs to
the cell with probability 1/q for q cells in a quarter. A decode looks at fewer than 4n such mixtures and
n/q < 3.1, so it takes x' for an element with probability below 12.4 t/p, 6e-9 for t = 1: nothing beside the
1e-6 allowed for failure. It would not be silent either: x' is subtracted from three cells it never was in,
where it would have to be found a second time, and that is refused. (docs/spec/union-sizing.md §5)

**What is missed.** An index whose rho is zero, with probability 1/p, leaves no trace in the sum. No
encoding that hides the number of owners can tell (see ``encoding``).
"""

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import ClassVar, NoReturn

import numpy as np
from numpy.typing import NDArray

from sfsl.arrays import Indices
from sfsl.crypto.ring import F31, Ring, Words, uniform
from sfsl.crypto.secret import Randomness
from sfsl.errors import ParameterError
from sfsl.union.encoding import KeyedHash, check_domain, checked_sum, estimated_elements, fail, index_set

Field = NDArray[np.uint64]

P = 2**31 - 1
_P = np.uint64(P)
_BITS = np.uint64(31)
TRIED_VALUES = 4
# An element lies in one cell of each quarter of a sketch.
QUARTERS = 4
# Up to here the failure probability was measured or modelled. Beyond, it only falls (both of its terms do),
# so the rule still holds; where it stops is a matter of memory.
LARGEST_CAPACITY = 2**24
# Bounds the chance that a sum over capacity, all of it in four cells, passes for an element.
LEAST_QUARTER = 16
# Two elements in the same four cells cannot be told apart. Expecting at most 1 / 1,250,000 such pairs leaves
# a fifth of the failure budget of 1e-6 to everything else.
PAIR_RARITY = 1_250_000


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


def sketch_quarter(capacity: int) -> int:
    """Cells in a quarter so that ``capacity`` elements fail to decode with probability below 1e-6. The larger
    of two needs, in whole numbers so that every implementation agrees. Few elements: no pair shares all its
    cells, q^4 >= PAIR_RARITY * C(n, 2). Many: 1.30 n + 4 sqrt(n) cells keep the load at least 6.9 standard
    deviations below the load at which peeling breaks down (1.295 n in the limit). Measurements are in
    docs/spec/union-sizing.md."""
    if not 1 <= capacity <= LARGEST_CAPACITY:
        raise ParameterError(f"a sketch holds 1 to {LARGEST_CAPACITY} elements, not {capacity}")
    pairs = math.isqrt(math.isqrt(PAIR_RARITY * math.comb(capacity, 2))) + 1
    threshold = -(-13 * capacity // 40) + math.isqrt(capacity) + 1
    return max(LEAST_QUARTER, pairs, threshold)


@dataclass(frozen=True)
class Sketch:
    """The vector is one plane after another (factors, digits from the lowest, checks), each of all cells."""

    domain: int
    capacity: int
    seed: bytes
    reason: str = "asked for by name"
    name: ClassVar[str] = "sketch"
    ring: ClassVar[Ring] = F31
    false_positives_expected: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        check_domain(self.domain, self.capacity)
        _ = self.quarter, self._positions, self._checks  # refuse now, not at the first use

    @cached_property
    def quarter(self) -> int:
        return sketch_quarter(min(self.capacity, self.domain))

    @cached_property
    def digits(self) -> int:
        return next(digits for digits in count(1) if self.domain <= TRIED_VALUES * P**digits)

    @cached_property
    def _positions(self) -> tuple[KeyedHash, ...]:
        return tuple(KeyedHash(self.seed, "sketch cell", number) for number in range(QUARTERS))

    @cached_property
    def _checks(self) -> KeyedHash:
        return KeyedHash(self.seed, "sketch check")

    @property
    def cells(self) -> int:
        return QUARTERS * self.quarter

    @property
    def planes(self) -> int:
        return self.digits + 2

    @property
    def length(self) -> int:
        return self.planes * self.cells

    def encode(self, indices: Indices, randomness: Randomness) -> Words:
        elements = index_set(indices, self.domain, self.capacity)
        table = np.zeros((self.planes, self.cells), np.uint64)
        self._add(table, elements, uniform(self.ring, len(elements), randomness).astype(np.uint64))
        return table.ravel().astype(self.ring.dtype)

    def decode(self, total: Words) -> Indices:
        words = checked_sum(total, self.ring, self.length).reshape(self.planes, self.cells)
        table = words.astype(np.uint64)
        # A settled cell held one element, which has been taken out. In an honest sum nothing else was in it,
        # so nothing reaches it again. This is what betrays a mixture taken for an element (it is found again,
        # to be put back), and keeps a dishonest sum from making elements come and go for ever.
        settled = np.zeros(self.cells, np.bool_)
        waiting = np.flatnonzero(words.any(axis=0))
        occupied = len(waiting)
        found = [np.zeros(0, np.int64)]
        while len(waiting):
            pure, elements, factors = self._pure(table, waiting)
            if not len(pure):
                break
            elements, first = np.unique(elements, return_index=True)  # found in several cells: taken out once
            touched = self._cells(elements).ravel()
            if settled[touched].any():
                self._fail("an element was found that belongs to a cell already emptied", occupied)
            self._add(table, elements, P - factors[first])
            settled[pure] = True
            found.append(elements)
            changed = np.zeros(self.cells, np.bool_)
            changed[touched] = True
            waiting = np.flatnonzero(changed & ~settled)
        if table.any():
            self._fail("no cell is left that holds a single element", occupied)
        return np.sort(np.concatenate(found))

    def _cells(self, elements: Indices) -> Indices:
        """[QUARTERS, elements]: the cells of each element, numbered through the table."""
        below = [position.below(elements, self.quarter) for position in self._positions]
        return np.stack([number * self.quarter + within for number, within in enumerate(below)])

    def _check(self, elements: Indices) -> Field:
        return self._checks.below(elements, P).view(np.uint64)

    def _add(self, table: Field, elements: Indices, factors: Field) -> None:
        cells = self._cells(elements).ravel()
        rest = elements.view(np.uint64)
        columns = [factors]
        for _ in range(self.digits):
            columns.append(times(factors, rest % _P))
            rest = rest // _P
        columns.append(times(factors, self._check(elements)))
        for plane, column in zip(table, columns, strict=True):
            np.add.at(plane, cells, np.tile(column, QUARTERS))
            plane[cells] %= _P

    def _pure(self, table: Field, waiting: Indices) -> tuple[Indices, Indices, Field]:
        """The waiting cells that hold one element; that element, and its factor there."""
        waiting = waiting[table[0, waiting] != 0]
        factors = table[0, waiting]
        inverses = inverse(factors)
        ratio = times(table[-1, waiting], inverses)
        base = np.zeros(len(waiting), np.uint64)
        for plane in range(self.digits, 0, -1):
            base = base * _P + times(table[plane, waiting], inverses)
        found = []
        for top in range(-(-self.domain // P**self.digits)):
            candidates = base + np.uint64(top * P**self.digits)  # below 2^64: at most 3 p^2, or 4 p
            fits = np.flatnonzero(candidates < np.uint64(self.domain))
            fits = fits[self._check(candidates[fits].view(np.int64)) == ratio[fits]]
            fits = fits[(self._cells(candidates[fits].view(np.int64)) == waiting[fits]).any(axis=0)]
            found.append((waiting[fits], candidates[fits].view(np.int64), factors[fits]))
        pure, elements, own = map(np.concatenate, zip(*found, strict=True))
        return pure, elements, own

    def _fail(self, why: str, occupied: int) -> NoReturn:
        fail(why, estimated_elements(occupied, self.cells, self.quarter), self.domain, self.capacity)
