"""Versions of a server's model: kept under names, put back as a new round; nothing of clients' is undone."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("lmdb")

from sfsl.errors import InputError, StoreError, StoreInUse
from sfsl.rounds.record import RoundTally
from sfsl.service.driver import Journal
from sfsl.service.folder import METRICS, REGISTRY, STORE, MetricsFile, read_lines
from sfsl.service.registry import Registry
from sfsl.service.versions import VERSIONS, roll_back, tag, versions
from sfsl.submodel import Commit, DenseBlock, LmdbStore, ModelSpec, RowBlock, RowSet, StoreSpec, Table

PUBLIC, ROUND = bytes(range(32)), bytes(16)


def spec(rows: int = 10) -> StoreSpec:
    table = Table(name="item", rows=rows, width=2, initial=0.1)
    return StoreSpec(model=ModelSpec(tables=(table,), dense=3), seed=bytes(32), row_slots=1, dense_slots=1)


def block(rows: list[int], value: float) -> RowBlock:
    values = np.full((len(rows), 2), value, np.float32)
    return RowBlock(RowSet(np.array(rows)), values, np.full((len(rows), 1, 2), value / 2, np.float32))


def train(folder: Path, rows: list[int], value: float, spent: float) -> None:
    """One more round, as a server commits it."""
    with LmdbStore.open(folder / STORE) as store:
        journal, number = Journal(store), store.round + 1
        dense = DenseBlock(np.full(3, value, np.float32), np.full((1, 3), value, np.float32))
        commit = Commit(number, {"item": block(rows, value)}, dense)
        record = RoundTally(cohort=4).record(number, None)
        journal.commit(commit, record, None, spent={"ann": spent})
        lines = read_lines(folder / METRICS)
        MetricsFile(folder / METRICS, [*lines, record]).close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with Registry(tmp_path / REGISTRY) as registry:
        client = registry.enrol(PUBLIC, 1)
        registry.acknowledge(ROUND, [client])
    LmdbStore.create(tmp_path / STORE, spec(), np.zeros(3, np.float32)).close()
    train(tmp_path, [1, 2], 1.0, 0.5)
    return tmp_path


def test_versions_are_listed_by_round_and_the_current_last(folder: Path) -> None:
    assert tag(folder, "first").round == 1
    train(folder, [2, 3, 4], 2.0, 0.7)
    tag(folder, "second")
    assert [(one.name, one.round, one.rows) for one in versions(folder)] == [
        ("first", 1, {"item": 2}),
        ("second", 2, {"item": 4}),
        ("current", 2, {"item": 4}),
    ]


def test_a_version_is_tagged_while_a_server_has_the_store_open(folder: Path) -> None:
    with Registry(folder / REGISTRY), LmdbStore.open(folder / STORE):
        for command in (["tag", folder, "live"], ["list", folder]):  # by another process, as an operator does
            done = subprocess.run(  # noqa: S603
                [sys.executable, "-m", "sfsl", "models", *map(str, command)], capture_output=True, text=True
            )
            assert done.returncode == 0, done.stderr
    assert [one.name for one in versions(folder)] == ["live", "current"]


def test_what_is_put_back_is_a_new_round_with_the_old_numbers(folder: Path) -> None:
    tag(folder, "good")
    train(folder, [2, 3], 9.0, 0.7)
    now = roll_back(folder, "good")
    assert (now.name, now.round) == ("current", 3)
    with LmdbStore.open(folder / STORE) as store, LmdbStore.open(folder / VERSIONS / "good") as old:
        every = RowSet(np.arange(10))
        np.testing.assert_array_equal(
            store.read_rows("item", every).values, old.read_rows("item", every).values
        )
        np.testing.assert_array_equal(
            store.read_rows("item", every).state, old.read_rows("item", every).state
        )
        np.testing.assert_array_equal(store.read_dense().values, old.read_dense().values)
        np.testing.assert_array_equal(store.read_dense().state, old.read_dense().state)
        # What simulated clients have spent is not undone, nor is the last round's number.
        assert Journal(store).kept.spent == {"ann": 0.7}
    lines = read_lines(folder / METRICS)
    assert [line.restored for line in lines] == ["", "", "good of round 1"]
    with Registry.beside(folder / REGISTRY) as registry:
        assert [one.acknowledged for one in registry.clients()] == [1]


def test_what_was_replaced_can_be_put_back_too(folder: Path) -> None:
    tag(folder, "good")
    train(folder, [2, 3], 9.0, 0.7)
    roll_back(folder, "good")
    assert roll_back(folder, "round-2").round == 4
    with LmdbStore.open(folder / STORE) as store:
        assert store.read_rows("item", RowSet(np.array([3]))).values.tolist() == [[9.0, 9.0]]


def test_rows_that_came_later_begin_anew(folder: Path) -> None:
    tag(folder, "small")
    with LmdbStore.open(folder / STORE, spec(20), grow=True) as store:
        first = store.read_rows("item", RowSet(np.array([15]))).values.copy()
    train(folder, [15], 3.0, 0.7)
    roll_back(folder, "small")
    with LmdbStore.open(folder / STORE, spec(20)) as store:
        np.testing.assert_array_equal(store.read_rows("item", RowSet(np.array([15]))).values, first)


def test_a_running_server_is_not_rolled_back(folder: Path) -> None:
    tag(folder, "good")
    with Registry(folder / REGISTRY), pytest.raises(StoreInUse):
        roll_back(folder, "good")
    with LmdbStore.open(folder / STORE), pytest.raises(StoreInUse):
        roll_back(folder, "good")
    assert [one.round for one in versions(folder)] == [1, 1]


@pytest.mark.parametrize("name", ["", "../store", "a/b", "current", "-x", "x" * 65])
def test_names_that_are_none_are_refused(folder: Path, name: str) -> None:
    with pytest.raises(InputError, match="no name of a version"):
        tag(folder, name)
    with pytest.raises(InputError, match="has no version"):
        roll_back(folder, name)
    assert not (folder / VERSIONS).exists()


def test_a_name_is_used_once_and_other_folders_are_refused(folder: Path, tmp_path: Path) -> None:
    tag(folder, "good")
    with pytest.raises(InputError, match="already"):
        tag(folder, "good")
    (tmp_path / "other").mkdir()
    with pytest.raises(StoreError, match="no server's folder"):
        versions(tmp_path / "other")
