"""An invertible Bloom lookup table over F_p, p = 2^31 - 1: exact, from any domain (spec 9).

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

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NoReturn

import numpy as np

from sfsl.arrays import Indices
from sfsl.crypto.prg import uniform
from sfsl.crypto.randomness import Randomness
from sfsl.crypto.ring import F31, Ring, Words
from sfsl.union.encoding import check_domain, checked_sum, fail, index_set
from sfsl.union.field import Field, P, inverse, times
from sfsl.union.hashing import KeyedHash
from sfsl.union.sizing import QUARTERS, estimated_elements, sketch_quarter

TRIED_VALUES = 4


@dataclass(frozen=True)
class Sketch:
    """The vector is one plane after another (factors, digits from the lowest, checks), each of all cells."""

    domain: int
    capacity: int
    seed: bytes
    reason: str = "asked for by name"
    name: ClassVar[str] = "sketch"
    ring: ClassVar[Ring] = F31

    def __post_init__(self) -> None:
        check_domain(self.domain, self.capacity)
        _ = self.quarter, self._positions, self._checks  # refuse now, not at the first use

    @cached_property
    def quarter(self) -> int:
        return sketch_quarter(min(self.capacity, self.domain))

    @cached_property
    def digits(self) -> int:
        count = 1
        while self.domain > TRIED_VALUES * P**count:
            count += 1
        return count

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

    @property
    def false_positives_expected(self) -> float:
        return 0.0

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
        rows = [
            number * self.quarter + position.below(elements, self.quarter)
            for number, position in enumerate(self._positions)
        ]
        return np.stack(rows)

    def _check(self, elements: Indices) -> Field:
        return self._checks.below(elements, P).view(np.uint64)

    def _add(self, table: Field, elements: Indices, factors: Field) -> None:
        cells = self._cells(elements).ravel()
        rest = elements.view(np.uint64)
        columns = [factors]
        for _ in range(self.digits):
            columns.append(times(factors, rest % np.uint64(P)))
            rest = rest // np.uint64(P)
        columns.append(times(factors, self._check(elements)))
        for plane, column in zip(table, columns, strict=True):
            np.add.at(plane, cells, np.tile(column, QUARTERS))
            plane[cells] %= np.uint64(P)

    def _pure(self, table: Field, waiting: Indices) -> tuple[Indices, Indices, Field]:
        """Those of the waiting cells that hold one element; that element, and its factor there."""
        waiting = waiting[table[0, waiting] != 0]
        factors = table[0, waiting]
        inverses = inverse(factors)
        ratio = times(table[-1, waiting], inverses)
        base = np.zeros(len(waiting), np.uint64)
        for plane in range(self.digits, 0, -1):
            base = base * np.uint64(P) + times(table[plane, waiting], inverses)
        pure, elements, own = [], [], []
        for top in range(-(-self.domain // P**self.digits)):
            candidates = base + np.uint64(top * P**self.digits)  # below 2^64: at most 3 p^2, or 4 p
            fits = np.flatnonzero(candidates < np.uint64(self.domain))
            fits = fits[self._check(candidates[fits].view(np.int64)) == ratio[fits]]
            fits = fits[(self._cells(candidates[fits].view(np.int64)) == waiting[fits]).any(axis=0)]
            pure.append(waiting[fits])
            elements.append(candidates[fits].view(np.int64))
            own.append(factors[fits])
        return np.concatenate(pure), np.concatenate(elements), np.concatenate(own)

    def _fail(self, why: str, occupied: int) -> NoReturn:
        fail(why, estimated_elements(occupied, self.cells, self.quarter), self.domain, self.capacity)
