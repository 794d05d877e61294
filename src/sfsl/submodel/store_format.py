"""The bytes of a store's records (spec submodel 7.2)."""

from typing import Any
from zlib import crc32

import msgspec
import numpy as np

from sfsl.arrays import Indices, Values
from sfsl.durable.records import with_checksum, without_checksum
from sfsl.errors import StoreCorrupt, StoreError, WrongModel
from sfsl.submodel.rowset import RowSet
from sfsl.submodel.store import DenseBlock, StoreSpec
from sfsl.submodel.tables import canonical_json

FORMAT = b"sfsl row store 1"
# The CRC-32 of anything followed by its own CRC-32.
_RESIDUE = 0x2144DF1C


class Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a store holds apart from the model. Not a message: a store outlives versions of the protocol."""

    round: int
    selection: bytes


def _sound(data: bytes, what: str) -> bytes:
    body = without_checksum(data)
    if body is None:
        raise StoreCorrupt(f"{what} is damaged: its checksum does not fit; restore a backup")
    return body


def encode_head(head: Head) -> bytes:
    return with_checksum(msgspec.msgpack.encode(head))


def decode_head(data: bytes, where: str) -> Head:
    try:
        return msgspec.msgpack.decode(_sound(data, f"the head of {where}"), type=Head)
    except msgspec.MsgspecError as error:
        raise StoreCorrupt(f"the head of {where} cannot be read: {error}") from None


def encode_dense(dense: DenseBlock) -> bytes:
    return with_checksum(dense.values.astype("<f4").tobytes() + dense.state.astype("<f4").tobytes())


def decode_dense(data: bytes, spec: StoreSpec, where: str) -> DenseBlock:
    numbers = np.frombuffer(_sound(data, f"the dense part of {where}"), "<f4").astype(np.float32)
    size = spec.model.dense
    if len(numbers) != size * (1 + spec.dense_slots):
        raise StoreCorrupt(f"the dense part of {where} has {len(numbers)} numbers; it has another size")
    return DenseBlock(numbers[:size].copy(), numbers[size:].reshape(spec.dense_slots, size))


def row_keys(rows: Indices) -> list[bytes]:
    """Big-endian, so that the order of keys is the order of rows."""
    keys: list[bytes] = rows.astype(">u8").view("V8").tolist()
    return keys


def rows_of_keys(keys: list[bytes]) -> RowSet:
    return RowSet(np.frombuffer(b"".join(keys), ">u8").astype(np.int64))


def encode_rows(keys: list[bytes], cells: Values) -> list[bytes]:
    """One record for each row of ``cells`` [n, numbers]: the numbers, and a CRC-32 of key and numbers."""
    records = np.empty((len(keys), cells.shape[1] + 1), "<u4")
    records[:, :-1] = cells.astype("<f4").view("<u4")
    checks = map(crc32, _lines(records[:, :-1]), map(crc32, keys))
    records[:, -1] = np.fromiter(checks, np.uint32, len(keys))
    return _lines(records)


def decode_rows(keys: list[bytes], records: list[bytes], numbers: int, where: str) -> Values:
    """The cells of these rows, each checked against its key."""
    checks = np.fromiter(map(crc32, records, map(crc32, keys)), np.uint32, len(keys))
    joined = b"".join(records)
    if (checks != _RESIDUE).any() or len(joined) != len(keys) * 4 * (numbers + 1):
        raise StoreCorrupt(
            f"{int((checks != _RESIDUE).sum())} rows of {where} are damaged: their checksums do not fit; "
            "restore a backup"
        )
    return np.frombuffer(joined, "<f4").reshape(len(keys), numbers + 1)[:, :-1].astype(np.float32)


def _lines(matrix: np.ndarray[Any, np.dtype[Any]]) -> list[bytes]:
    """Each line of a matrix as bytes, without a loop."""
    packed = np.ascontiguousarray(matrix)
    lines: list[bytes] = packed.view(f"V{packed.itemsize * packed.shape[1]}")[:, 0].tolist()
    return lines


def encode_spec(spec: StoreSpec) -> bytes:
    return with_checksum(canonical_json(spec))


def decode_spec(data: bytes, where: str) -> StoreSpec:
    try:
        return msgspec.json.decode(_sound(data, f"the description of {where}"), type=StoreSpec)
    except (msgspec.MsgspecError, ValueError) as error:
        raise StoreCorrupt(f"the description of {where} cannot be read: {error}") from None


def require_format(data: bytes, where: str) -> None:
    if data != FORMAT:
        raise StoreError(f"{where} has the format {data[:40]!r}; this version reads {FORMAT!r}")


def require_same(stored: StoreSpec, wanted: StoreSpec, where: str) -> None:
    """Refuse a store that was made for something else, and say what is different."""
    old, new = (_flat(msgspec.json.decode(canonical_json(spec)), "") for spec in (stored, wanted))
    different = [name for name in old | new if old.get(name) != new.get(name)]
    if different:
        name = different[0]
        raise WrongModel(
            f"{where} was made for another model: {name} is {old.get(name)!r} there and {new.get(name)!r} "
            f"here ({len(different)} differences in all). Open it with its own settings, or create another"
        )


def require_grown(stored: StoreSpec, wanted: StoreSpec, where: str) -> bool:
    """Refuse what differs by more than rows added at the end of tables; whether any were added.

    Rows that no round moved are not stored, so that nothing else of a store changes with their number.
    """
    rows = {table.name: table.rows for table in stored.model.tables}
    tables = tuple(
        msgspec.structs.replace(table, rows=min(table.rows, rows.get(table.name, table.rows)))
        for table in wanted.model.tables
    )
    model = msgspec.structs.replace(wanted.model, tables=tables)
    require_same(stored, msgspec.structs.replace(wanted, model=model), where)
    return stored != wanted


def _flat(value: Any, name: str) -> dict[str, Any]:
    """Nested settings as one line each: model.tables.0.rows."""
    if isinstance(value, list):
        value = dict(enumerate(value))
    if not isinstance(value, dict):
        return {name.lstrip("."): value}
    return {path: leaf for key in value for path, leaf in _flat(value[key], f"{name}.{key}").items()}
