"""One client's samples as columns, some of which hold row numbers of the model's tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfsl.arrays import Bits, Indices, find
from sfsl.errors import InputError

Column = NDArray[Any]

# Fills up sequences; no row has this number.
NO_ROW = -1


@dataclass(frozen=True, repr=False)
class Samples:
    """Columns of equal length: one value per sample, or one sequence (filled up with ``NO_ROW``).

    ``tables`` says which columns hold row numbers, and of which table. ``follows`` names columns that
    stand in step with another: the category of each item in a history has its place only while that
    item has it.

    >>> import numpy as np, sfsl
    >>> columns = {"film": np.array([3, 7, 3]), "label": np.array([1, 0, 1], np.float32)}
    >>> seen = sfsl.Samples(columns, tables={"film": "film"})
    >>> len(seen), seen.rows()["film"].tolist()
    (3, [3, 7])
    """

    columns: Mapping[str, Column]
    tables: Mapping[str, str]
    follows: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len({len(column) for column in self.columns.values()}) > 1:
            raise InputError("the columns of a client's samples differ in length")
        for name in [*self.tables, *self.follows, *self.follows.values()]:
            if name not in self.columns:
                raise InputError(f"there is no column {name!r}; there are {', '.join(self.columns)}")

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def __repr__(self) -> str:
        # A client's samples are its private data: their number only.
        return f"Samples(<{len(self)} samples>)"

    def rows(self) -> dict[str, Indices]:
        """The rows these samples need of each table, ascending."""
        return {
            table: np.unique(some[some >= 0]).astype(np.int64)
            for table in dict.fromkeys(self.tables.values())
            for some in [self._touched(table)]
        }

    def keep(self, rows: Mapping[str, Indices]) -> "Samples":
        """The samples that can be trained with these rows, by the paper's two rules (§V).

        A sample whose single row is missing goes. A sequence keeps the rows that are there; a sample
        with nothing left in its sequence goes, and so does one that never had anything in it.
        Tables not named in ``rows`` lose nothing.
        """
        columns = dict(self.columns)
        stays = np.ones(len(self), dtype=bool)
        for name, table in self.tables.items():
            if table not in rows or name in self.follows:
                continue
            present = find(columns[name], rows[table])[1]
            if present.ndim == 1:
                stays &= present
                continue
            stays &= present.any(axis=1)
            for other in [name, *(one for one, leader in self.follows.items() if leader == name)]:
                columns[other] = _closed_up(columns[other], present)
        columns = {name: column[stays] for name, column in columns.items()}
        for name in self.tables:
            if columns[name].ndim == 2:  # without the tail that no sample reaches any more
                longest = int((columns[name] >= 0).sum(axis=1).max(initial=1))
                columns[name] = columns[name][:, :longest]
        return replace(self, columns=columns)

    def at(self, positions: Indices) -> "Samples":
        """Some of the samples, by their positions."""
        return replace(self, columns={name: column[positions] for name, column in self.columns.items()})

    def counts(self, rows: Mapping[str, Indices]) -> dict[str, Indices]:
        """How many samples touch each of these rows; a sample that has a row twice counts once."""
        counts = {}
        for table, some in rows.items():
            touched = np.sort(self._touched(table), axis=1)
            again = np.zeros(touched.shape, dtype=bool)
            again[:, 1:] = touched[:, 1:] == touched[:, :-1]
            found = _positions(touched[(touched >= 0) & ~again], some, table)
            counts[table] = np.bincount(found, minlength=len(some)).astype(np.int64)
        return counts

    def local_columns(self, rows: Mapping[str, Indices]) -> dict[str, Column]:
        """All columns, with row numbers replaced by their positions in ``rows``."""
        columns = dict(self.columns)
        for name, table in self.tables.items():
            if table in rows:
                present = columns[name] >= 0
                local = np.full(columns[name].shape, NO_ROW, dtype=np.int64)
                local[present] = _positions(columns[name][present], rows[table], table)
                columns[name] = local
        return columns

    def _touched(self, table: str) -> Column:
        """All rows of one table in each sample, side by side."""
        blocks = [self.columns[name] for name, one in self.tables.items() if one == table]
        if not blocks:
            raise InputError(f"no column of these samples holds rows of table {table!r}")
        return np.concatenate([one if one.ndim == 2 else one[:, None] for one in blocks], axis=1)


def _closed_up(sequences: Column, present: Bits) -> Column:
    """What is present, in its order and moved to the front; the rest filled up."""
    order = np.argsort(~present, axis=1, kind="stable")
    return np.asarray(np.take_along_axis(np.where(present, sequences, NO_ROW), order, axis=1))


def tails(values: Column, stop: Indices, length: Indices) -> Indices:
    """The ``length`` values before each ``stop`` as a sequence, filled up behind its end."""
    place = np.arange(int(length.max(initial=1)))
    inside = place < length[:, None]
    if not len(values):
        return np.full(inside.shape, NO_ROW, dtype=np.int64)
    # What lies beyond a sequence's end is looked up at 0 and masked.
    found = values[np.where(inside, (stop - length)[:, None] + place, 0)]
    return np.where(inside, found, NO_ROW).astype(np.int64)


def _positions(values: Column, rows: Indices, table: str) -> Indices:
    """Where each value stands in ``rows`` (ascending, all of them there)."""
    found, held = find(values, rows)
    if not held.all():
        raise InputError(f"samples touch rows of table {table!r} that are not at hand; keep() them first")
    return found.astype(np.int64)


def joined(parts: Sequence[Samples]) -> Samples:
    """The samples of several clients one behind the other; sequences are filled up to the longest."""
    if not parts:
        raise InputError("no samples to join")
    first = parts[0]
    if any((one.columns.keys(), one.tables) != (first.columns.keys(), first.tables) for one in parts):
        raise InputError("clients' samples differ in their columns")
    columns: dict[str, Column] = {}
    for name, column in first.columns.items():
        each = [one.columns[name] for one in parts]
        if column.ndim == 2:
            longest = max(one.shape[1] for one in each)
            fill = [((0, 0), (0, longest - one.shape[1])) for one in each]
            each = [np.pad(*one, constant_values=NO_ROW) for one in zip(each, fill, strict=True)]
        columns[name] = np.concatenate(each)
    return replace(first, columns=columns)
