"""Memory and disk agree, number for number, on any sequence of commits, also across a reopening."""

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfsl.errors import InputError
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
)

# Hundreds of commits that need no platter.
MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None  # noqa: S108
TABLES = (
    Table(name="goods", rows=2**63, width=3),
    Table(name="words", rows=30, width=1, initial=0),
)
ROWS = {
    "goods": st.integers(0, 20) | st.integers(2**63 - 20, 2**63 - 1) | st.integers(0, 2**63 - 1),
    "words": st.integers(0, 29),
}


@st.composite
def rounds(draw: st.DrawFn) -> tuple[StoreSpec, list[dict[str, Any]]]:
    spec = StoreSpec(
        model=ModelSpec(tables=TABLES, dense=draw(st.integers(0, 5))),
        seed=draw(st.binary(min_size=32, max_size=32)),
        row_slots=draw(st.integers(0, 2)),
        dense_slots=draw(st.integers(0, 2)),
    )
    one = st.fixed_dictionaries(
        {
            "rows": st.fixed_dictionaries(
                {}, optional={name: st.lists(rows, max_size=12) for name, rows in ROWS.items()}
            ),
            "seed": st.integers(0, 2**32),
            "dense": st.booleans(),
            "selection": st.binary(max_size=40),
            "reopen": st.booleans(),
            "spoilt": st.booleans(),
        }
    )
    return spec, draw(st.lists(one, max_size=6))


def commit_of(spec: StoreSpec, number: int, one: dict[str, Any]) -> Commit:
    rng = np.random.default_rng(one["seed"])

    def numbers(*shape: int) -> np.ndarray:
        return rng.normal(0, 1, shape).astype(np.float32)

    tables = {}
    for name, rows in one["rows"].items():
        chosen, width = RowSet.of(rows), spec.table(name).width
        state = numbers(len(chosen), spec.row_slots, width)
        tables[name] = RowBlock(chosen, numbers(len(chosen), width), state)
    size = spec.model.dense
    dense = DenseBlock(numbers(size), numbers(spec.dense_slots, size)) if one["dense"] else None
    return Commit(number, tables, dense, one["selection"])


def everything(store: RowStore) -> list[Any]:
    """All that can be read: rows that were touched, and some that were not."""
    shown: list[Any] = [store.round, store.selection]
    for name in ROWS:
        touched = store.touched(name)
        some = RowSet.of([*touched.rows.tolist(), 0, 7, 29])
        read = store.read_rows(name, some)
        shown += [touched.rows.tolist(), read.values.tolist(), read.state.tolist()]
    dense = store.read_dense()
    return [*shown, dense.values.tolist(), dense.state.tolist()]


@settings(deadline=None, derandomize=True, max_examples=150)
@given(rounds())
def test_both_stores_hold_the_same_after_any_commits(case: tuple[StoreSpec, list[dict[str, Any]]]) -> None:
    spec, sequence = case
    start = np.linspace(-1, 1, spec.model.dense, dtype=np.float32)
    memory = MemoryStore(spec, start)
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        path = Path(folder) / "store"
        disk = LmdbStore.create(path, spec, start)
        try:
            assert everything(disk) == everything(memory)
            for number, one in enumerate(sequence, 1):
                commit = commit_of(spec, number, one)
                if one["spoilt"]:
                    before = everything(disk)
                    for store in (memory, disk):
                        with pytest.raises(InputError):
                            store.commit(Commit(number + 1, commit.tables, commit.dense, commit.selection))
                    assert everything(disk) == everything(memory) == before
                memory.commit(commit)
                disk.commit(commit)
                if one["reopen"]:
                    disk.close()
                    disk = LmdbStore.open(path, spec)
                assert everything(disk) == everything(memory)
        finally:
            disk.close()
