"""One index space for the union: the shared tables one after the other (spec round 2)."""

from collections.abc import Mapping

import numpy as np

from sfsl.arrays import LARGEST_DOMAIN, Indices
from sfsl.errors import ParameterError
from sfsl.submodel import ModelSpec, RowSet


class IndexSpace:
    """Takes rows of the shared tables to indices of the union and back."""

    def __init__(self, model: ModelSpec) -> None:
        self._starts: dict[str, tuple[int, int]] = {}
        end = 0
        for table in model.tables:
            if table.kind == "shared":
                self._starts[table.name] = (end, end + table.rows)
                end += table.rows
        if not 0 < end <= LARGEST_DOMAIN:
            raise ParameterError(f"the shared tables have {end} rows in all; 1 to 2^63 are possible")
        self.domain = end

    def indices(self, rows: Mapping[str, Indices]) -> Indices:
        parts = [rows[name] + start for name, (start, _) in self._starts.items()]
        return np.concatenate([np.zeros(0, np.int64), *parts])

    def rows(self, indices: Indices) -> dict[str, RowSet]:
        """Ascending indices by table."""
        split = {}
        for name, (start, end) in self._starts.items():
            first, last = np.searchsorted(indices, [start, end])
            split[name] = RowSet(indices[first:last] - start)
        return split
