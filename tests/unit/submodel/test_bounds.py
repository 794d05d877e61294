"""Bounds of tables, quantization, steps and stores at their boundary and beyond; what is left unsaid; which
guard refuses."""

import errno
import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from sfsl.durable import FileLock
from sfsl.errors import (
    InputError,
    NotFinite,
    ParameterError,
    StoreCorrupt,
    StoreError,
    StoreFull,
    UnknownRow,
    WrongModel,
)
from sfsl.submodel import (
    ADDITION,
    PAPER,
    Averaging,
    Commit,
    DenseBlock,
    LmdbStore,
    MemoryStore,
    ModelSpec,
    Quantization,
    RowBlock,
    RowMaps,
    RowSet,
    ServerStep,
    StoreSpec,
    Table,
    TrainedRows,
    UpdateParams,
    WeightedSums,
    apply_sums,
    decode_sums,
    encode_update,
)
from sfsl.submodel import store as kept
from sfsl.submodel.lmdb_file import LmdbFile
from sfsl.submodel.update import evidence, row_trust
from sfsl.testing import SeededRandomness

changed = msgspec.structs.replace
GOODS = Table(name="goods", rows=10, width=2)
MODEL = ModelSpec(tables=(GOODS, Table(name="user", rows=3, width=1, kind="personal")), dense=3)
SPEC = StoreSpec(model=MODEL, seed=bytes(32), row_slots=1, dense_slots=1)
QUANTIZED = Quantization(ring="z32", cohort=4, clip=1.0, levels=8, max_weight=5)
UPDATE = UpdateParams(rows=QUANTIZED, dense=QUANTIZED, averaging=PAPER)
STEP = ServerStep(kind="adam", rate=0.5)
DENSE = np.zeros(3, np.float32)
MANY = tuple(changed(GOODS, name=f"t{number}") for number in range(65))


def test_what_holds_where_nothing_is_said() -> None:
    assert (GOODS.kind, GOODS.source, GOODS.initial, GOODS.words) == ("shared", None, 0.05, 3)
    bare = StoreSpec(model=MODEL, seed=bytes(32))
    assert (bare.row_slots, bare.dense_slots, bare.devices) == (0, 0, False)
    assert (Averaging().weights, Averaging().kappa, Averaging().max_move) == ("owners", 5, None)
    assert (PAPER.weights, PAPER.kappa) == ("samples", 1)
    assert (STEP.beta1, STEP.beta2, STEP.tau) == (0.9, 0.99, 1e-3)
    assert (ADDITION.kind, ADDITION.rate) == ("add", 1)
    assert [changed(STEP, kind=kind).slots for kind in ("add", "adagrad", "adam", "heat")] == [0, 1, 2, 1]
    assert Commit(1).selection == b""
    assert Commit(1).dense is None
    assert MODEL.dense_words == 4
    assert [table.name for table in MODEL.summed] == ["goods"]
    owners = UpdateParams(rows=changed(QUANTIZED, max_weight=1), dense=QUANTIZED)
    assert (owners.row_step, owners.dense_step, owners.averaging) == (ADDITION, ADDITION, Averaging())


@pytest.mark.parametrize(
    ("of", "name", "fits", "beyond"),
    [
        (GOODS, "rows", 2**63, 2**63 + 1),
        (GOODS, "rows", 1, 0),
        (GOODS, "width", 2**20, 2**20 + 1),
        (GOODS, "width", 1, 0),
        (GOODS, "initial", 0.0, -0.01),
        (GOODS, "initial", 1e6, 1.1e6),
        (GOODS, "name", "a" * 64, "a" * 65),
        (GOODS, "name", "A.b_c-1", "1a"),
        (GOODS, "source", None, "other"),
        (MODEL, "dense", 0, -1),
        (MODEL, "dense", 2**40, 2**40 + 1),
        (ModelSpec(tables=(), dense=0), "tables",
         MANY[:64], MANY),
        (SPEC, "seed", bytes(32), bytes(33)),
        (SPEC, "seed", bytes(32), bytes(31)),
        (SPEC, "row_slots", 8, 9),
        (SPEC, "dense_slots", 0, -1),
        (changed(QUANTIZED, max_weight=1, levels=1), "cohort", 2**16, 2**16 + 1),
        (QUANTIZED, "cohort", 1, 0),
        (QUANTIZED, "clip", 1e6, 1.1e6),
        (QUANTIZED, "clip", 1e-9, 0.0),
        (QUANTIZED, "levels", 1, 0),
        (QUANTIZED, "max_weight", 1, 0),
        # 4 clients x weight 5: below 2^31 in all.
        (QUANTIZED, "levels", (2**31 - 1) // 20, (2**31 - 1) // 20 + 1),
        # One client at most 2^52, whatever the ring has room for.
        (changed(QUANTIZED, ring="z64", cohort=1, max_weight=1), "levels", 2**52, 2**52 + 1),
        (changed(QUANTIZED, ring="z64", cohort=1, max_weight=2, levels=1), "levels", 2**51, 2**51 + 1),
        (Averaging(), "kappa", 1, 0.99),
        (Averaging(), "kappa", 1e300, math.inf),
        (Averaging(), "max_move", 1e-9, 0.0),
        (Averaging(), "max_move", 1e300, math.inf),
        (STEP, "rate", 1e6, 1.1e6),
        (STEP, "rate", 1e-9, 0.0),
        (STEP, "beta1", 0.0, -0.1),
        (STEP, "beta2", 0.999, 1.0),
        (STEP, "tau", 1e6, 0.0),
        (UPDATE, "dense", changed(QUANTIZED, levels=9), changed(QUANTIZED, cohort=3)),
        (UPDATE, "dense", changed(QUANTIZED, clip=9.0), changed(QUANTIZED, ring="z64")),
        (UPDATE, "dense_step", STEP, changed(STEP, kind="heat")),
        (changed(UPDATE, rows=changed(QUANTIZED, max_weight=1)), "averaging", Averaging(), None),
    ],
)  # fmt: skip
def test_parameters_at_their_bounds(of: Any, name: str, fits: Any, beyond: Any) -> None:
    assert getattr(changed(of, **{name: fits}), name) == fits
    with pytest.raises(ParameterError):
        changed(of, **{name: beyond})


def test_models_that_contradict_themselves() -> None:
    derived = Table(name="kind", rows=2, width=1, kind="derived", source="goods")
    ModelSpec(tables=(GOODS, derived), dense=0)
    for tables, says in (
        ((GOODS, GOODS), "the same name"),
        ((derived,), "not a shared table"),
        ((GOODS, derived, changed(derived, name="k2", source="kind")), "not a shared table"),
    ):
        with pytest.raises(ParameterError, match=says):
            ModelSpec(tables=tables, dense=0)
    with pytest.raises(ParameterError, match="name a source"):
        changed(derived, source=None)
    with pytest.raises(InputError, match="no table 'other'"):
        MODEL.table("other")
    with pytest.raises(ParameterError, match="max_weight is 1"):
        changed(UPDATE, averaging=Averaging())


def test_sets_of_rows_at_their_ends() -> None:
    some = RowSet([0, 4, 9])
    assert some.at(np.array([0, 2])).rows.tolist() == [0, 9]
    assert some.at(np.array([True, False, True])).rows.tolist() == [0, 9]
    assert not len(some.at(np.array([], np.intp)))
    for wrong in (np.array([3]), np.array([-1]), np.array([True])):
        with pytest.raises(InputError):
            some.at(wrong)
    assert some.common(RowSet([4, 5])).rows.tolist() == [4]
    assert some.with_rows(RowSet([4, 5])).rows.tolist() == [0, 4, 5, 9]
    assert some.holds([[0, 1], [9, 10]]).tolist() == [[True, False], [True, False]]
    with pytest.raises(
        UnknownRow, match=r"6 rows are not in this set of 3, the first of them \[1, 2, 3, 5, 6\]"
    ):
        some.positions_of([1, 2, 3, 5, 6, 7])
    for wrong_rows in ([1, 0], [1, 1], [[0, 1]]):
        with pytest.raises(InputError):
            RowSet(wrong_rows)
    assert RowMaps(MODEL, {}).with_derived({"goods": some}) == {"goods": some}
    with pytest.raises(InputError, match="table 'goods' is shared; only derived tables have a map"):
        RowMaps(MODEL, {}).rows_of("goods", [1])


def test_a_store_takes_its_last_row_and_no_other() -> None:
    assert SPEC.rows_in("goods", RowSet([9])) == GOODS
    assert SPEC.rows_in("goods", RowSet([])) == GOODS
    with pytest.raises(UnknownRow):
        SPEC.rows_in("goods", RowSet([10]))
    with pytest.raises(InputError, match="personal"):
        SPEC.table("user")
    assert changed(SPEC, devices=True).table("user").width == 1


def block(**fields: Any) -> RowBlock:
    usual = {
        "rows": RowSet([0, 9]),
        "values": np.ones((2, 2), np.float32),
        "state": np.ones((2, 1, 2), np.float32),
    }
    return RowBlock(**usual | fields)


WRONG = np.full((2, 2), np.nan, np.float32)


@pytest.mark.parametrize(
    ("commit", "error", "says"),
    [
        (Commit(0), InputError, "round 0 cannot follow round 0"),
        (Commit(2), InputError, "round 2 cannot follow round 0"),
        (Commit(1, {"goods": block(values=np.ones((2, 3), np.float32))}), InputError, "table 'goods'"),
        (Commit(1, {"goods": block(values=np.ones((2, 2)))}), InputError, "float64"),
        (Commit(1, {"goods": block(state=np.ones((2, 2, 2), np.float32))}), InputError, "the state of table"),
        (Commit(1, {"goods": block(values=WRONG)}), NotFinite, "table 'goods'"),
        (Commit(1, {"goods": block(state=WRONG[:, None])}), NotFinite, "the state of table"),
        (Commit(1, {"goods": block(rows=RowSet([0, 10]))}), UnknownRow, "9"),
        (Commit(1, dense=DenseBlock(DENSE[:2], np.zeros((1, 3), np.float32))), InputError, "the dense part"),
        (Commit(1, dense=DenseBlock(DENSE, np.zeros((2, 3), np.float32))), InputError, "state of the dense"),
    ],
)
def test_commits_that_cannot_be(commit: Commit, error: type[Exception], says: str) -> None:
    store = MemoryStore(SPEC, DENSE)
    with pytest.raises(error, match=says):
        store.commit(commit)
    assert (store.round, len(store.touched("goods"))) == (0, 0)
    store.commit(Commit(1, {"goods": block()}))
    assert store.touched("goods").rows.tolist() == [0, 9]


@pytest.mark.parametrize("kind", ["memory", "lmdb"])
@pytest.mark.parametrize(
    ("dense", "error"),
    [
        (np.zeros(2, np.float32), InputError),
        (np.zeros(4, np.float32), InputError),
        (np.zeros((1, 3), np.float32), InputError),
        (np.zeros(3), InputError),
        (np.array([0, math.nan, 0], np.float32), NotFinite),
        (np.array([0, math.inf, 0], np.float32), NotFinite),
    ],
)
def test_no_store_begins_with_a_dense_part_that_cannot_be(
    tmp_path: Path, kind: str, dense: Any, error: type[Exception]
) -> None:
    with pytest.raises(error, match="the dense part"):
        MemoryStore(SPEC, dense) if kind == "memory" else LmdbStore.create(tmp_path / "store", SPEC, dense)
    assert not (tmp_path / "store").exists()


def test_the_largest_selection(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kept.MAX_SELECTION == 1 << 28
    monkeypatch.setattr(kept, "MAX_SELECTION", 5)
    kept.require_commit(SPEC, 0, Commit(1, selection=bytes(5)))
    with pytest.raises(InputError, match="6 bytes"):
        kept.require_commit(SPEC, 0, Commit(1, selection=bytes(6)))


def test_first_values_do_not_depend_on_chunks() -> None:
    """One chunk is 16,384 rows."""
    rows = np.arange(16_386)
    table = Table(name="t", rows=2**20, width=5, initial=1.0)
    whole = kept.initial_rows(bytes(32), table, rows)
    for at in (16_382, 16_383, 16_384, 16_385):
        np.testing.assert_array_equal(whole[at], kept.initial_rows(bytes(32), table, rows[at : at + 1])[0])
    assert not kept.initial_rows(bytes(32), changed(table, initial=0), rows).any()
    assert 0.9 < np.abs(whole).max() <= 1.0


def test_what_is_on_disk_and_damaged() -> None:
    cells = np.arange(6, dtype=np.float32).reshape(2, 3)
    keys = kept.row_keys(np.array([1, 258]))
    assert keys == [bytes(7) + b"\1", bytes(6) + b"\1\2"]
    assert kept.rows_of_keys(keys).rows.tolist() == [1, 258]
    records = kept.encode_rows(keys, cells)
    assert [len(one) for one in records] == [16, 16]
    np.testing.assert_array_equal(kept.decode_rows(keys, records, 3, "here"), cells)
    flipped = [bytes([records[0][0] ^ 1]) + records[0][1:], records[1]]
    with pytest.raises(StoreCorrupt, match="1 rows of here"):
        kept.decode_rows(keys, flipped, 3, "here")
    with pytest.raises(StoreCorrupt, match="2 rows of here"):
        kept.decode_rows(keys[::-1], records, 3, "here")
    with pytest.raises(StoreCorrupt, match="0 rows of here"):
        kept.decode_rows(keys, records, 2, "here")
    dense = DenseBlock(np.arange(3, dtype=np.float32), np.ones((1, 3), np.float32))
    data = kept.encode_dense(dense)
    read = kept.decode_dense(data, SPEC, "here")
    np.testing.assert_array_equal(read.values, dense.values)
    np.testing.assert_array_equal(read.state, dense.state)
    with pytest.raises(StoreCorrupt, match="has 6 numbers"):
        kept.decode_dense(data, changed(SPEC, dense_slots=2), "here")
    for damaged in (data[:-1], b"", bytes([data[0] ^ 1]) + data[1:]):
        with pytest.raises(StoreCorrupt, match="checksum"):
            kept.decode_dense(damaged, SPEC, "here")
    head = kept.encode_head(kept.Head(3, b"x"))
    assert kept.decode_head(head, "here") == kept.Head(3, b"x")
    with pytest.raises(StoreCorrupt, match="the head of here"):
        kept.decode_head(head[1:], "here")
    assert kept.decode_spec(kept.encode_spec(SPEC), "here") == SPEC
    with pytest.raises(StoreCorrupt, match="cannot be read"):
        kept.decode_spec(head, "here")
    kept.require_format(kept.FORMAT, "here")
    with pytest.raises(StoreError, match="this version reads"):
        kept.require_format(b"sfsl row store 2", "here")


def test_what_differs_between_two_models_is_named() -> None:
    with pytest.raises(WrongModel, match=r"model.tables.0.width is 2 there and 3 here \(1 differences"):
        kept.require_same(
            SPEC, changed(SPEC, model=changed(MODEL, tables=(changed(GOODS, width=3), MODEL.tables[1]))), "x"
        )
    kept.require_same(SPEC, SPEC, "x")
    more = changed(SPEC, model=changed(MODEL, tables=(changed(GOODS, rows=11), MODEL.tables[1])))
    assert kept.require_grown(SPEC, more, "x")
    assert not kept.require_grown(SPEC, SPEC, "x")
    with pytest.raises(WrongModel, match="rows is 11 there and 10 here"):
        kept.require_grown(more, SPEC, "x")


def test_damaged_rows_are_found_where_the_whole_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with LmdbStore.create(path, SPEC, DENSE) as store:
        store.commit(Commit(1, {"goods": block(values=np.full((2, 2), 7.125, np.float32))}))
    data = (path / "data.mdb").read_bytes()
    mark = np.full(2, 7.125, "<f4").tobytes()
    assert mark in data
    (path / "data.mdb").write_bytes(data.replace(mark, mark[:-1] + b"\x42"))
    with pytest.raises(StoreCorrupt, match="2 rows of table 'goods'"):
        LmdbStore.open(path, SPEC)
    with LmdbStore.open(path, SPEC, check=False) as store:
        assert store.round == 1
        with pytest.raises(StoreCorrupt, match="1 rows of table 'goods'"):
            store.read_rows("goods", RowSet([9]))


def test_a_map_grows_beyond_what_lmdb_gives_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sfsl.submodel.lmdb_file._FIRST_MAP_BYTES", 1 << 16)
    with LmdbStore.create(tmp_path / "store", SPEC, DENSE) as store:
        store.commit(Commit(1, selection=bytes(12 << 20)))  # it gives 10 MiB
        assert len(store.selection) == 12 << 20


def test_a_copy_has_no_free_pages(tmp_path: Path) -> None:
    wide = StoreSpec(model=ModelSpec(tables=(Table(name="t", rows=4000, width=64),), dense=0), seed=bytes(32))
    rows = RowSet(np.arange(4000))
    with LmdbStore.create(tmp_path / "store", wide, np.zeros(0, np.float32)) as store:
        for number in (1, 2, 3):
            values = np.full((4000, 64), number, np.float32)
            store.commit(Commit(number, {"t": RowBlock(rows, values, np.zeros((4000, 0, 64), np.float32))}))
        store.copy_to(tmp_path / "copy")
        first = (tmp_path / "copy" / "data.mdb").stat().st_size
        store.copy_to(tmp_path / "copy")
        assert (tmp_path / "copy" / "data.mdb").stat().st_size == first
        assert first < 0.8 * (tmp_path / "store" / "data.mdb").stat().st_size
    with LmdbStore.open(tmp_path / "copy") as copied:
        assert copied.round == 3


def test_whoever_lost_the_lock_neither_reads_nor_writes(tmp_path: Path) -> None:
    LmdbStore.create(tmp_path / "store", SPEC, DENSE).close()
    lock = FileLock(tmp_path / "store")
    file = LmdbFile(lock.path, lock, check=True)
    assert file.get("meta", b"format") == kept.FORMAT
    lock.close()
    for act in (
        lambda: file.get("meta", b"format"),
        lambda: file.write({"meta": [(b"other", b"x")]}),
        lambda: file.copy_to(tmp_path / "copy"),
    ):
        with pytest.raises(StoreError, match="was closed"):
            act()
    assert not (tmp_path / "copy").exists()
    file.close()
    with FileLock(tmp_path / "none") as other, pytest.raises(StoreError, match="no store at"):
        LmdbFile(other.path, other, check=False)


def test_a_store_that_cannot_be_made_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> object:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("sfsl.submodel.lmdb_file.folder_made_whole", full)
    with pytest.raises(StoreFull, match="no room to create"):
        LmdbStore.create(tmp_path / "store", SPEC, DENSE)


# -- figures by hand -----------------------------------------------------------------------------------


def sums(values: Any, weights: Any, **fields: Any) -> WeightedSums:
    return WeightedSums(np.array(values, np.float64), np.array(weights), 0, **fields)


def test_evidence_counts_in_moves_of_one_owner() -> None:
    found = evidence(sums([[3.0, 1.0], [1.0, 1.0], [9.0, 9.0]], [3, 1, 0]))
    unit = math.sqrt(((9 + 1) / 4 + (1 + 1) / 4) / 2)
    np.testing.assert_allclose(found, [[3 / unit, 1 / unit], [1 / unit, 1 / unit], [0, 0]])
    noisy = sums([[3.0, 1.0]], [2], noise=2.0, said=np.array([4.0, 1.0]))
    np.testing.assert_allclose(row_trust(noisy), [[8 / 12, 2 / 6]])
    np.testing.assert_allclose(evidence(noisy), np.array([[3.0, 1.0]]) / math.sqrt(2.5) * row_trust(noisy))
    np.testing.assert_allclose(row_trust(sums([[1.0]], [3], noise=1.0)), [[3 / 4]])
    assert not evidence(sums([[0.0]], [0])).any()


def test_no_row_counts_for_more_than_sixteen_usual_ones_in_the_unit() -> None:
    """The median is of rows that say something: 1, 4 and 4,000 here, 4 its middle one."""
    found = evidence(sums([[1.0], [4.0], [200.0], [0.0]], [1, 4, 10, 5]))
    unit = math.sqrt((1 * 1 + 4 * 4 + 10 * 16 * 4) / 20)
    np.testing.assert_allclose(found[:, 0], [1 / unit, 4 / unit, 200 / unit, 0])
    within = evidence(sums([[1.0], [4.0], [math.sqrt(640.0)]], [1, 4, 10]))  # sixteen times it, and no more
    unit = math.sqrt((1 * 1 + 4 * 4 + 10 * 64) / 15)
    np.testing.assert_allclose(within[:, 0], np.array([1, 4, math.sqrt(640)]) / unit)


def test_noise_of_two_cohorts_adds_up_in_squares() -> None:
    both = sums([[1.0]], [1], noise=3.0) + sums([[2.0]], [2], noise=4.0)
    assert (both.values.tolist(), both.weights.tolist(), both.noise) == ([[3.0]], [3], 5.0)
    wider = sums([[1.0]], [1], noise=3.0).over(RowSet([4]), RowSet([2, 4]))
    assert (wider.values.tolist(), wider.weights.tolist(), wider.noise) == ([[0.0], [1.0]], [0, 1], 3.0)


def test_steps_by_hand_under_noise() -> None:
    values, moves = np.zeros((1, 2), np.float32), np.array([[3.0, 4.0]])
    added, _ = ADDITION.apply(values, np.zeros((1, 0, 2), np.float32), moves, 0.5)
    np.testing.assert_allclose(added, [[1.5, 2.0]])
    step = ServerStep(kind="adagrad", rate=2.0, tau=0.5)
    moved, state = step.apply(values, np.full((1, 1, 2), 16.0, np.float32), moves, 0.5)
    np.testing.assert_allclose(state[:, 0], [[25, 32]])
    own = math.sqrt(57 / 2)
    np.testing.assert_allclose(
        moved, [[2 * 1.5 / (5 + 0.5 * own), 2 * 2 / (math.sqrt(32) + 0.5 * own)]], rtol=1e-6
    )
    heat = ServerStep(kind="heat", rate=1.0, tau=4.0)
    moved, state = heat.apply(values, np.zeros((1, 1, 2), np.float32), moves)
    np.testing.assert_allclose(moved, [[3 / 5, 4 / math.sqrt(32)]], rtol=1e-6)
    for wrong in (np.zeros((1, 2, 2), np.float32), np.zeros((2, 1, 2), np.float32)):
        with pytest.raises(InputError, match="keeps 1 numbers"):
            heat.apply(values, wrong, moves)
    with pytest.raises(InputError, match="moves of shape"):
        heat.apply(values, np.zeros((1, 1, 2), np.float32), moves[:, :1])


def test_noisy_sums_move_a_model_by_what_is_believed() -> None:
    store = MemoryStore(changed(SPEC, row_slots=0, dense_slots=0), DENSE)
    union = {"goods": RowSet([1, 2, 3])}
    rows = sums([[4.0, 0.0], [0.0, 0.0], [2.0, 2.0]], [2, 2, 0], noise=1.0, said=np.array([1.0, 1.0]))
    dense = sums([[3.0, 0.0, 0.0]], [3], noise=2.0, said=np.array([4.0, 4.0, 4.0]))
    total = decode_sums(
        MODEL, UPDATE, unions=union, dense=np.zeros(4, np.uint32), tables=[np.zeros((3, 3), np.uint32)]
    )
    total.rows["goods"] = rows
    applied = apply_sums(store, UPDATE, type(total)(total.unions, total.rows, dense), selection=b"s")
    assert (applied.moved, applied.refused, applied.dense_refused, applied.samples) == (
        {"goods": 1},
        {"goods": 0},
        False,
        3,
    )
    moved = applied.commit.tables["goods"]
    assert moved.rows.rows.tolist() == [1]
    begun = store.read_rows("goods", RowSet([1])).values
    np.testing.assert_allclose(moved.values - begun, [[2.0 * 2 / 3, 0]], rtol=1e-5)
    assert applied.commit.dense is not None
    np.testing.assert_allclose(applied.commit.dense.values, [1.0 * 12 / 16, 0, 0], rtol=1e-6)
    assert (applied.commit.round, applied.commit.selection) == (1, b"s")


def test_an_update_says_what_does_not_fit() -> None:
    chance = SeededRandomness("update")
    good = TrainedRows(RowSet([1, 3]), np.full((2, 2), 0.5), [1, 9])
    given: dict[str, Any] = {
        "dense": np.zeros(3),
        "samples": 7,
        "trained": {"goods": good},
        "randomness": chance,
    }
    words = encode_update(MODEL, UPDATE, **given)
    assert words.dense.tolist() == [0, 0, 0, 5]  # no more than the largest weight
    assert words.trained[0].tolist() == [[4, 4, 1], [20, 20, 5]]
    assert words.idle == 0
    assert words.over([RowSet([1, 2, 3])])[0].tolist() == [[4, 4, 1], [0, 0, 0], [20, 20, 5]]
    dataset = changed(UPDATE, averaging=changed(PAPER, weights="dataset"))
    every = encode_update(MODEL, dataset, **given)
    assert every.idle == 5
    assert every.over([RowSet([1, 2, 3])])[0][:, -1].tolist() == [5, 5, 5]
    assert encode_update(MODEL, dataset, **given | {"samples": 2}).idle == 2
    for wrong, says in (
        ({"dense": np.zeros(4)}, "a dense part of 4 parameters; the model has 3"),
        ({"dense": np.zeros((1, 3))}, "one flat vector"),
        ({"trained": {}}, "trained rows are given for"),
        ({"trained": {"goods": TrainedRows(RowSet([1]), np.full((2, 2), 0.5), [1, 9])}}, "1 rows of width 2"),
        ({"trained": {"goods": TrainedRows(RowSet([1]), np.full((1, 3), 0.5), [1])}}, "shape 1 x 3"),
    ):
        with pytest.raises(InputError, match=says):
            encode_update(MODEL, UPDATE, **given | wrong)
    with pytest.raises(InputError, match="sums of 0 tables"):
        decode_sums(MODEL, UPDATE, unions={"goods": RowSet([1])}, dense=np.zeros(4, np.uint32), tables=[])
    with pytest.raises(InputError, match="a sum of shape"):
        decode_sums(
            MODEL,
            UPDATE,
            unions={"goods": RowSet([1])},
            dense=np.zeros(4, np.uint32),
            tables=[np.zeros((2, 3), np.uint32)],
        )


def test_sums_that_no_honest_cohort_makes() -> None:
    """Of rows, whose weights no contributors can have; and values that no weights allow."""
    words = np.array([[8, 0, 1], [0, 0, 10], [0, 0, 11], [99, 2**32 - 99, 2]], np.uint32)
    found = QUANTIZED.decode(words, [1, 2, 2, 1])
    assert (found.weights.tolist(), found.refused) == ([1, 10, 0, 2], 1)
    np.testing.assert_allclose(found.values, [[1, 0], [0, 0], [0, 0], [2, -2]])
    assert QUANTIZED.decode(np.array([[0, 20]], np.uint32)).refused == 0
    assert QUANTIZED.decode(np.array([[0, 21]], np.uint32)).refused == 1
    assert QUANTIZED.decode(np.array([[0, 21]], np.uint32), [9]).refused == 1  # no more than the cohort
    for total, contributors, says in (
        (np.zeros(3, np.uint32), None, "rows of parameters and a weight"),
        (np.zeros((1, 0), np.uint32), None, "rows of parameters and a weight"),
        (np.zeros((2, 2), np.uint32), [1], "contributors of shape"),
    ):
        with pytest.raises(InputError, match=says):
            QUANTIZED.decode(total, contributors)
    for deltas, weights, error, says in (
        ([[0.5]], [1, 2], InputError, "deltas of shape"),
        ([0.5], [1], InputError, "deltas of shape"),
        ([[1]], [1], InputError, "floating-point"),
        ([[math.inf]], [1], NotFinite, "1 of 1 numbers"),
    ):
        with pytest.raises(error, match=says):
            QUANTIZED.encode(deltas, weights, SeededRandomness("words"))
    assert QUANTIZED.unit == 1 / 8
    weight = QUANTIZED.decode(np.array([[3]], np.uint32))  # a model may have no dense part
    assert (weight.values.shape, weight.weights.tolist()) == ((1, 0), [3])
