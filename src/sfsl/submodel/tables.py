"""Rows of one table: a set of them, the tables of a model, and rows that follow from others.

All three are one structure. The union of a round is a ``RowSet`` of global rows; a row's *union position*
is its position in it. A client's submodel is another ``RowSet`` of global rows, and a row's *local row*
is its position in that. So ``mine.positions_of(union.rows[at])`` takes union positions to local rows, and
``union.positions_of(mine.rows[local])`` takes them back.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Literal

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import ArrayLike, NDArray

from sfsl.arrays import LARGEST_DOMAIN, Bits, Indices, Positions, ascends, find, whole_numbers
from sfsl.codec import Checked
from sfsl.crypto.secret import digest
from sfsl.errors import InputError, ParameterError, UnknownRow

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
        """Make the set of these rows, in whatever order and however often they are named."""
        return cls(np.unique(row_numbers(rows)))

    def __len__(self) -> int:
        return len(self.rows)

    def holds(self, rows: ArrayLike) -> Bits:
        """Say whether each row is in the set; any shape."""
        return find(row_numbers(rows), self.rows)[1]

    def positions_of(self, rows: ArrayLike) -> Positions:
        """Return the position of each row, any shape. A row that is not in the set is an ``UnknownRow``."""
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
        """Return the rows at these ascending positions, or where a bitmap over the set is set."""
        if chosen.dtype == np.bool_:
            if chosen.shape != self.rows.shape:
                raise InputError(f"a bitmap of shape {chosen.shape} over a set of {len(self)} rows")
        elif chosen.size and not 0 <= chosen.min() <= chosen.max() < len(self):
            raise InputError(f"positions {chosen.min()}..{chosen.max()} in a set of {len(self)} rows")
        return RowSet(self.rows[chosen])

    def common(self, other: "RowSet") -> "RowSet":
        """Return the rows in both: ``real.common(perturbed)`` is the succinct set."""
        return RowSet(np.intersect1d(self.rows, other.rows, assume_unique=True))

    def with_rows(self, other: "RowSet") -> "RowSet":
        """Return the rows in either."""
        return RowSet(np.union1d(self.rows, other.rows))

    def __repr__(self) -> str:
        # A client's set may be its private data: its size only.
        return f"RowSet(<{len(self)} rows>)"


def row_numbers(given: ArrayLike, rows: int = LARGEST_DOMAIN) -> Indices:
    """Check a caller's row numbers to be those of a table with so many rows; return a copy, of any shape."""
    return whole_numbers(given, "row numbers", rows, outside=UnknownRow)


MAX_TABLES = 64

TableName = Annotated[str, Meta(pattern=r"^[A-Za-z][A-Za-z0-9_.-]{0,63}$")]


class Table(Checked, frozen=True):
    """One table of rows.

    ``shared``: clients answer, with randomized response, which rows they have. ``derived``: its rows
    follow from those of ``source`` by a public map. ``personal``: never leaves the device.

    ``initial``: rows begin uniform in ±initial; 0 begins at zero. A number of rows with room to grow
    costs nothing, since only rows ever touched are stored.

    >>> import sfsl
    >>> film = sfsl.Table(name="film", rows=2_000_000_000, width=16)
    >>> genre = sfsl.Table(name="genre", rows=30, width=4, kind="derived", source="film")
    >>> user = sfsl.Table(name="user", rows=1_000_000, width=8, kind="personal")
    """

    name: TableName
    rows: Annotated[int, Meta(ge=1)]
    width: Annotated[int, Meta(ge=1, le=2**20)]
    kind: Literal["shared", "derived", "personal"] = "shared"
    source: TableName | None = None
    initial: Annotated[float, Meta(ge=0, le=1e6)] = 0.05

    def require_sound(self) -> None:
        if self.rows > LARGEST_DOMAIN:
            raise ParameterError(f"table {self.name!r} has {self.rows} rows; at most 2^63 are possible")
        if (self.kind == "derived") != (self.source is not None):
            raise ParameterError(f"table {self.name!r}: derived tables, and only those, name a source")

    @property
    def words(self) -> int:
        """Words of one row in the sum: its parameters, then its weight (spec submodel 3)."""
        return self.width + 1


class ModelSpec(Checked, frozen=True):
    """The tables of a model and the number of parameters in its dense rest."""

    tables: Annotated[tuple[Table, ...], Meta(max_length=MAX_TABLES)]
    dense: Annotated[int, Meta(ge=0, le=2**40)]

    def require_sound(self) -> None:
        kinds = {table.name: table.kind for table in self.tables}
        if len(kinds) != len(self.tables):
            raise ParameterError(f"two tables of one model have the same name: {[*kinds]}")
        for table in self.tables:
            if table.source is not None and kinds.get(table.source) != "shared":
                raise ParameterError(
                    f"table {table.name!r} is derived from {table.source!r}, which is not a shared table"
                )

    @property
    def summed(self) -> tuple[Table, ...]:
        """The tables whose rows travel and are summed, in the order of the sum: all but the personal."""
        return tuple(table for table in self.tables if table.kind != "personal")

    @property
    def dense_words(self) -> int:
        """Words of the dense part in the sum: its parameters, then its weight."""
        return self.dense + 1

    def table(self, name: str) -> Table:
        for table in self.tables:
            if table.name == name:
                return table
        raise InputError(f"this model has no table {name!r}; it has {[table.name for table in self.tables]}")

    def fingerprint(self) -> bytes:
        """Return 32 bytes, others for another model. The maps of derived rows are not in: catalogues grow."""
        return digest("model", canonical_json(self))


def canonical_json(spec: Checked) -> bytes:
    """Return one text for equal settings: a number given as 1 and as 1.0 must not make two models."""
    encoded = msgspec.json.encode(spec)
    return msgspec.json.encode(msgspec.json.decode(encoded, type=type(spec)))


# The derived row of every source row, as an array; or a vectorised function of source rows, which is
# what a table too large for an array has.
RowMap = NDArray[np.integer] | Callable[[Indices], ArrayLike]


class RowMaps:
    """One public map for each derived table of a model. Client and server have the same."""

    def __init__(self, model: ModelSpec, maps: Mapping[str, RowMap]) -> None:
        derived = {table.name for table in model.tables if table.kind == "derived"}
        if derived != maps.keys():
            raise ParameterError(
                f"maps are given for {sorted(maps)}, the derived tables are {sorted(derived)}"
            )
        self._model, self._maps = model, dict(maps)
        for name, given in maps.items():
            if callable(given):
                continue
            table = model.table(name)
            values = self._maps[name] = row_numbers(given, table.rows)
            source = model.table(str(table.source))
            if values.shape != (source.rows,):
                raise ParameterError(
                    f"the map of table {name!r} has shape {values.shape}, "
                    f"but {source.name!r} has {source.rows} rows"
                )

    def rows_of(self, name: str, source_rows: ArrayLike) -> Indices:
        """Return the derived row of each source row, in the same order and shape."""
        table = self._model.table(name)
        if name not in self._maps:
            raise InputError(f"table {name!r} is {table.kind}; only derived tables have a map")
        wanted = row_numbers(source_rows, self._model.table(str(table.source)).rows)
        given = self._maps[name]
        if not callable(given):
            return np.asarray(given[wanted], np.int64)
        derived = row_numbers(given(wanted), table.rows)
        if derived.shape != wanted.shape:
            raise InputError(
                f"the map of table {name!r} gives shape {derived.shape} for rows of shape {wanted.shape}"
            )
        return derived

    def with_derived(self, shared: Mapping[str, RowSet]) -> dict[str, RowSet]:
        """Return one set for each table that is summed, in that order: shared ones and what follows."""
        expected = {table.name for table in self._model.tables if table.kind == "shared"}
        if shared.keys() != expected:
            raise InputError(f"rows are given for {sorted(shared)}, the shared tables are {sorted(expected)}")
        return {
            table.name: shared[table.name]
            if table.source is None
            else RowSet.of(self.rows_of(table.name, shared[table.source].rows))
            for table in self._model.summed
        }
