"""One store for cohorts that run side by side."""

from threading import Lock

from sfsl.durable.closing import Closing
from sfsl.submodel import Commit, DenseBlock, RowBlock, RowSet, RowStore, StoreSpec


class SharedStore(Closing):
    """A store belongs to one thread; here one at a time has it."""

    def __init__(self, store: RowStore) -> None:
        self._store = store
        self._lock = Lock()

    @property
    def spec(self) -> StoreSpec:
        return self._store.spec

    @property
    def round(self) -> int:
        return self._store.round

    @property
    def selection(self) -> bytes:
        return self._store.selection

    def read_rows(self, table: str, rows: RowSet) -> RowBlock:
        with self._lock:
            return self._store.read_rows(table, rows)

    def read_dense(self) -> DenseBlock:
        with self._lock:
            return self._store.read_dense()

    def touched(self, table: str) -> RowSet:
        with self._lock:
            return self._store.touched(table)

    def commit(self, commit: Commit) -> None:
        with self._lock:
            self._store.commit(commit)

    def close(self) -> None:
        with self._lock:
            self._store.close()
