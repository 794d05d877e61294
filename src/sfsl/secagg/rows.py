"""Misaligned rows: who asked for which row, as bits (spec 5.2)."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfsl.errors import InputError, InvalidMessage
from sfsl.secagg.masking import Rows
from sfsl.secagg.params import Layout

Bits = NDArray[np.bool_]


def own_rows(layout: Layout, rows: Sequence[ArrayLike]) -> tuple[Rows, ...]:
    """A client's own request, checked: per table ascending row numbers without repeats."""
    if len(rows) != len(layout.tables):
        raise InputError(f"rows of {len(rows)} tables were asked for, the sum has {len(layout.tables)}")
    checked = []
    for number, (some, table) in enumerate(zip(rows, layout.tables, strict=True)):
        array = np.asarray(some)
        if array.ndim != 1 or (array.size and array.dtype.kind not in "ui"):
            raise InputError(f"rows of table {number}: a list of whole numbers is needed")
        if array.size and (np.any(array[1:] <= array[:-1]) or array[0] < 0 or array[-1] >= table.rows):
            raise InputError(f"rows of table {number}: ascending, without repeats, in 0..{table.rows - 1}")
        checked.append(array.astype(np.intp))
    return tuple(checked)


def request_bitmaps(layout: Layout, rows: Sequence[Rows]) -> tuple[bytes, ...]:
    bitmaps = []
    for table, some in zip(layout.tables, rows, strict=True):
        bits = np.zeros(table.rows, np.bool_)
        bits[some] = True
        bitmaps.append(_pack(bits))
    return tuple(bitmaps)


def parse_request(layout: Layout, bitmaps: Sequence[bytes]) -> tuple[Bits, ...]:
    if len(bitmaps) != len(layout.tables):
        raise InvalidMessage(f"a request over {len(bitmaps)} tables where there are {len(layout.tables)}")
    return tuple(_unpack(bitmap, table.rows) for bitmap, table in zip(bitmaps, layout.tables, strict=True))


def requester_bits(tables: Sequence[Bits], own: int) -> bytes:
    """What the participant in line ``own`` is told: for each of its rows, which others asked for it."""
    parts = [np.delete(asked, own, axis=0)[:, asked[own]].ravel() for asked in tables]
    return _pack(np.concatenate([*parts, np.zeros(0, np.bool_)]))


def parse_requesters(data: bytes, others: int, rows: Sequence[Rows]) -> tuple[Bits, ...]:
    """Per table a matrix, other participants x own rows."""
    sizes = [others * len(some) for some in rows]
    bits = _unpack(data, sum(sizes))
    parts = np.split(bits, np.cumsum(sizes)[:-1]) if sizes else []
    return tuple(part.reshape(others, len(some)) for part, some in zip(parts, rows, strict=True))


def _pack(bits: Bits) -> bytes:
    return np.packbits(bits).tobytes()


def _unpack(data: bytes, count: int) -> Bits:
    if len(data) != (count + 7) // 8:
        raise InvalidMessage(f"a bitmap of {len(data)} bytes for {count} bits")
    bits = np.unpackbits(np.frombuffer(data, np.uint8)).astype(np.bool_)
    if bits[count:].any():
        raise InvalidMessage("a bitmap with bits set beyond its end")
    return bits[:count]
