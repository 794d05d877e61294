"""SIGKILL at random moments of creating, committing and growing: the store holds round r or r + 1, whole.

Run as a script, this file is the parent of the processes that are killed. It forks them, which is fast and
safe there, as the script has one thread; a test runner may have more.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest

from sfsl.submodel import Commit, DenseBlock, LmdbStore, ModelSpec, RowBlock, RowSet, StoreSpec, Table

SPEC = StoreSpec(
    model=ModelSpec(tables=(Table(name="goods", rows=2**40, width=6),), dense=5000),
    seed=bytes(32),
    row_slots=1,
    dense_slots=1,
)
DENSE = np.zeros(5000, np.float32)
ROWS = 1500
KILLS, MANY_KILLS = 24, 104


def rows_of(number: int) -> RowSet:
    """Some that earlier rounds touched and some that none did."""
    return RowSet.of(np.random.default_rng(number).integers(0, 30_000, ROWS))


def commit(number: int) -> Commit:
    rows = rows_of(number)
    return Commit(
        number,
        {
            "goods": RowBlock(
                rows,
                np.full((len(rows), 6), number, np.float32),
                np.full((len(rows), 1, 6), number, np.float32),
            )
        },
        DenseBlock(np.full(5000, number, np.float32), np.full((1, 5000), number, np.float32)),
        str(number).encode() * 100,
    )


def require_whole(store: LmdbStore, expected: dict[int, int]) -> int:
    """Every part of the store is of the same round. ``expected``: the last round of each row so far."""
    number = store.round
    while expected[-1] < number:
        expected[-1] += 1
        expected.update(dict.fromkeys(rows_of(expected[-1]).rows.tolist(), expected[-1]))
    assert expected[-1] == number, "a round was lost"
    dense = store.read_dense()
    assert (dense.values == number).all()
    assert (dense.state == number).all()
    assert store.selection == (str(number).encode() * 100 if number else b"")
    touched = store.touched("goods")
    assert touched.rows.tolist() == sorted(expected.keys() - {-1})
    block = store.read_rows("goods", touched)
    wanted = np.array([expected[row] for row in touched.rows.tolist()], np.float32)
    assert (block.values == wanted[:, None]).all()
    assert (block.state == wanted[:, None, None]).all()
    return number


def killed_while(work: str, path: Path, wait: float, commits: int = 0) -> int:
    """Fork a child that creates a store, commits round after round or adds row after row; kill it a while
    after it has reported so many. How many it reported."""
    reports, report = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reports)
        try:
            if work == "create":
                os.write(report, b".")
                LmdbStore.create(path, SPEC, DENSE).close()
            elif work == "grow":
                store = LmdbStore.open(path, check=False)
                os.write(report, b".")
                while True:
                    store.grow(of_rows(rows_in(store) + 1))
                    os.write(report, b".")
            else:
                store = LmdbStore.open(path, SPEC, check=False)
                os.write(report, b".")
                while True:
                    store.commit(commit(store.round + 1))
                    os.write(report, b".")
        finally:
            os._exit(1)
    os.close(report)
    reported = b""
    while len(reported) < 1 + commits:
        reported += os.read(reports, 1)
    time.sleep(wait)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while more := os.read(reports, 1 << 16):
        reported += more
    os.close(reports)
    return len(reported) - 1


def kill_commits(folder: Path, rng: random.Random, kills: int) -> None:
    path = folder / "store"
    with LmdbStore.create(path, SPEC, DENSE) as store:
        start = time.perf_counter()
        store.commit(commit(1))
        usual = time.perf_counter() - start
    expected = {-1: 0}
    before, torn = 1, 0
    for kill in range(kills):
        # Every other one lives to see a commit, however slow the machine has become.
        reported = killed_while("commit", path, rng.uniform(0, 2 * usual), commits=kill % 2)
        with LmdbStore.open(path, SPEC) as store:
            number = require_whole(store, expected)
        # Whatever was reported as committed is there, and at most the one that was under way besides.
        assert before + reported <= number <= before + reported + 1
        torn += number == before + reported + 1
        before = number
    sys.stdout.write(f"{kills} kills, {before} rounds, {torn} of them durable but not yet reported\n")
    assert before > kills // 2


def of_rows(rows: int) -> StoreSpec:
    (table,) = SPEC.model.tables
    grown = msgspec.structs.replace(SPEC.model, tables=(msgspec.structs.replace(table, rows=rows),))
    return msgspec.structs.replace(SPEC, model=grown)


def rows_in(store: LmdbStore) -> int:
    (table,) = store.spec.model.tables
    return table.rows


def kill_growths(folder: Path, rng: random.Random, kills: int) -> None:
    path, expected = folder / "growing", {-1: 0}
    with LmdbStore.create(path, SPEC, DENSE) as store:
        store.commit(commit(1))
        start = time.perf_counter()
        store.grow(of_rows(2**40 + 1))
        usual = time.perf_counter() - start
    before = 2**40 + 1
    for kill in range(kills):
        reported = killed_while("grow", path, rng.uniform(0, 2 * usual), commits=kill % 2)
        with LmdbStore.open(path) as store:
            assert require_whole(store, expected) == 1
            rows = rows_in(store)
        assert before + reported <= rows <= before + reported + 1
        before = rows
    sys.stdout.write(f"{kills} kills, {before - 2**40} rows added\n")


def kill_creations(folder: Path, rng: random.Random, kills: int) -> None:
    start = time.perf_counter()
    LmdbStore.create(folder / "usual", SPEC, DENSE).close()
    usual = time.perf_counter() - start
    made = 0
    for number in range(kills):
        path = folder / f"new{number}"
        killed_while("create", path, rng.uniform(0, 2 * usual))
        if path.exists():
            made += 1
        else:
            LmdbStore.create(path, SPEC, DENSE).close()
        with LmdbStore.open(path, SPEC) as store:
            assert require_whole(store, {-1: 0}) == 0
        shutil.rmtree(path)
    sys.stdout.write(f"{kills} kills, {made} stores made\n")


@pytest.mark.parametrize("kills", [KILLS, pytest.param(MANY_KILLS, marks=pytest.mark.slow)])
def test_a_killed_writer_leaves_a_whole_round(kills: int) -> None:
    words = [sys.executable, __file__, str(kills)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600)  # noqa: S603
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{kills} kills" in done.stdout


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        kill_commits(Path(name), random.Random(5), int(sys.argv[1]))
        kill_creations(Path(name), random.Random(6), int(sys.argv[1]) // 2)
        kill_growths(Path(name), random.Random(7), int(sys.argv[1]) // 2)
