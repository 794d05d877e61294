"""One LMDB file: which error each failure becomes, how much room there is, what is written twice and what is
read by whom; and that a store that could not be opened can be opened again."""

import contextlib
import errno
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lmdb
import numpy as np
import pytest

from sfsl.durable import FileLock, room_for
from sfsl.errors import StoreCorrupt, StoreError, StoreFull, WrongModel
from sfsl.submodel import (
    Commit,
    DenseBlock,
    LmdbStore,
    ModelSpec,
    RowBlock,
    RowSet,
    StoreSpec,
    Table,
    lmdb_file,
    lmdb_store,
)
from sfsl.submodel.lmdb_file import LmdbFile, copy_beside
from sfsl.submodel.tables import MAX_TABLES

SPEC = StoreSpec(
    model=ModelSpec(tables=(Table(name="goods", rows=100, width=2),), dense=3), seed=bytes(32), row_slots=1
)
DENSE = np.arange(3, dtype=np.float32)


def block(rows: list[int], value: float = 7.125) -> RowBlock:
    count = len(rows)
    return RowBlock(
        RowSet(rows), np.full((count, 2), value, np.float32), np.full((count, 1, 2), value, np.float32)
    )


@pytest.fixture
def file(tmp_path: Path) -> Iterator[LmdbFile]:
    LmdbStore.create(tmp_path / "store", SPEC, DENSE).close()
    with FileLock(tmp_path / "store") as lock:
        opened = LmdbFile(lock.path, lock, check=True)
        yield opened
        opened.close()


# -- which error ---------------------------------------------------------------------------------------


def coded(code: int) -> lmdb.Error:
    error = lmdb.DiskError("the engine")
    error.code = code  # type: ignore[attr-defined]
    return error


@pytest.mark.parametrize(
    ("found", "error", "says"),
    [
        (lmdb.CorruptedError("bad page"), StoreCorrupt, "cannot open .*bad page.* Restore a backup"),
        (lmdb.PageNotFoundError("no page"), StoreCorrupt, "no page"),
        (lmdb.InvalidError("no file of ours"), StoreCorrupt, "no file of ours"),
        (coded(errno.ENOSPC), StoreFull, "no room to open .* free some space"),
        (coded(errno.EACCES), StoreError, "cannot open .* open the store again"),
        (lmdb.Error("without a number"), StoreError, "without a number"),
    ],
)
def test_which_error_the_engines_becomes(
    tmp_path: Path, found: Exception, error: type[StoreError], says: str
) -> None:
    with pytest.raises(StoreError, match=says) as caught, lmdb_file._typed(tmp_path, "open"):
        raise found
    assert type(caught.value) is error


def test_a_map_that_is_full_is_no_error_of_the_caller(tmp_path: Path) -> None:
    with pytest.raises(lmdb.MapFullError), lmdb_file._typed(tmp_path, "write"):
        raise lmdb.MapFullError("full")


@pytest.mark.parametrize(
    ("limit", "free", "stored", "room"),
    [
        (resource.RLIM_INFINITY, 5000, None, 5000),  # as much as the disk has
        (resource.RLIM_INFINITY, 5000, 300, 5000),
        (1000, 5000, None, 1000),  # or as this process may write into one file
        (1000, 5000, 300, 700),
        (9000, 5000, 300, 5000),
        (1000, 400, 300, 400),
    ],
)
def test_by_how_much_a_file_may_grow(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    limit: int,
    free: int,
    stored: int | None,
    room: int,
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=free))
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, resource.RLIM_INFINITY))
    if stored is not None:
        (tmp_path / "data.mdb").write_bytes(bytes(stored))
    assert room_for(tmp_path / "data.mdb") == room


def test_room_is_what_the_disk_of_the_store_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Path] = []

    def usage(path: Path) -> Any:
        asked.append(path)
        return SimpleNamespace(free=0)

    monkeypatch.setattr("shutil.disk_usage", usage)
    assert room_for(tmp_path / "not there yet" / "data.mdb") == 0
    assert asked == [tmp_path]


def test_of_many_damages_three_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lmdb_file, "verify", lambda _: ["one", "two", "three", "four", "five"])
    with pytest.raises(StoreCorrupt, match=r"damaged in 5 places: one; two; three. Restore a backup"):
        lmdb_file._require_sound(tmp_path)
    for found in (
        lmdb_file.VerifyError("cut short"),
        ValueError("odd"),
        IndexError("beyond"),
    ):

        def fails(_: str, found: Exception = found) -> list[str]:
            raise found

        monkeypatch.setattr(lmdb_file, "verify", fails)
        with pytest.raises(StoreCorrupt, match=f"damaged in 1 places: {found}. Restore"):
            lmdb_file._require_sound(tmp_path)

    def gone(_: str) -> list[str]:
        raise FileNotFoundError(errno.ENOENT, "it is gone")

    monkeypatch.setattr(lmdb_file, "verify", gone)
    with pytest.raises(StoreError, match=r"cannot read .*: it is gone") as said:
        lmdb_file._require_sound(tmp_path)
    assert not isinstance(said.value, StoreCorrupt)
    monkeypatch.setattr(lmdb_file, "verify", lambda _: [])
    lmdb_file._require_sound(tmp_path)


def test_what_a_file_lacks_is_named(file: LmdbFile) -> None:
    with pytest.raises(StoreCorrupt, match="lacks its 'other'"):
        file.get("meta", b"other")
    with pytest.raises(StoreCorrupt, match="lacks its 'rows other'"):
        file.get("rows other", b"x")


# -- what is written -----------------------------------------------------------------------------------


def commits(file: LmdbFile) -> int:
    return int(file._env.info()["last_txnid"])


def test_a_write_is_followed_by_a_second_commit_of_its_first_record(
    file: LmdbFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, written, write = commits(file), [], file._write

    def watched(contents: Any) -> None:
        written.append(contents)
        write(contents)

    monkeypatch.setattr(file, "_write", watched)
    both = {"rows goods": [], "meta": [(b"one", b"1"), (b"two", b"2")]}
    file.write(both)
    assert written == [both, {"meta": [(b"one", b"1")]}]
    assert commits(file) == before + 2
    written.clear()
    file.write({"meta": []})
    assert written == [{"meta": []}]  # there is nothing to write again


def test_a_second_commit_that_fails_costs_nothing(file: LmdbFile, monkeypatch: pytest.MonkeyPatch) -> None:
    write, times = file._write, []

    def once(contents: Any) -> None:
        times.append(1)
        if len(times) == 2:
            raise StoreFull("no room")
        write(contents)

    monkeypatch.setattr(file, "_write", once)
    file.write({"meta": [(b"one", b"1")]})
    assert file.get("meta", b"one") == b"1"
    assert len(times) == 2


def test_a_full_map_is_doubled_until_all_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    LmdbStore.create(tmp_path / "store", SPEC, DENSE).close()
    first = 1 << 20
    monkeypatch.setattr(lmdb_file, "_FIRST_MAP_BYTES", first)
    with FileLock(tmp_path / "store") as lock:
        file = LmdbFile(lock.path, lock, check=False)
        assert file._env.info()["map_size"] == first
        file.write({"meta": [(b"small", bytes(1000))]})
        assert file._env.info()["map_size"] == first
        file.write({"meta": [(b"large", bytes(3 << 19))]})
        assert file._env.info()["map_size"] == 4 * first
        file.close()


def test_as_many_tables_as_a_model_may_have(tmp_path: Path) -> None:
    tables = tuple(Table(name=f"t{number}", rows=2, width=1) for number in range(MAX_TABLES))
    many = StoreSpec(model=ModelSpec(tables=tables, dense=0), seed=bytes(32))
    none = np.zeros(0, np.float32)
    with LmdbStore.create(tmp_path / "store", many, none) as store:
        assert len(store.touched("t63")) == 0
        store.copy_to(tmp_path / "copy")
    copy_beside(tmp_path / "store", tmp_path / "beside")
    for name in ("store", "copy", "beside"):
        with LmdbStore.open(tmp_path / name, many) as store:
            assert store.round == 0


# -- what is read --------------------------------------------------------------------------------------


def test_a_file_that_was_cut_short_gets_its_length_back(tmp_path: Path) -> None:
    """Zeros stand for what is gone: checksums find them, and the engine does not end this process."""
    path = tmp_path / "store"
    with LmdbStore.create(path, SPEC, DENSE) as store:
        store.commit(Commit(1, {"goods": block(list(range(0, 100, 2)))}))
    data = path / "data.mdb"
    whole = data.stat().st_size
    os.truncate(data, whole - 4096)
    with FileLock(path) as lock:
        file = LmdbFile(lock.path, lock, check=False)
        assert whole - 4096 < data.stat().st_size <= whole
        due = (file._env.info()["last_pgno"] + 1) * 4096
        assert data.stat().st_size == due
        file.close()
        os.truncate(data, due + 4096)  # longer than it must be: left alone
        LmdbFile(lock.path, lock, check=False).close()
        assert data.stat().st_size == due + 4096


def open_files(folder: Path) -> set[str]:
    """What this process has open below a folder."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of the listing itself
            found.add(os.readlink(f"/proc/self/fd/{number}"))
    return {Path(one).name for one in found if one.startswith(f"{folder}/")}


def broken(what: str, path: Path, patch: pytest.MonkeyPatch) -> None:
    """Have an opening fail at this point."""

    def fails(*_: Any, **__: Any) -> Any:
        raise StoreError(what)

    places = {
        "the lock": (lmdb_store, "FileLock"),
        "the whole structure": (lmdb_file, "_require_sound"),
        "the length": (LmdbFile, "_require_length"),
        "the format": (lmdb_store, "require_format"),
        "the description": (lmdb_store, "decode_spec"),
        "the model": (lmdb_store, "require_same"),
        "the head": (lmdb_store, "decode_head"),
        "the dense part": (lmdb_store, "decode_dense"),
        "the rows": (lmdb_store, "decode_rows"),
    }
    patch.setattr(*places[what], fails)


@pytest.mark.parametrize(
    "what",
    ["the lock", "the whole structure", "the length", "the format", "the description", "the model",
     "the head", "the dense part", "the rows"],
)  # fmt: skip
def test_an_opening_that_fails_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    path = tmp_path / "store"
    with LmdbStore.create(path, SPEC, DENSE) as store:
        store.commit(Commit(1, {"goods": block([1])}))
    with monkeypatch.context() as patch:
        broken(what, path, patch)
        with pytest.raises(StoreError, match=what):
            LmdbStore.open(path, SPEC)
        with pytest.raises(StoreError, match=what) as caught:
            LmdbStore.open(path, SPEC)
        assert open_files(tmp_path) == set()
        assert caught.tb is not None  # whose frames have what was opened
    with LmdbStore.open(path, SPEC) as store:
        assert {"store.lock", "data.mdb"} <= open_files(tmp_path)
        assert store.round == 1
    assert open_files(tmp_path) == set()


def test_growing_that_fails_and_creating_that_fails_leave_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "store"
    LmdbStore.create(path, SPEC, DENSE).close()
    wrong = StoreSpec(model=SPEC.model, seed=bytes(31) + b"x", row_slots=1)
    for act in (lambda: LmdbStore.open(path, wrong, grow=True), lambda: LmdbStore.open(path, wrong)):
        with pytest.raises(WrongModel) as caught:
            act()
        assert open_files(tmp_path) == set()
        assert caught.tb is not None
    with monkeypatch.context() as patch:
        patch.setattr(LmdbFile, "write", lambda *_: 1 // 0)
        with pytest.raises(ZeroDivisionError) as failed:
            LmdbStore.create(tmp_path / "other", SPEC, DENSE)
        assert open_files(tmp_path) == set()
        assert failed.tb is not None
    assert {one.name for one in tmp_path.iterdir()} == {"store", "store.lock", "other.lock"}
    LmdbStore.create(tmp_path / "other", SPEC, DENSE).close()


def test_without_a_check_head_and_dense_part_are_checked_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "store"
    LmdbStore.create(path, SPEC, DENSE).close()
    data = (path / "data.mdb").read_bytes()
    mark = np.array([0, 1, 2], "<f4").tobytes()
    assert mark in data
    (path / "data.mdb").write_bytes(data.replace(mark, mark[:-1] + b"\x41"))
    with pytest.raises(StoreCorrupt, match="dense part"):
        LmdbStore.open(path, check=False)


def test_rows_are_checked_to_the_last_of_many_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert lmdb_store._CHECKED_AT_ONCE == 1 << 14
    path = tmp_path / "store"
    with LmdbStore.create(path, SPEC, DENSE) as store:
        store.commit(Commit(1, {"goods": block([1, 2, 3, 4])}))
        store.commit(Commit(2, {"goods": block([9], 5.25)}))
    data = (path / "data.mdb").read_bytes()
    mark = np.full(2, 5.25, "<f4").tobytes()
    (path / "data.mdb").write_bytes(data.replace(mark, mark[:-1] + b"\x42"))
    monkeypatch.setattr(lmdb_store, "_CHECKED_AT_ONCE", 2)
    with pytest.raises(StoreCorrupt, match="1 rows of table 'goods'"):
        LmdbStore.open(path)


def test_whoever_copies_beside_an_owner_opens_nothing_for_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = StoreSpec(model=ModelSpec(tables=(Table(name="t", rows=500, width=64),), dense=0), seed=bytes(32))
    rows, state = RowSet(np.arange(500)), np.zeros((500, 0, 64), np.float32)
    path, given, real = tmp_path / "store", [], lmdb.open
    with LmdbStore.create(path, wide, np.zeros(0, np.float32)) as store:
        for number in (1, 2, 3):
            values = np.full((500, 64), number, np.float32)
            store.commit(Commit(number, {"t": RowBlock(rows, values, state)}))

    def opened(*paths: Any, **named: Any) -> Any:
        given.append(named)
        return real(*paths, **named)

    monkeypatch.setattr(lmdb, "open", opened)
    copy_beside(path, tmp_path / "copy")
    assert [one["readonly"] for one in given] == [True]
    # Without free pages.
    assert (tmp_path / "copy/data.mdb").stat().st_size < 0.8 * (path / "data.mdb").stat().st_size
    with LmdbStore.open(tmp_path / "copy", wide) as copy:
        assert copy.round == 3
    with pytest.raises(StoreError, match=r"cannot read .*nowhere.*No such file"):
        copy_beside(tmp_path / "nowhere", tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_dense_part_is_committed_with_its_state(tmp_path: Path) -> None:
    both = StoreSpec(model=SPEC.model, seed=bytes(32), dense_slots=2)
    state = np.arange(6, dtype=np.float32).reshape(2, 3)
    with LmdbStore.create(tmp_path / "store", both, DENSE) as store:
        store.commit(Commit(1, dense=DenseBlock(DENSE + 1, state), selection=b"kept"))
        store.commit(Commit(2))  # which leaves it
        assert store.read_dense().values.tolist() == [1, 2, 3]
        assert store.read_dense().state.tolist() == state.tolist()
        assert store.selection == b""
