"""What a row store is: rows by number, the dense part, and one whole commit for each round (spec submodel 7).

A store holds only the rows that some round moved; every other row is what it began with. It belongs to
one thread of one process.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Annotated, Protocol

import numpy as np
from msgspec import Meta

from sfsl.arrays import Values
from sfsl.codec import Checked
from sfsl.errors import InputError, NotFinite
from sfsl.submodel.rowset import RowSet, row_numbers
from sfsl.submodel.tables import ModelSpec, Table

SEED_BYTES = 32
MAX_SELECTION = 1 << 28

Slots = Annotated[int, Meta(ge=0, le=8)]


class StoreSpec(Checked, frozen=True):
    """What a store is made for. It is fixed when the store is created, but for rows that are added.

    ``row_slots`` and ``dense_slots``: numbers of optimizer state for each parameter
    (``ServerStep.slots``). ``devices``: keep personal rows too, for devices simulated in this process; a
    server that has real clients never sees those rows.
    """

    model: ModelSpec
    seed: Annotated[bytes, Meta(min_length=SEED_BYTES, max_length=SEED_BYTES)]
    row_slots: Slots = 0
    dense_slots: Slots = 0
    devices: bool = False

    @property
    def tables(self) -> tuple[Table, ...]:
        return self.model.tables if self.devices else self.model.summed

    def table(self, name: str) -> Table:
        table = self.model.table(name)
        if table not in self.tables:
            raise InputError(f"table {name!r} is personal: its rows stay on the devices, not in this store")
        return table

    def rows_in(self, name: str, rows: RowSet) -> Table:
        """The table, if it has all these rows."""
        table = self.table(name)
        row_numbers(rows.rows[-1:], table.rows)  # ascending: if the last one is in range, all are
        return table


@dataclass(frozen=True)
class RowBlock:
    """Some rows of a table: float32 values [n, width] and optimizer state [n, slots, width]."""

    rows: RowSet
    values: Values
    state: Values


@dataclass(frozen=True)
class DenseBlock:
    """The dense part: float32 values [size] and optimizer state [slots, size]."""

    values: Values
    state: Values


@dataclass(frozen=True)
class Commit:
    """All that one round changes. ``dense`` is None where the dense part stays as it is.

    ``selection`` is opaque here: what whoever picks the cohorts needs in order to go on after this round.
    """

    round: int
    tables: Mapping[str, RowBlock] = field(default_factory=dict)
    dense: DenseBlock | None = None
    selection: bytes = b""


class RowStore(AbstractContextManager["RowStore"], Protocol):
    """Memory and LMDB do the same, number for number."""

    @property
    def spec(self) -> StoreSpec: ...
    @property
    def round(self) -> int:
        """The last round committed; 0 in a new store."""

    @property
    def selection(self) -> bytes:
        """What the last round left for the selection of the next cohort."""

    def read_rows(self, table: str, rows: RowSet) -> RowBlock: ...
    def read_dense(self) -> DenseBlock: ...
    def touched(self, table: str) -> RowSet:
        """The rows that some round moved."""

    def commit(self, commit: Commit) -> None:
        """Write round ``round + 1`` whole, or raise and hold the round before, whole."""

    def close(self) -> None: ...


def initial_dense(spec: StoreSpec, values: Values) -> DenseBlock:
    """A new store's dense part, which comes from the model, with state at zero."""
    dense = DenseBlock(np.array(values), np.zeros((spec.dense_slots, spec.model.dense), np.float32))
    _require_dense(spec, dense)
    return dense


def require_commit(spec: StoreSpec, current: int, commit: Commit) -> None:
    """Refuse what is not the next round of this model, or would put NaN or infinity into it."""
    if commit.round != current + 1:
        raise InputError(f"round {commit.round} cannot follow round {current}")
    if len(commit.selection) > MAX_SELECTION:
        raise InputError(f"a selection state of {len(commit.selection)} bytes; at most {MAX_SELECTION}")
    for name, block in commit.tables.items():
        table = spec.rows_in(name, block.rows)
        count = len(block.rows)
        _require_values(block.values, (count, table.width), f"table {name!r}")
        _require_values(block.state, (count, spec.row_slots, table.width), f"the state of table {name!r}")
    if commit.dense is not None:
        _require_dense(spec, commit.dense)


def _require_dense(spec: StoreSpec, dense: DenseBlock) -> None:
    size = spec.model.dense
    _require_values(dense.values, (size,), "the dense part")
    _require_values(dense.state, (spec.dense_slots, size), "the state of the dense part")


def _require_values(values: Values, shape: tuple[int, ...], what: str) -> None:
    if values.dtype != np.float32 or values.shape != shape:
        raise InputError(f"{what}: {values.dtype} of shape {values.shape} where float32 {shape} is due")
    if not np.isfinite(values).all():
        raise NotFinite(f"{what}: NaN or infinity would be stored; the model is unchanged")
