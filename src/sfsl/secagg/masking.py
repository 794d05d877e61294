"""The arithmetic of a sum: masks over words and rows, who asked for what, what is rebuilt and what opens.

A wrong share may be its holder's doing or its dealer's: nobody but the two saw it. But if no more clients
lie than ``correctable`` says, an honest dealer's secret can always be corrected, so whoever's cannot has
dealt it so. Holders are never accused: that would let a dealer choose whom.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfsl.arrays import Bits, Positions, ascends, whole_numbers
from sfsl.codec import pack_bits, packed_size, read_bits, unpack_bits
from sfsl.crypto.reed_solomon import correctable, decode
from sfsl.crypto.ring import CHUNK_BYTES, MaskStream, Ring, Words, ring_named
from sfsl.crypto.secret import Interpolation, Secret, as_secret
from sfsl.errors import InputError, InvalidMessage, KeyMismatch
from sfsl.secagg.messages import Layout, SumParams, TableShape, point

# Per table: the rows a stream covers, ascending, or None for all of them.
Selection = Sequence[Positions | None]
_HEAD = struct.Struct("<BQ")  # which bits are listed, and how many
T = TypeVar("T")


def restrict(layout: Layout, rows: Sequence[Positions]) -> Layout:
    """The layout of what one client uploads: the dense part and its own rows."""
    if not layout.tables and not rows:
        return layout
    tables = zip(layout.tables, rows, strict=True)
    return Layout(
        dense=layout.dense,
        tables=tuple(TableShape(rows=len(own), width=table.width) for table, own in tables),
    )


def views(vector: Words, layout: Layout) -> tuple[Words, list[Words]]:
    """A flat vector as its dense part and its tables, without copying."""
    tables = []
    start = layout.dense
    for table in layout.tables:
        end = start + table.rows * table.width
        tables.append(vector[start:end].reshape(table.rows, table.width))
        start = end
    return vector[: layout.dense], tables


class Masker:
    """Adds and removes streams on one vector in place, through one reused cache-sized buffer."""

    def __init__(self, ring: Ring, vector: Words, layout: Layout) -> None:
        self._ring = ring
        self.dense, self.tables = views(vector, layout)
        widest = max((table.width for table in layout.tables), default=0)
        self._buffer = ring.zeros(max(CHUNK_BYTES // ring.word_bytes, widest))

    def add(self, key: Secret, selection: Selection = ()) -> None:
        self._apply(key, selection, self._ring.add)

    def subtract(self, key: Secret, selection: Selection = ()) -> None:
        self._apply(key, selection, self._ring.sub)

    def _apply(self, key: Secret, selection: Selection, combine: Callable[[Words, Words], None]) -> None:
        """A whole part is masked where it is, some rows of a table in a copy that is put back."""
        stream = MaskStream(key, self._ring)
        for part, rows in [(self.dense, None), *zip(self.tables, selection, strict=True)]:
            if rows is None or len(rows) == len(part):
                part, rows = part.reshape(-1), None
            count, width = (len(part), 1) if rows is None else (len(rows), part.shape[1])
            step = len(self._buffer) // width
            for start in range(0, count, step):
                some = slice(start, start + step) if rows is None else rows[start : start + step]
                piece = part[some]
                masks = self._buffer[: piece.size]
                stream.fill(masks)
                combine(piece, masks.reshape(piece.shape))
                if rows is not None:
                    part[some] = piece


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
        bitmaps.append(np.packbits(bits).tobytes())
    return tuple(bitmaps)


def parse_request(layout: Layout, bitmaps: Sequence[bytes]) -> tuple[Bits, ...]:
    if len(bitmaps) != len(layout.tables):
        raise InvalidMessage(f"a request over {len(bitmaps)} tables where there are {len(layout.tables)}")
    return tuple(read_bits(bitmap, table.rows) for bitmap, table in zip(bitmaps, layout.tables, strict=True))


def pack_requesters(tables: Sequence[Bits], participants: int) -> list[bytes]:
    """What each participant is told: for each of its rows, which of the others asked for it. The bits that
    are rarer are listed, so that few bytes say that hardly anyone or nearly everyone did."""
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
            taken = (asked.take(some, axis=1) for asked, some in zip(tables, rows, strict=True))
            bits = np.concatenate([np.delete(matrix, own, axis=0).ravel() for matrix in taken])
            packed = pack_bits(~bits if zeros_listed else bits)
        told.append(_HEAD.pack(zeros_listed, listed) + packed if size else b"")
    return told


def requesters_size(ones: int, size: int) -> int:
    """Bytes that a participant is told, for so many ones among so many bits."""
    return _HEAD.size + packed_size(min(ones, size - ones), size) if size else 0


def parse_requesters(data: bytes, others: int, rows: Sequence[Positions]) -> tuple[Bits, ...]:
    """Read what ``pack_requesters`` wrote: per table a matrix, other participants x own rows."""
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


@dataclass(frozen=True)
class Opened:
    """One opened sum: everyone in ``survivors`` uploaded and is in it. ``contributors`` counts, per table and
    row, the survivors whose values are in the row's sum."""

    dense: Words
    tables: tuple[Words, ...]
    contributors: tuple[NDArray[np.int64], ...]
    survivors: tuple[str, ...]


class RunningTotal:
    """Adds up masked vectors as they arrive; the masks come off at the end."""

    def __init__(
        self, params: SumParams, layout: Layout, participants: Sequence[int], context: bytes
    ) -> None:
        self.params = params
        self.layout = layout
        self.participants = tuple(participants)
        self.context = context
        self.ring: Ring = ring_named(params.ring)
        self.total = self.ring.zeros(layout.words)
        self._lines = {position: line for line, position in enumerate(self.participants)}
        self.asked: tuple[Bits, ...] = ()
        self.rows: dict[int, tuple[Positions, ...]] = dict.fromkeys(participants, ())

    def set_requests(self, requests: Mapping[int, tuple[Bits, ...]]) -> None:
        """Fix who uploads which rows: those it asked for that have enough requesters."""
        self.asked = tuple(
            np.stack([requests[position][table] for position in self.participants])
            for table in range(len(self.layout.tables))
        )
        enough = [asked.sum(axis=0) >= self.params.min_contributors for asked in self.asked]
        self.rows = {
            position: tuple(
                np.flatnonzero(asked[line] & kept) for asked, kept in zip(self.asked, enough, strict=True)
            )
            for line, position in enumerate(self.participants)
        }

    def parse(self, position: int, words: bytes) -> Words:
        return self.ring.from_bytes(words, restrict(self.layout, self.rows[position]).words)

    def add(self, position: int, vector: Words) -> None:
        rows = self.rows[position]
        own_dense, own_tables = views(vector, restrict(self.layout, rows))
        dense, tables = views(self.total, self.layout)
        self.ring.add(dense, own_dense)
        for table, own, some in zip(tables, own_tables, rows, strict=True):
            gathered = table[some]
            self.ring.add(gathered, own)
            table[some] = gathered

    def shared_rows(self, one: int, other: int) -> Selection:
        line = self._lines[other]
        return [mine[asked[line, mine]] for mine, asked in zip(self.rows[one], self.asked, strict=True)]

    def requesters(self) -> dict[int, bytes]:
        """What each participant is told of who else asked for its rows."""
        return dict(zip(self.participants, pack_requesters(self.asked, len(self.participants)), strict=True))

    def opened(self, survivors: Sequence[int], names: Sequence[str]) -> Opened:
        """The sum, when all masks are off."""
        counts = tuple(np.zeros(table.rows, np.int64) for table in self.layout.tables)
        for position in survivors:
            for count, rows in zip(counts, self.rows[position], strict=True):
                count[rows] += 1
        dense, tables = views(self.total, self.layout)
        return Opened(dense, tuple(tables), counts, tuple(names))


class Rebuilding:
    """The secrets of one opening. ``doubted`` are holders whose shares were corrected; they are asked last
    from then on, so that whoever lies about all secrets costs one decoding."""

    def __init__(self, threshold: int) -> None:
        self.doubted: set[int] = set()
        self._threshold = threshold
        self._weights: dict[tuple[int, ...], Interpolation] = {}

    def secret(self, dealer: str, shares: Mapping[int, int], checked: Callable[[Secret], T]) -> T:
        """What ``checked`` makes of it, which raises ``KeyMismatch``. ``shares``: by holder, and enough."""
        chosen = sorted(shares, key=lambda holder: (holder in self.doubted, holder))[: self._threshold]
        points = tuple(map(point, chosen))
        if points not in self._weights:
            self._weights[points] = Interpolation(points)
        try:
            return checked(self._weights[points].secret([shares[holder] for holder in chosen]))
        except KeyMismatch as error:
            if not correctable(len(shares), self._threshold):
                raise KeyMismatch(f"{error}; with no shares to spare, who lied cannot be told") from None
        holders = {point(holder): holder for holder in shares}
        found = decode(list(holders), list(shares.values()), self._threshold)
        try:
            if found is None:
                raise KeyMismatch("the shares do not belong to one secret")
            secret = checked(as_secret(found[0]))
        except KeyMismatch as error:
            raise KeyMismatch(str(error), (dealer,)) from None
        self.doubted.update(holders[one] for one in found[1])
        return secret
