"""A client's own rows, which never leave the device: kept durably, whole or not at all."""

import os
from collections.abc import Mapping
from typing import Annotated, Self

import msgspec
import numpy as np
from msgspec import Meta

from sfsl.arrays import Indices, Values, find
from sfsl.codec import Message
from sfsl.crypto.secret import Randomness
from sfsl.durable.lock import Closing
from sfsl.durable.records import DurableFile, RecordFormat
from sfsl.errors import InputError, StateError
from sfsl.submodel import ModelSpec, Table
from sfsl.submodel.store import initial_rows


class _Rows(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``rows`` ascending as little-endian 64-bit numbers, ``values`` as float32 of ``width`` each."""

    width: Annotated[int, Meta(ge=1, le=2**20)]
    rows: bytes
    values: bytes


class _Record(Message, frozen=True, tag="personal-rows"):
    seed: Annotated[bytes, Meta(min_length=32, max_length=32)]
    tables: dict[Annotated[str, Meta(max_length=64)], _Rows]


_FORMAT = RecordFormat(
    _Record,
    b"sfsl rows\r\n\x1a\n\x00\x00\x00",  # 16 bytes, as a client state has its own
    largest=1 << 28,
    what="a file of personal rows",
    lost="Without it, personal rows start anew",
)


class PersonalRows(Closing):
    """The personal rows of one client. Rows that it never trained follow from ``seed``.

    Without a file they last as long as this object, which is for simulations.
    """

    def __init__(self, model: ModelSpec, seed: bytes, file: DurableFile | None = None) -> None:
        self._tables = {table.name: table for table in model.tables if table.kind == "personal"}
        self._seed = seed
        self._file = file
        self._kept: dict[str, tuple[Indices, Values]] = {}

    @classmethod
    def open(cls, path: str | os.PathLike[str], model: ModelSpec, randomness: Randomness) -> Self:
        """Open the rows at ``path``; make a new file with a seed of its own if there is none."""
        file = DurableFile(path)
        try:
            if not file.exists():
                made = cls(model, randomness.bytes(32), file)
                made._write({})
                return made
            record = _FORMAT.decode(file.read(_FORMAT.largest), str(file.path))
            found = cls(model, record.seed, file)
            found._kept = {
                name: _arrays(found._table(name), rows, str(file.path))
                for name, rows in record.tables.items()
            }
        except BaseException:
            file.close()
            raise
        return found

    def read(self, table: str, rows: Indices) -> Values:
        """Return the values of these rows, ascending."""
        values = initial_rows(self._seed, self._table(table), rows)
        if table in self._kept:
            own, kept = self._kept[table]
            at, held = find(rows, own)
            values[held] = kept[at[held]]
        return values

    def keep(self, learned: Mapping[str, tuple[Indices, Values]]) -> None:
        """Replace the values of these rows; durable when it returns."""
        kept = dict(self._kept)
        for name, (rows, values) in learned.items():
            table = self._table(name)
            if values.shape != (len(rows), table.width) or not np.isfinite(values).all():
                raise InputError(f"personal rows of table {name!r} are {table.width} finite numbers each")
            every = np.union1d(kept[name][0], rows) if name in kept else np.asarray(rows, np.int64)
            merged = self.read(name, every)
            merged[np.searchsorted(every, rows)] = values
            kept[name] = (every, merged)
        self._write(kept)
        self._kept = kept

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def __repr__(self) -> str:
        return "PersonalRows(redacted)"

    def _table(self, name: str) -> Table:
        if name not in self._tables:
            raise StateError(f"this model has no personal table {name!r}; was it made for another model?")
        return self._tables[name]

    def _write(self, kept: Mapping[str, tuple[Indices, Values]]) -> None:
        if self._file is None:
            return
        tables = {
            name: _Rows(values.shape[1], rows.astype("<i8").tobytes(), values.astype("<f4").tobytes())
            for name, (rows, values) in kept.items()
        }
        self._file.replace(_FORMAT.encode(_Record(self._seed, tables)))


def _arrays(table: Table, given: _Rows, where: str) -> tuple[Indices, Values]:
    rows = np.frombuffer(given.rows[: len(given.rows) // 8 * 8], "<i8").astype(np.int64)
    whole = len(given.rows) == 8 * len(rows) and len(given.values) == 4 * len(rows) * given.width
    if given.width != table.width or not whole:
        raise StateError(
            f"{where}: rows of table {table.name!r} do not fit this model, of width {table.width}"
        )
    return rows, np.frombuffer(given.values, "<f4").astype(np.float32).reshape(len(rows), given.width)
