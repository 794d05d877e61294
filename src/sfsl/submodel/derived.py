"""Rows that follow from other rows by a public map, as categories do from items (spec submodel 2.2)."""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfsl.arrays import Indices
from sfsl.errors import InputError, ParameterError
from sfsl.submodel.rowset import RowSet, row_numbers
from sfsl.submodel.tables import ModelSpec, Table

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
        self._model = model
        self._maps = {name: self._checked(model.table(name), given) for name, given in maps.items()}

    def _checked(self, table: Table, given: RowMap) -> RowMap:
        if callable(given):
            return given
        values = row_numbers(given, table.rows)
        source = self._model.table(str(table.source))
        if values.shape != (source.rows,):
            raise ParameterError(
                f"the map of table {table.name!r} has shape {values.shape}, "
                f"but {source.name!r} has {source.rows} rows"
            )
        return values

    def rows_of(self, name: str, source_rows: ArrayLike) -> Indices:
        """The derived row of each source row, in the same order and shape."""
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
        """One set for each table that is summed, in that order: the shared ones and what follows of them."""
        expected = {table.name for table in self._model.tables if table.kind == "shared"}
        if shared.keys() != expected:
            raise InputError(f"rows are given for {sorted(shared)}, the shared tables are {sorted(expected)}")
        return {
            table.name: shared[table.name]
            if table.source is None
            else RowSet.of(self.rows_of(table.name, shared[table.source].rows))
            for table in self._model.summed
        }
