"""Misaligned rows: who asked for which row (spec 5.2)."""

import struct
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from sfsl.arrays import Bits, Positions, ascends, whole_numbers
from sfsl.errors import InputError, InvalidMessage
from sfsl.packing import pack_bits, packed_size, unpack_bits
from sfsl.secagg.params import Layout

_HEAD = struct.Struct("<BQ")  # which bits are listed, and how many


def own_rows(layout: Layout, rows: Sequence[ArrayLike]) -> tuple[Positions, ...]:
    """A client's own request, checked: per table ascending row numbers without repeats."""
    if len(rows) != len(layout.tables):
        raise InputError(f"rows of {len(rows)} tables were asked for, the sum has {len(layout.tables)}")
    checked = []
    for number, (some, table) in enumerate(zip(rows, layout.tables, strict=True)):
        array = whole_numbers(some, f"table {number}: rows asked for", table.rows, flat=True)
        if not ascends(array):
            raise InputError(f"table {number}: rows asked for are ascending, without repeats")
        checked.append(array.astype(np.intp, copy=False))
    return tuple(checked)


def request_bitmaps(layout: Layout, rows: Sequence[Positions]) -> tuple[bytes, ...]:
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


def pack_requesters(tables: Sequence[Bits], participants: int) -> list[bytes]:
    """What each participant is told: for each of its rows, which of the others asked for it.

    The bits that are rarer are listed, so that few bytes say that hardly anyone or nearly everyone did.
    """
    counts = [asked.sum(axis=0) for asked in tables]
    told = []
    for own in range(participants):
        rows = [np.flatnonzero(asked[own]) for asked in tables]
        size = (participants - 1) * sum(map(len, rows))
        ones = sum(int((count[some] - 1).sum()) for count, some in zip(counts, rows, strict=True))
        zeros_listed = 2 * ones > size
        listed = size - ones if zeros_listed else ones
        packed = b""
        if listed:
            bits = np.concatenate(
                [
                    np.delete(asked.take(some, axis=1), own, axis=0).ravel()
                    for asked, some in zip(tables, rows, strict=True)
                ]
            )
            packed = pack_bits(~bits if zeros_listed else bits)
        told.append(_HEAD.pack(zeros_listed, listed) + packed if size else b"")
    return told


def requesters_size(ones: int, size: int) -> int:
    """Bytes that a participant is told, for so many ones among so many bits."""
    return _HEAD.size + packed_size(min(ones, size - ones), size) if size else 0


def parse_requesters(data: bytes, others: int, rows: Sequence[Positions]) -> tuple[Bits, ...]:
    """Per table a matrix, other participants x own rows."""
    sizes = [others * len(some) for some in rows]
    bits = _parse_bits(data, sum(sizes))
    parts = np.split(bits, np.cumsum(sizes)[:-1]) if sizes else []
    return tuple(part.reshape(others, len(some)) for part, some in zip(parts, rows, strict=True))


def _parse_bits(data: bytes, size: int) -> Bits:
    if size == 0:
        if data:
            raise InvalidMessage("requesters where there is no row or no one else")
        return np.zeros(0, np.bool_)
    if len(data) < _HEAD.size:
        raise InvalidMessage(f"requesters of {len(data)} bytes")
    zeros_listed, listed = _HEAD.unpack_from(data)
    # The rarer ones, and of as many the ones: so there is one way to say it.
    if zeros_listed > 1 or 2 * listed > size - zeros_listed:
        raise InvalidMessage(f"requesters as {listed} of {size} bits listed as kind {zeros_listed}")
    bits = unpack_bits(data[_HEAD.size :], listed, size)
    return ~bits if zeros_listed else bits


def _pack(bits: Bits) -> bytes:
    return np.packbits(bits).tobytes()


def _unpack(data: bytes, count: int) -> Bits:
    if len(data) != (count + 7) // 8:
        raise InvalidMessage(f"a bitmap of {len(data)} bytes for {count} bits")
    bits = np.unpackbits(np.frombuffer(data, np.uint8)).astype(np.bool_)
    if bits[count:].any():
        raise InvalidMessage("a bitmap with bits set beyond its end")
    return bits[:count]
