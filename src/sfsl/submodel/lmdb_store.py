"""A row store on disk, in LMDB (spec submodel 7).

Each commit is one LMDB transaction: new pages are written and flushed beside the old ones, then one page
is switched over. After a crash at any point the file holds the round before or the round after.
"""

import itertools
import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np

from sfsl.arrays import Values
from sfsl.durable import Closing, FileLock
from sfsl.errors import StoreError
from sfsl.installed import install_command
from sfsl.submodel.store import (
    FORMAT,
    Commit,
    DenseBlock,
    Head,
    RowBlock,
    StoreSpec,
    decode_dense,
    decode_head,
    decode_rows,
    decode_spec,
    encode_dense,
    encode_head,
    encode_rows,
    encode_spec,
    initial_dense,
    initial_rows,
    require_commit,
    require_format,
    require_grown,
    require_same,
    row_keys,
    rows_of_keys,
)
from sfsl.submodel.tables import RowSet

if TYPE_CHECKING:
    from sfsl.submodel.lmdb_file import LmdbFile

_META = "meta"
_CHECKED_AT_ONCE = 1 << 14


class LmdbStore(Closing):
    """Holds what was committed, on disk; see ``RowStore``. ``create`` and ``open`` make one."""

    def __init__(self, file: "LmdbFile", lock: FileLock, spec: StoreSpec) -> None:
        self.spec, self._file, self._lock = spec, file, lock

    @classmethod
    def create(cls, path: str | os.PathLike[str], spec: StoreSpec, dense: Values) -> Self:
        """Create a store at round 0, which is on disk whole before this returns."""
        file_type = _engine()
        contents: dict[str, list[tuple[bytes, bytes]]] = {_rows(table.name): [] for table in spec.tables}
        contents[_META] = [
            (b"format", FORMAT),
            (b"spec", encode_spec(spec)),
            *_meta(0, b"", initial_dense(spec, dense)),
        ]
        with ExitStack() as undo:
            lock = undo.enter_context(FileLock(path))
            file_type.create(lock.path, lock, contents)
            store = cls(file_type(lock.path, lock, check=False), lock, spec)
            undo.pop_all()
            return store

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        spec: StoreSpec | None = None,
        *,
        check: bool = True,
        grow: bool = False,
    ) -> Self:
        """Open a store; ``spec`` None takes it for whatever it was made for. With ``grow`` its tables may
        have fewer rows than ``spec`` says: the others are added.

        ``check`` reads all of it and finds every damage that a checksum can find, at some seconds per
        million stored rows. Without it only what is read is checked, and damaged pages may end the process.
        """
        file_type = _engine()
        with ExitStack() as undo:
            lock = undo.enter_context(FileLock(path))
            file = file_type(lock.path, lock, check=check)
            undo.callback(file.close)
            where = str(lock.path)
            require_format(file.get(_META, b"format"), where)
            store = cls(file, lock, decode_spec(file.get(_META, b"spec"), where))
            if spec is not None:
                (require_grown if grow else require_same)(store.spec, spec, where)
            store._require_whole(rows_too=check)
            if spec is not None and grow:
                store.grow(spec)
            undo.pop_all()
            return store

    @property
    def round(self) -> int:
        return self._head().round

    @property
    def selection(self) -> bytes:
        return self._head().selection

    def read_rows(self, table: str, rows: RowSet) -> RowBlock:
        shape = self.spec.rows_in(table, rows)
        cells = np.zeros((len(rows), 1 + self.spec.row_slots, shape.width), np.float32)
        with self._file.read() as txn:
            found = self._file.cursor(txn, _rows(table)).getmulti(row_keys(rows.rows))
        held = np.zeros(len(rows), np.bool_)
        if found:
            keys, records = (list(column) for column in zip(*found, strict=True))
            at = rows.positions_of(rows_of_keys(keys).rows)
            cells[at] = self._decoded(table, keys, records).reshape(len(at), *cells.shape[1:])
            held[at] = True
        cells[~held, 0] = initial_rows(self.spec.seed, shape, rows.rows[~held])
        return RowBlock(rows, cells[:, 0], cells[:, 1:])

    def read_dense(self) -> DenseBlock:
        return decode_dense(self._file.get(_META, b"dense"), self.spec, str(self._file.path))

    def touched(self, table: str) -> RowSet:
        self.spec.table(table)
        with self._file.read() as txn:
            return rows_of_keys(list(self._file.cursor(txn, _rows(table)).iternext(values=False)))

    def commit(self, commit: Commit) -> None:
        require_commit(self.spec, self.round, commit)
        contents = {_rows(name): _records(block) for name, block in commit.tables.items()}
        self._file.write(contents | {_META: _meta(commit.round, commit.selection, commit.dense)})

    def grow(self, spec: StoreSpec) -> None:
        """Add rows at the end of tables, or raise and be as before. All else in ``spec`` is the same; rows
        that are there, optimizer state and the round's number stay."""
        if require_grown(self.spec, spec, str(self._file.path)):
            self._file.write({_META: [(b"spec", encode_spec(spec))]})
            self.spec = spec

    def copy_to(self, path: Path) -> None:
        """Put a copy of this store, as of the last commit, in the place of the one at ``path``, which nobody
        has open. It costs what is stored, written once; a crash leaves the one before, or none."""
        self._file.copy_to(path)

    def close(self) -> None:
        self._file.close()
        self._lock.close()

    def _head(self) -> Head:
        return decode_head(self._file.get(_META, b"head"), str(self._file.path))

    def _decoded(self, table: str, keys: list[bytes], records: list[bytes]) -> Values:
        numbers = self.spec.table(table).width * (1 + self.spec.row_slots)
        return decode_rows(keys, records, numbers, f"table {table!r} in {self._file.path}")

    def _require_whole(self, *, rows_too: bool) -> None:
        """Require that head and dense part, and with ``rows_too`` every stored row, are what was written."""
        self._head()
        self.read_dense()
        with self._file.read() as txn:
            for table in self.spec.tables if rows_too else ():
                items = iter(self._file.cursor(txn, _rows(table.name)))
                while some := list(itertools.islice(items, _CHECKED_AT_ONCE)):
                    keys, records = (list(column) for column in zip(*some, strict=True))
                    self._decoded(table.name, keys, records)


def _engine() -> type["LmdbFile"]:
    try:
        from sfsl.submodel.lmdb_file import LmdbFile
    except ImportError as error:
        raise StoreError(
            f"a store on disk needs the package lmdb ({error}); install it with: {install_command('store')}"
        ) from None
    return LmdbFile


def _rows(table: str) -> str:
    return f"rows {table}"


def _meta(number: int, selection: bytes, dense: DenseBlock | None) -> list[tuple[bytes, bytes]]:
    head = (b"head", encode_head(Head(number, selection)))
    return [head] if dense is None else [head, (b"dense", encode_dense(dense))]


def _records(block: RowBlock) -> list[tuple[bytes, bytes]]:
    count, slots, width = block.state.shape
    cells = np.concatenate([block.values, block.state.reshape(count, slots * width)], axis=1)
    keys = row_keys(block.rows.rows)
    return list(zip(keys, encode_rows(keys, cells), strict=True))
