"""Both stores: rows begin where the specification says, one commit per round, only touched rows kept."""

import errno
import os
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import ECB

from sfsl.crypto.secret import digest
from sfsl.errors import InputError, StoreError, StoreFull, UnknownRow, WrongModel
from sfsl.submodel import (
    Commit,
    DenseBlock,
    LmdbStore,
    MemoryStore,
    ModelSpec,
    RowBlock,
    RowSet,
    RowStore,
    StoreSpec,
    Table,
    lmdb_file,
)
from sfsl.submodel.lmdb_file import copy_beside
from sfsl.submodel.store import initial_rows

SEED = bytes(range(32))
MODEL = ModelSpec(
    tables=(
        Table(name="goods", rows=2 * 10**9, width=5, initial=0.25),
        Table(name="user", rows=10, width=3, kind="personal"),
        Table(name="weights", rows=100, width=1, initial=0),
    ),
    dense=4,
)
SPEC = StoreSpec(model=MODEL, seed=SEED, row_slots=2, dense_slots=1)
DENSE = np.arange(4, dtype=np.float32)

Make = Callable[..., Any]


@pytest.fixture(params=["memory", "lmdb"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """Makes a store of either kind for a specification and its dense part."""

    def made(spec: StoreSpec = SPEC, dense: np.ndarray = DENSE) -> RowStore:
        if request.param == "memory":
            return MemoryStore(spec, dense)
        store = LmdbStore.create(tmp_path / "store", spec, dense)
        request.addfinalizer(store.close)
        return store

    return made


def block(rows: list[int], value: float, width: int = 5, slots: int = 2) -> RowBlock:
    shape = (len(rows), slots, width)
    return RowBlock(
        RowSet(rows), np.full((len(rows), width), value, np.float32), np.full(shape, -value, np.float32)
    )


def spelled_out_initial(table: str, row: int, width: int, scale: float) -> list[float]:
    """The specification, word for word, on Python's integers."""
    key = digest("initial rows", SEED, table.encode())
    stream = b""
    for number in range((width + 3) // 4):
        counter = row.to_bytes(8, "big") + number.to_bytes(8, "big")
        stream += Cipher(AES256(key), ECB()).encryptor().update(counter)  # noqa: S305
    words = [int.from_bytes(stream[4 * k : 4 * k + 4], "little", signed=True) >> 8 for k in range(width)]
    return [float(np.float32(word) * np.float32(scale / 2**23)) for word in words]


@pytest.mark.parametrize("row", [0, 1, 12345, 2**31, 2 * 10**9 - 1, 2**63 - 1])
@pytest.mark.parametrize("width", [1, 4, 5, 18])
def test_rows_begin_where_the_specification_says(row: int, width: int) -> None:
    table = Table(name="goods", rows=2**63, width=width, initial=0.25)
    values = initial_rows(SEED, table, np.array([row]))
    assert values.dtype == np.float32
    assert values.tolist() == [spelled_out_initial("goods", row, width, 0.25)]
    assert np.abs(values).max() <= 0.25


def test_known_initial_rows() -> None:
    """Bits that must never change: models already stored depend on them."""
    values = initial_rows(SEED, Table(name="goods", rows=2**63, width=3, initial=1), np.array([0, 2**40]))
    assert values.astype("<f4").tobytes().hex() == KNOWN


KNOWN = "e25c27bf70d79ebe40584a3d20dd76bf6022dcbee0ca0abe"


def test_a_row_begins_the_same_whatever_is_asked_for_beside_it() -> None:
    table = MODEL.table("goods")
    rows = np.arange(0, 40_000, 2)
    together = initial_rows(SEED, table, rows)
    assert (initial_rows(SEED, table, rows[-3:]) == together[-3:]).all()
    assert (initial_rows(SEED, table, rows[::-1]) == together[::-1]).all()
    assert len(np.unique(together)) > 0.99 * together.size


def test_seed_and_table_each_make_other_rows() -> None:
    table = MODEL.table("goods")
    other = Table(name="other", rows=table.rows, width=table.width, initial=table.initial)
    rows = np.arange(100)
    first = initial_rows(SEED, table, rows)
    assert not (initial_rows(bytes(32), table, rows) == first).any()
    assert not (initial_rows(SEED, other, rows) == first).any()


def test_a_new_store(make: Make) -> None:
    store = make()
    assert (store.round, store.selection) == (0, b"")
    read = store.read_rows("goods", RowSet([3, 2 * 10**9 - 1]))
    assert read.values.tolist() == [spelled_out_initial("goods", row, 5, 0.25) for row in (3, 2 * 10**9 - 1)]
    assert read.state.shape == (2, 2, 5)
    assert not read.state.any()
    assert not store.read_rows("weights", RowSet([99])).values.any()
    assert store.read_rows("weights", RowSet([])).values.shape == (0, 1)
    assert store.read_dense().values.tolist() == DENSE.tolist()
    assert store.read_dense().state.tolist() == [[0, 0, 0, 0]]
    assert len(store.touched("goods")) == 0


def test_what_is_committed_is_read_and_the_rest_is_as_it_was(make: Make) -> None:
    store = make()
    dense = DenseBlock(np.full(4, 9, np.float32), np.full((1, 4), 8, np.float32))
    store.commit(Commit(1, {"goods": block([5, 70, 10**9], 1.5)}, dense, b"one"))
    store.commit(Commit(2, {"goods": block([6, 70], 2.5), "weights": block([0], 7, 1)}, None, b"two"))
    read = store.read_rows("goods", RowSet([4, 5, 6, 70, 10**9]))
    assert read.values[:, 0].tolist()[1:] == [1.5, 2.5, 2.5, 1.5]
    assert read.state[:, 1, 4].tolist() == [0, -1.5, -2.5, -2.5, -1.5]
    assert read.values[0].tolist() == spelled_out_initial("goods", 4, 5, 0.25)
    assert store.touched("goods").rows.tolist() == [5, 6, 70, 10**9]
    assert store.touched("weights").rows.tolist() == [0]
    assert store.read_dense().values.tolist() == [9] * 4
    assert store.read_dense().state.tolist() == [[8] * 4]
    assert (store.round, store.selection) == (2, b"two")


def test_what_is_read_is_the_readers_own(make: Make) -> None:
    store = make()
    store.commit(Commit(1, {"goods": block([5], 1.5)}))
    store.read_rows("goods", RowSet([5])).values[:] = 77
    store.read_dense().values[:] = 77
    assert store.read_rows("goods", RowSet([5])).values.tolist() == [[1.5] * 5]
    assert store.read_dense().values.tolist() == DENSE.tolist()


@pytest.mark.parametrize("table", ["user", "nothing"])
def test_a_store_has_no_rows_of_personal_or_unknown_tables(make: Make, table: str) -> None:
    store = make()
    with pytest.raises(InputError):
        store.read_rows(table, RowSet([1]))
    with pytest.raises(InputError):
        store.touched(table)
    with pytest.raises(InputError):
        store.commit(Commit(1, {table: block([1], 1, 3)}))
    assert store.round == 0


def test_a_store_for_simulated_devices_has(make: Make) -> None:
    store = make(StoreSpec(model=MODEL, seed=SEED, devices=True))
    store.commit(Commit(1, {"user": block([1], 1, 3, 0)}))
    assert store.read_rows("user", RowSet([1])).values.tolist() == [[1, 1, 1]]


def test_rows_beyond_the_table_are_refused(make: Make) -> None:
    store = make()
    with pytest.raises(UnknownRow):
        store.read_rows("weights", RowSet([99, 100]))
    with pytest.raises(UnknownRow):
        store.commit(Commit(1, {"weights": block([100], 1, 1)}))


def test_a_model_without_tables_or_without_a_dense_part(make: Make) -> None:
    store = make(StoreSpec(model=ModelSpec(tables=(), dense=0), seed=SEED), np.zeros(0, np.float32))
    store.commit(Commit(1))
    assert (store.round, store.read_dense().values.shape) == (1, (0,))


def test_memory_follows_the_rows_touched_and_not_the_table() -> None:
    peaks = []
    for rows in (10**5, 10**7, 2 * 10**9, 2**63):
        model = ModelSpec(tables=(Table(name="goods", rows=rows, width=18),), dense=0)
        some = RowSet(np.arange(0, 90_000, 9))
        tracemalloc.start()
        store = MemoryStore(StoreSpec(model=model, seed=SEED), np.zeros(0, np.float32))
        store.commit(Commit(1, {"goods": store.read_rows("goods", some)}))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert max(peaks) < 1.05 * min(peaks)
    assert max(peaks) < 6 * len(some) * 18 * 4


# -- on disk -----------------------------------------------------------------------------------


def test_a_store_is_there_after_it_was_closed(tmp_path: Path) -> None:
    with LmdbStore.create(tmp_path / "store", SPEC, DENSE) as store:
        store.commit(Commit(1, {"goods": block([5, 70], 1.5)}, None, b"one"))
    with LmdbStore.open(tmp_path / "store", SPEC) as store:
        assert (store.round, store.selection) == (1, b"one")
        store.commit(Commit(2, {"goods": block([70], 2.5)}, None, b"two"))
    with LmdbStore.open(tmp_path / "store") as store:
        assert store.spec == SPEC
        assert store.read_rows("goods", RowSet([5, 70])).values[:, 0].tolist() == [1.5, 2.5]
        assert (store.round, store.selection) == (2, b"two")


def test_the_map_grows_when_it_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sfsl.submodel.lmdb_file._FIRST_MAP_BYTES", 1 << 16)
    with LmdbStore.create(tmp_path / "store", SPEC, DENSE) as store:
        for number in range(1, 4):
            rows = list(range(number, 20_000, 3))
            store.commit(Commit(number, {"goods": block(rows, number)}, None, bytes(10**5)))
    with LmdbStore.open(tmp_path / "store", SPEC) as store:
        assert len(store.touched("goods")) == 19_999
        assert store.round == 3


def with_rows(rows: int, **changes: object) -> StoreSpec:
    goods = msgspec.structs.replace(MODEL.tables[0], rows=rows, **changes)
    return msgspec.structs.replace(
        SPEC, model=msgspec.structs.replace(MODEL, tables=(goods, *MODEL.tables[1:]))
    )


def test_a_store_grows_by_rows_and_keeps_all_else(make: Make) -> None:
    store = make()
    rows = 2 * 10**9
    store.commit(Commit(1, {"goods": block([3, rows - 1], 2.5)}, selection=b"next"))
    before, dense = store.read_rows("goods", RowSet([3, 4, rows - 1])), store.read_dense()
    with pytest.raises(UnknownRow):
        store.read_rows("goods", RowSet([rows]))
    store.grow(with_rows(rows + 5))
    assert (store.round, store.selection) == (1, b"next")
    after = store.read_rows("goods", RowSet([3, 4, rows - 1]))
    assert np.array_equal(before.values, after.values)
    assert np.array_equal(before.state, after.state)
    assert np.array_equal(dense.values, store.read_dense().values)
    fresh = store.read_rows("goods", RowSet([rows + 4]))
    assert np.array_equal(fresh.values, initial_rows(SEED, MODEL.tables[0], np.array([rows + 4])))
    store.commit(Commit(2, {"goods": block([rows + 4], 1.0)}))
    assert store.touched("goods").rows.tolist() == [3, rows - 1, rows + 4]


@pytest.mark.parametrize(
    "other",
    [
        with_rows(10),
        with_rows(3 * 10**9, width=6),
        with_rows(3 * 10**9, initial=0.5),
        with_rows(3 * 10**9, name="items"),
        msgspec.structs.replace(with_rows(3 * 10**9), seed=bytes(32)),
        msgspec.structs.replace(with_rows(3 * 10**9), row_slots=1),
        StoreSpec(model=ModelSpec(tables=MODEL.tables[:2], dense=4), seed=SEED, row_slots=2, dense_slots=1),
    ],
)
def test_a_store_grows_by_nothing_but_rows(make: Make, other: StoreSpec) -> None:
    store = make()
    with pytest.raises(WrongModel, match="made for another model"):
        store.grow(other)
    assert store.spec == SPEC


def test_a_store_on_disk_is_grown_only_where_that_is_asked_for(tmp_path: Path) -> None:
    larger = with_rows(3 * 10**9)
    LmdbStore.create(tmp_path / "store", SPEC, DENSE).close()
    with pytest.raises(WrongModel, match=r"tables\.0\.rows"):
        LmdbStore.open(tmp_path / "store", larger)
    LmdbStore.open(tmp_path / "store", larger, grow=True).close()
    with LmdbStore.open(tmp_path / "store", larger) as store:
        assert store.spec == larger
    with pytest.raises(WrongModel):
        LmdbStore.open(tmp_path / "store", SPEC, grow=True)


def test_a_store_is_created_once_and_opened_where_it_is(tmp_path: Path) -> None:
    LmdbStore.create(tmp_path / "store", SPEC, DENSE).close()
    with pytest.raises(StoreError, match="exists already"):
        LmdbStore.create(tmp_path / "store", SPEC, DENSE)
    with pytest.raises(StoreError, match="no store at"):
        LmdbStore.open(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="folder must exist"):
        LmdbStore.create(tmp_path / "no" / "folder", SPEC, DENSE)
    LmdbStore.open(tmp_path / "store", SPEC).close()  # no lock is left behind by what failed


def test_the_remains_of_a_creation_that_was_cut_short_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "store.new").mkdir()
    (tmp_path / "store.new" / "data.mdb").write_bytes(b"half")
    with LmdbStore.create(tmp_path / "store", SPEC, DENSE) as store:
        assert store.round == 0
    assert not (tmp_path / "store.new").exists()


def test_a_copy_is_the_store_as_it_was_and_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    with LmdbStore.create(tmp_path / "store", SPEC, DENSE) as store:
        for number in (1, 2, 3):
            store.commit(Commit(number, {"goods": block([number, 10**9], float(number))}, selection=b"kept"))
            if number != 2:
                store.copy_to(copy)
            with LmdbStore.open(copy, SPEC) as found:
                seen = number if number != 2 else 1
                assert (found.round, found.selection) == (seen, b"kept")
                assert found.read_rows("goods", RowSet([10**9])).values.tolist() == [[seen] * 5]
                assert found.touched("goods").rows.tolist() == [*range(1, seen + 1), 10**9]
        assert store.round == 3
    assert {one.name for one in tmp_path.iterdir()} == {"store", "store.lock", "copy", "copy.lock"}


@pytest.mark.parametrize("first", [True, False])
def test_a_copy_that_is_cut_short_leaves_the_one_before_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: bool
) -> None:
    copy = tmp_path / "copy"
    with LmdbStore.create(tmp_path / "store", SPEC, DENSE) as store:
        if not first:
            store.copy_to(copy)
        store.commit(Commit(1, {"goods": block([1], 1.0)}))
        with monkeypatch.context() as patched:
            patched.setattr(os, "rename", _full)
            with pytest.raises(StoreError, match="no room to write"):
                store.copy_to(copy)
        if first:
            assert not copy.exists()
        else:
            with LmdbStore.open(copy) as found:
                assert found.round == 0
        store.copy_to(copy)
        with LmdbStore.open(copy) as found:
            assert found.round == store.round == 1
        with pytest.raises(StoreError):
            store.copy_to(tmp_path / "store.lock" / "below")


def _full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "no space left")


@pytest.mark.parametrize(
    ("code", "room", "error"),
    [
        (errno.ENOSPC, 1 << 40, StoreFull),
        (errno.EDQUOT, 1 << 40, StoreFull),
        (errno.EFBIG, 1 << 40, StoreFull),
        (errno.EIO, (1 << 22) - 1, StoreFull),  # a write that was cut short
        (errno.EIO, 1 << 22, StoreError),  # a broken disk
        (errno.EACCES, 0, StoreError),
    ],
)
def test_which_error_a_failing_disk_becomes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, room: int, error: type[StoreError]
) -> None:
    def fail(*_: object) -> None:
        raise OSError(code, "the disk")

    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=room))
    with LmdbStore.create(tmp_path / "store", SPEC, DENSE) as store:
        monkeypatch.setattr(os, "rename", fail)
        with pytest.raises(StoreError, match="the disk") as found:
            store.copy_to(tmp_path / "copy")
        assert type(found.value) is error
    with pytest.raises(StoreError, match="the disk") as found:
        copy_beside(tmp_path / "store", tmp_path / "copy")
    assert type(found.value) is error
    assert not (tmp_path / "copy").exists()


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = LmdbStore.create(tmp_path / "store", SPEC, DENSE)
    store.close()
    store.close()
    with pytest.raises(StoreError, match="was closed"):
        store.read_dense()


def test_without_lmdb_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lmdb", None)
    monkeypatch.delitem(sys.modules, "sfsl.submodel.lmdb_file", raising=False)
    monkeypatch.delattr("sfsl.submodel.lmdb_file", raising=False)
    with pytest.raises(StoreError, match=r"pip install .*\[store\]"):
        LmdbStore.create(tmp_path / "store", SPEC, DENSE)


def test_a_store_that_was_written_to_while_it_was_looked_at_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    LmdbStore.create(tmp_path / "store", SPEC, DENSE).close()
    looks = [["a page that its owner has just replaced"], []]
    monkeypatch.setattr(lmdb_file, "_problems", lambda _: looks.pop(0))
    copy_beside(tmp_path / "store", tmp_path / "copy")
    with LmdbStore.open(tmp_path / "copy", check=False) as store:
        assert store.round == 0
    looks.extend([["a page"], ["a page that is damaged"]])
    with pytest.raises(StoreError, match="a page that is damaged"):
        copy_beside(tmp_path / "store", tmp_path / "another")
    assert not (tmp_path / "another").exists()
