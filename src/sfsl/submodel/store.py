"""What a row store holds and promises; its first values and its format on disk.

Nothing but integer arithmetic and one float32 product, so that every machine gets the same bits.

A store holds only the rows that some round moved; every other row is what it began with. It belongs to
one thread of one process.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol
from zlib import crc32

import msgspec
import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import ECB
from msgspec import Meta

from sfsl.arrays import Indices, Values
from sfsl.codec import Checked
from sfsl.crypto.secret import digest
from sfsl.durable import with_checksum, without_checksum
from sfsl.errors import InputError, NotFinite, StoreCorrupt, StoreError, WrongModel
from sfsl.submodel.tables import ModelSpec, RowSet, Table, canonical_json, row_numbers

_WORDS_PER_BLOCK = 4
_CHUNK_ROWS = 1 << 14  # bounds the memory beside the result, whatever is asked for


def initial_rows(seed: bytes, table: Table, rows: Indices) -> Values:
    """Return the first values of rows, uniform in ±table.initial, [rows, width]."""
    values = np.zeros((len(rows), table.width), np.float32)
    if table.initial == 0:
        return values
    key = digest("initial rows", seed, table.name.encode())
    scale = np.float32(table.initial / 2**23)
    for start in range(0, len(rows), _CHUNK_ROWS):
        some = rows[start : start + _CHUNK_ROWS]
        # 24 bits with a sign are what a float32 holds exactly.
        values[start : start + len(some)] = (_words(key, some, table.width) >> 8) * scale
    return values


def _words(key: bytes, rows: Indices, width: int) -> np.ndarray[tuple[int, int], np.dtype[np.int32]]:
    """Draw in counter mode; row number and block number are the counter: each row has its own stream."""
    blocks = np.empty((len(rows), -(-width // _WORDS_PER_BLOCK), 2), ">u8")
    blocks[:, :, 0] = rows[:, None]
    blocks[:, :, 1] = np.arange(blocks.shape[1])
    encryptor = Cipher(AES256(key), ECB()).encryptor()  # noqa: S305 -- a PRF, not encryption
    words = np.frombuffer(encryptor.update(blocks.tobytes()), "<i4")
    return words.reshape(len(rows), -1)[:, :width]


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
        """Return the table, if it has all these rows."""
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
    """What every store does; those in memory and in LMDB do the same, number for number."""

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
    """Return a new store's dense part, which comes from the model, with state at zero."""
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
        table, count = spec.rows_in(name, block.rows), len(block.rows)
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


@contextmanager
def _readable(what: str) -> Iterator[None]:
    try:
        yield
    except (msgspec.MsgspecError, ValueError) as error:
        raise StoreCorrupt(f"{what} cannot be read: {error}") from None


def encode_head(head: Head) -> bytes:
    return with_checksum(msgspec.msgpack.encode(head))


def decode_head(data: bytes, where: str) -> Head:
    what = f"the head of {where}"
    with _readable(what):
        return msgspec.msgpack.decode(_sound(data, what), type=Head)


def encode_spec(spec: StoreSpec) -> bytes:
    return with_checksum(canonical_json(spec))


def decode_spec(data: bytes, where: str) -> StoreSpec:
    what = f"the description of {where}"
    with _readable(what):
        return msgspec.json.decode(_sound(data, what), type=StoreSpec)


def encode_dense(dense: DenseBlock) -> bytes:
    return with_checksum(dense.values.astype("<f4").tobytes() + dense.state.astype("<f4").tobytes())


def decode_dense(data: bytes, spec: StoreSpec, where: str) -> DenseBlock:
    numbers = np.frombuffer(_sound(data, f"the dense part of {where}"), "<f4").astype(np.float32)
    size = spec.model.dense
    if len(numbers) != size * (1 + spec.dense_slots):
        raise StoreCorrupt(f"the dense part of {where} has {len(numbers)} numbers; it has another size")
    return DenseBlock(numbers[:size].copy(), numbers[size:].reshape(spec.dense_slots, size))


def row_keys(rows: Indices) -> list[bytes]:
    """Return rows as keys: big-endian, so that the order of keys is the order of rows."""
    keys: list[bytes] = rows.astype(">u8").view("V8").tolist()
    return keys


def rows_of_keys(keys: list[bytes]) -> RowSet:
    return RowSet(np.frombuffer(b"".join(keys), ">u8").astype(np.int64))


def encode_rows(keys: list[bytes], cells: Values) -> list[bytes]:
    """Make a record of each row of ``cells`` [n, numbers]: the numbers, and a CRC-32 of key and numbers."""
    records = np.empty((len(keys), cells.shape[1] + 1), "<u4")
    records[:, :-1] = cells.astype("<f4").view("<u4")
    checks = map(crc32, _lines(records[:, :-1]), map(crc32, keys))
    records[:, -1] = np.fromiter(checks, np.uint32, len(keys))
    return _lines(records)


def decode_rows(keys: list[bytes], records: list[bytes], numbers: int, where: str) -> Values:
    """Return the cells of these rows, each checked against its key."""
    checks = np.fromiter(map(crc32, records, map(crc32, keys)), np.uint32, len(keys))
    joined = b"".join(records)
    damaged = int((checks != _RESIDUE).sum())
    if damaged or len(joined) != len(keys) * 4 * (numbers + 1):
        raise StoreCorrupt(
            f"{damaged} rows of {where} are damaged: their checksums do not fit; restore a backup"
        )
    return np.frombuffer(joined, "<f4").reshape(len(keys), numbers + 1)[:, :-1].astype(np.float32)


def _lines(matrix: np.ndarray[Any, np.dtype[Any]]) -> list[bytes]:
    """Return each line of a matrix as bytes, without a loop."""
    packed = np.ascontiguousarray(matrix)
    lines: list[bytes] = packed.view(f"V{packed.itemsize * packed.shape[1]}")[:, 0].tolist()
    return lines


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
    """Refuse what differs by more than rows added at the end of tables; say whether any were added.

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
    """Lay nested settings out as one line each: model.tables.0.rows."""
    if isinstance(value, list):
        value = dict(enumerate(value))
    if not isinstance(value, dict):
        return {name.lstrip("."): value}
    return {path: leaf for key in value for path, leaf in _flat(value[key], f"{name}.{key}").items()}
