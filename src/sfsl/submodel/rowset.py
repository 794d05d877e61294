"""Index maps between a row's number in the table, in the union and on one client (spec submodel 2).

All three are one structure. The union of a round is a ``RowSet`` of global rows; a row's *union position*
is its position in it. A client's submodel is another ``RowSet`` of global rows, and a row's *local row*
is its position in that. So ``mine.positions_of(union.rows[at])`` takes union positions to local rows, and
``union.positions_of(mine.rows[local])`` takes them back.
"""

import numpy as np
from numpy.typing import ArrayLike

from sfsl.arrays import LARGEST_DOMAIN, Bits, Indices, Positions, ascends, find, whole_numbers
from sfsl.errors import InputError, UnknownRow

_SHOWN = 5


class RowSet:
    """Rows of one table, ascending, each once."""

    __slots__ = ("rows",)

    def __init__(self, rows: ArrayLike) -> None:
        """Take rows that are in order already; ``RowSet.of`` puts them in order."""
        ordered = row_numbers(rows)
        if ordered.ndim != 1 or not ascends(ordered):
            raise InputError("a set of rows is a flat array in ascending order, each row once")
        ordered.flags.writeable = False
        self.rows: Indices = ordered

    @classmethod
    def of(cls, rows: ArrayLike) -> "RowSet":
        """The set of these rows, in whatever order and however often they are named."""
        return cls(np.unique(row_numbers(rows)))

    def __len__(self) -> int:
        return len(self.rows)

    def holds(self, rows: ArrayLike) -> Bits:
        """Whether each row is in the set; any shape."""
        return find(row_numbers(rows), self.rows)[1]

    def positions_of(self, rows: ArrayLike) -> Positions:
        """The position of each row in the set; any shape. A row that is not in it is an ``UnknownRow``."""
        wanted = row_numbers(rows)
        positions, held = find(wanted, self.rows)
        if not held.all():
            missing = wanted[~held]
            raise UnknownRow(
                f"{missing.size} rows are not in this set of {len(self)}, the first of them "
                f"{missing[:_SHOWN].tolist()}"
            )
        return positions

    def at(self, chosen: Positions | Bits) -> "RowSet":
        """The rows at these ascending positions, or where a bitmap over the set is set."""
        if chosen.dtype == np.bool_ and chosen.shape != self.rows.shape:
            raise InputError(f"a bitmap of shape {chosen.shape} over a set of {len(self)} rows")
        if chosen.dtype != np.bool_ and chosen.size and not 0 <= chosen.min() <= chosen.max() < len(self):
            raise InputError(f"positions {chosen.min()}..{chosen.max()} in a set of {len(self)} rows")
        return RowSet(self.rows[chosen])

    def common(self, other: "RowSet") -> "RowSet":
        """The rows in both: ``real.common(perturbed)`` is the succinct set."""
        return RowSet(np.intersect1d(self.rows, other.rows, assume_unique=True))

    def with_rows(self, other: "RowSet") -> "RowSet":
        """The rows in either."""
        return RowSet(np.union1d(self.rows, other.rows))

    def __repr__(self) -> str:
        # A client's set may be its private data: its size only.
        return f"RowSet(<{len(self)} rows>)"


def row_numbers(given: ArrayLike, rows: int = LARGEST_DOMAIN) -> Indices:
    """A caller's row numbers, checked to be those of a table with so many rows, as a copy of any shape."""
    return whole_numbers(given, "row numbers", rows, outside=UnknownRow)
