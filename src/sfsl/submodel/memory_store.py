"""A row store in memory: for experiments and tests. It is gone with the process."""

import numpy as np

from sfsl.arrays import Indices, Values
from sfsl.durable import Closing
from sfsl.submodel.store import (
    Commit,
    DenseBlock,
    RowBlock,
    StoreSpec,
    initial_dense,
    initial_rows,
    require_commit,
    require_grown,
)
from sfsl.submodel.tables import RowSet, Table


class MemoryStore(Closing):
    """Holds what was committed; see ``RowStore``."""

    def __init__(self, spec: StoreSpec, dense: Values) -> None:
        self.spec, self.round, self.selection = spec, 0, b""
        self._dense = initial_dense(spec, dense)
        self._tables = {table.name: _TouchedRows(table, spec) for table in spec.tables}

    def read_rows(self, table: str, rows: RowSet) -> RowBlock:
        self.spec.rows_in(table, rows)
        return self._tables[table].read(rows)

    def read_dense(self) -> DenseBlock:
        return DenseBlock(self._dense.values.copy(), self._dense.state.copy())

    def touched(self, table: str) -> RowSet:
        self.spec.table(table)
        return self._tables[table].index

    def commit(self, commit: Commit) -> None:
        require_commit(self.spec, self.round, commit)
        for name, block in commit.tables.items():
            self._tables[name].write(block)
        if commit.dense is not None:
            self._dense = DenseBlock(commit.dense.values.copy(), commit.dense.state.copy())
        self.round, self.selection = commit.round, commit.selection

    def grow(self, spec: StoreSpec) -> None:
        """Add rows as ``LmdbStore.grow`` does."""
        # A row's first values follow from its number, so the rows that are there need nothing new.
        require_grown(self.spec, spec, "this store")
        self.spec = spec

    def close(self) -> None:
        pass


class _TouchedRows:
    """The stored rows of one table, in the order in which they were first written.

    ``index`` is the sorted set of them and ``_places`` says where each stands, so that a commit moves 16
    bytes for each stored row instead of its whole width. Room doubles when it runs out.
    """

    def __init__(self, table: Table, spec: StoreSpec) -> None:
        self.index = RowSet([])
        self._table, self._seed = table, spec.seed
        self._places: Indices = np.zeros(0, np.int64)
        # Values and state side by side: [row, 1 + slots, width].
        self._cells: Values = np.zeros((0, 1 + spec.row_slots, table.width), np.float32)

    def read(self, rows: RowSet) -> RowBlock:
        cells = np.zeros((len(rows), *self._cells.shape[1:]), np.float32)
        held = self.index.holds(rows.rows)
        cells[held] = self._cells[self._places[self.index.positions_of(rows.rows[held])]]
        cells[~held, 0] = initial_rows(self._seed, self._table, rows.rows[~held])
        return RowBlock(rows, cells[:, 0], cells[:, 1:])

    def write(self, block: RowBlock) -> None:
        self._make_room(block.rows.rows[~self.index.holds(block.rows.rows)])
        places = self._places[self.index.positions_of(block.rows.rows)]
        self._cells[places, 0] = block.values
        self._cells[places, 1:] = block.state

    def _make_room(self, fresh: Indices) -> None:
        before, after = len(self.index), len(self.index) + len(fresh)
        if after > len(self._cells):
            grown = np.zeros((max(after, 2 * len(self._cells)), *self._cells.shape[1:]), np.float32)
            grown[:before] = self._cells[:before]
            self._cells = grown
        at = np.searchsorted(self.index.rows, fresh)
        self._places = np.insert(self._places, at, np.arange(before, after))
        self.index = RowSet(np.insert(self.index.rows, at, fresh))
