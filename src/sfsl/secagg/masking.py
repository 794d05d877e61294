"""Mask streams onto vectors: the hot path (spec 5)."""

from collections.abc import Callable, Sequence

from sfsl.arrays import Positions
from sfsl.crypto.prg import CHUNK_BYTES, MaskStream
from sfsl.crypto.ring import Ring, Words
from sfsl.crypto.secret import Secret
from sfsl.secagg.params import Layout, TableShape

# Per table: the rows a stream covers, ascending, or None for all of them.
Selection = Sequence[Positions | None]


def restrict(layout: Layout, rows: Sequence[Positions]) -> Layout:
    """The layout of what one client uploads: the dense part and its own rows."""
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
        self._dense, self._tables = views(vector, layout)
        widest = max((table.width for table in layout.tables), default=0)
        self._buffer = ring.zeros(max(CHUNK_BYTES // ring.word_bytes, widest))

    def add(self, key: Secret, selection: Selection = ()) -> None:
        self._apply(MaskStream(key, self._ring), selection, self._ring.add)

    def subtract(self, key: Secret, selection: Selection = ()) -> None:
        self._apply(MaskStream(key, self._ring), selection, self._ring.sub)

    def _apply(
        self, stream: MaskStream, selection: Selection, combine: Callable[[Words, Words], None]
    ) -> None:
        self._whole(stream, self._dense, combine)
        for table, rows in zip(self._tables, selection, strict=True):
            if rows is None or len(rows) == len(table):
                self._whole(stream, table.reshape(-1), combine)
            else:
                self._some(stream, table, rows, combine)

    def _whole(self, stream: MaskStream, part: Words, combine: Callable[[Words, Words], None]) -> None:
        step = len(self._buffer)
        for start in range(0, len(part), step):
            piece = part[start : start + step]
            masks = self._buffer[: len(piece)]
            stream.fill(masks)
            combine(piece, masks)

    def _some(
        self, stream: MaskStream, table: Words, rows: Positions, combine: Callable[[Words, Words], None]
    ) -> None:
        width = table.shape[1]
        step = len(self._buffer) // width
        for start in range(0, len(rows), step):
            some = rows[start : start + step]
            masks = self._buffer[: len(some) * width]
            stream.fill(masks)
            gathered = table[some]
            combine(gathered, masks.reshape(gathered.shape))
            table[some] = gathered
