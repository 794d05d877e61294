"""One LMDB file, held by one process: checked before it is trusted, grown when it is full, errors typed.

Importing this module needs the package lmdb (``sfsl[store]``); ``lmdb_store`` does so when it must.
"""

import contextlib
import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias, TypeVar

import lmdb
from lmdb.verify import VerifyError, verify

from sfsl.durable import (
    LITTLE_ROOM,
    NO_ROOM,
    FileLock,
    folder_made_whole,
    room_for,
    system_errors_as,
    written_whole,
)
from sfsl.errors import StoreCorrupt, StoreError, StoreFull
from sfsl.submodel.tables import MAX_TABLES

Transaction: TypeAlias = "lmdb.Transaction[bytes]"
Records = Sequence[tuple[bytes, bytes]]
T = TypeVar("T")

# Address space, not disk or memory; small enough for a process with a modest limit, doubled when used up.
_FIRST_MAP_BYTES = 1 << 26
_DATA, _READ = "data.mdb", "read"
_MAX_DATABASES = 2 * MAX_TABLES
_SHOWN = 3


class LmdbFile:
    """Named databases in one folder. A write is one transaction, durable when it returns."""

    def __init__(self, path: Path, lock: FileLock, *, check: bool) -> None:
        """Open what is there. ``check`` walks the whole structure first, without the engine, which would
        end this process on some damaged pages."""
        self.path, self._lock = path, lock
        data = path / _DATA
        if not data.is_file():
            raise StoreError(f"no store at {path}; create one there, or look for it elsewhere")
        if check:
            _require_sound(data)
        with _typed(path, "open"):
            size = max(_FIRST_MAP_BYTES, data.stat().st_size)
            self._env = lmdb.open(str(path), map_size=size, max_dbs=_MAX_DATABASES, create=False)
        try:
            with _typed(path, "open"):
                self._require_length(data)
                with self._env.begin() as txn:
                    names = list(txn.cursor().iternext(values=False))
                self._databases = {name: self._env.open_db(name, create=False) for name in names}
        except BaseException:
            self._env.close()
            raise

    def _require_length(self, data: Path) -> None:
        """Make a file that was cut short as long as it says, with zeros, which checksums find; LMDB would
        end this process where it reads beyond the end. The engine may leave out last pages that are free. It
        doubles its map where that is used up, so a head that says more than twice as much is damaged."""
        due = (self._env.info()["last_pgno"] + 1) * self._env.stat()["psize"]
        with system_errors_as(StoreError, f"open {self.path}"):
            size = data.stat().st_size
            if due > 2 * max(_FIRST_MAP_BYTES, size):
                raise StoreCorrupt(f"{data} has {size:,} bytes and says {due:,}. Restore a backup")
            if size < due:
                os.truncate(data, due)

    @classmethod
    def create(cls, path: Path, lock: FileLock, contents: Mapping[str, Records]) -> None:
        """Make a file at ``path`` whole or not at all: made aside, then renamed."""
        if path.exists():
            raise StoreError(f"{path} exists already; open it, or choose another place")
        try:
            with folder_made_whole(path) as aside:
                with _typed(aside, "create"), lmdb.open(str(aside), max_dbs=_MAX_DATABASES) as env:
                    for name in contents:
                        env.open_db(name.encode())
                with contextlib.closing(cls(aside, lock, check=False)) as file:
                    file.write(contents)
        except OSError as error:
            raise _from_errno(error.errno or 0, str(error), path, "create") from None

    @contextlib.contextmanager
    def read(self) -> Iterator[Transaction]:
        """Give a view of the last commit."""
        self._lock.require()
        with _typed(self.path, _READ), self._env.begin() as txn:
            yield txn

    def write(self, contents: Mapping[str, Records]) -> None:
        """Write all these records, by database, or nothing; on a larger map where they do not fit.

        LMDB keeps two commits and takes the one with the higher number for the last. One flipped bit of a
        number would quietly bring the other back; so the other has the same content, by a second commit of
        one record. Where that fails, the first stands."""
        self._write(contents)
        some = next(((name, records) for name, records in contents.items() if records), None)
        if some is not None:
            with contextlib.suppress(StoreError):
                self._write({some[0]: some[1][:1]})

    def _write(self, contents: Mapping[str, Records]) -> None:
        self._lock.require()
        while True:
            try:
                with _typed(self.path, "write"), self._env.begin(write=True) as txn:
                    for name, records in contents.items():
                        self.cursor(txn, name).putmulti(records)
                return
            except lmdb.MapFullError:
                with _typed(self.path, "grow"):
                    self._env.set_mapsize(2 * self._env.info()["map_size"])

    def copy_to(self, path: Path) -> None:
        """Put a copy of the last commit, without free pages, in the place of the file at ``path``: one or
        the other is there, whole. Nobody may have that open."""
        self._lock.require()
        try:
            with _typed(self.path, "copy"):
                if path.exists():
                    with written_whole(path / _DATA) as file:
                        self._env.copyfd(file.fileno(), compact=True)
                else:
                    with folder_made_whole(path) as aside:
                        self._env.copy(str(aside), compact=True)
        except OSError as error:
            raise _from_errno(error.errno or 0, str(error), path, "write") from None

    def get(self, database: str, key: bytes) -> bytes:
        """Read one value as of the last commit."""
        with self.read() as txn:
            value = self.cursor(txn, database).get(key)
        return self._there(value, key)

    def cursor(self, txn: Transaction, database: str) -> "lmdb.Cursor[bytes]":
        """Return a cursor over one database."""
        name = database.encode()
        return txn.cursor(self._there(self._databases.get(name), name))

    def _there(self, found: T | None, name: bytes) -> T:
        if found is None:
            raise StoreCorrupt(f"{self.path} lacks its {name.decode()!r}; it is damaged, or no store of ours")
        return found

    def close(self) -> None:
        self._env.close()


def copy_beside(path: Path, target: Path) -> None:
    """Copy the last commit of the file at ``path`` to ``target``, which is not there, while its owner goes
    on: LMDB keeps readers of other processes apart from the writer. A damaged one is refused, on which the
    engine could end this process; what is in its rows, whoever opens the copy will check."""
    sound = not _problems(path / _DATA)
    try:
        with _typed(path, "copy"), lmdb.open(str(path), readonly=True, max_dbs=_MAX_DATABASES) as env:
            if not sound:
                # Perhaps its owner wrote meanwhile. What this view can see stays as it is until it is closed.
                with env.begin():
                    _require_sound(path / _DATA)
            with folder_made_whole(target) as aside:
                env.copy(str(aside), compact=True)
    except OSError as error:
        raise _from_errno(error.errno or 0, str(error), target, "write") from None


@contextlib.contextmanager
def _typed(path: Path, doing: str) -> Iterator[None]:
    try:
        yield
    except lmdb.MapFullError:
        raise  # not the caller's business: the map is grown
    except (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.InvalidError) as error:
        raise StoreCorrupt(f"cannot {doing} {path}: {error}. Restore a backup") from None
    except lmdb.Error as error:
        raise _from_errno(getattr(error, "code", 0), str(error), path, doing) from None


def _from_errno(code: int, text: str, path: Path, doing: str) -> StoreError:
    # LMDB reports a write that the disk cut short as EIO. Whoever only reads needs no room.
    cut = code == errno.EIO and doing != _READ and room_for(path / _DATA) < LITTLE_ROOM
    if code in NO_ROOM or cut:
        return StoreFull(f"no room to {doing} {path}: {text}. What was committed stands; free some space")
    return StoreError(f"cannot {doing} {path}: {text}. What was committed stands; open the store again")


def _require_sound(data: Path) -> None:
    if problems := _problems(data):
        raise _damaged(data, problems)


def _problems(data: Path) -> list[str]:
    """Return what is wrong with the structure of a file. Raise where it is not even one of LMDB's."""
    try:
        return list(verify(str(data)))  # type: ignore[no-untyped-call]
    except VerifyError as error:
        raise _damaged(data, [str(error)]) from None
    except OSError as error:
        raise _from_errno(error.errno or 0, error.strerror or str(error), data, _READ) from None
    except (ValueError, IndexError) as error:
        return [str(error)]


def _damaged(data: Path, problems: Sequence[str]) -> StoreCorrupt:
    where = f"{len(problems)} places: {'; '.join(problems[:_SHOWN])}"
    return StoreCorrupt(f"{data} is damaged in {where}. Restore a backup")
