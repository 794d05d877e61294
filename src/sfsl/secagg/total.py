"""The running total of one sum, and which rows each participant adds to it (spec 5)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sfsl.arrays import Bits, Positions
from sfsl.crypto.ring import Ring, Words, ring_named
from sfsl.secagg.masking import Selection, restrict, views
from sfsl.secagg.params import Layout, SumParams


@dataclass(frozen=True)
class Opened:
    """One opened sum: everyone in ``survivors`` uploaded and is in it.

    ``contributors`` counts, per table and row, the survivors whose values are in the row's sum.
    """

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

    def contributors(self, survivors: Sequence[int]) -> tuple[NDArray[np.int64], ...]:
        counts = tuple(np.zeros(table.rows, np.int64) for table in self.layout.tables)
        for position in survivors:
            for count, rows in zip(counts, self.rows[position], strict=True):
                count[rows] += 1
        return counts
