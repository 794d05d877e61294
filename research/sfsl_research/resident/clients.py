"""A fleet's samples on a device, and cohorts gathered from them.

Everything about a cohort is flat: all samples, and all rows of a table, of one client after the other. How
many there are is known here without asking the device, so that nothing has to wait for it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sfsl.arrays import Indices
from sfsl.data.samples import NO_ROW
from sfsl_research.resident.compact import CompactClients, Ragged


@dataclass(frozen=True)
class FlatRows:
    """Rows of one table, each with its ``place`` among its client's; each client's begin at ``start``."""

    row: Tensor
    client: Tensor
    place: Tensor
    start: Tensor


@dataclass(frozen=True)
class Cohort:
    """The ``chosen`` clients, by their numbers, and these as ``numbers`` on the device; ``samples`` of each.

    Each ``sample`` is there by its number in the fleet, one after the other, and the place of its ``client``
    here; ``start`` is where each client's begin.
    """

    chosen: Indices
    numbers: Tensor
    samples: Indices
    sample: Tensor
    client: Tensor
    start: Tensor
    rows: Mapping[str, FlatRows]

    def __len__(self) -> int:
        return len(self.chosen)


@dataclass(frozen=True)
class Kept:
    """What can be trained with the rows asked for: which samples, and all columns."""

    keep: Tensor
    columns: Mapping[str, Tensor]


@dataclass(frozen=True)
class _Stretches:
    values: Tensor
    start: Tensor
    stop: Tensor


class ResidentClients:
    """A fleet whose samples lie on a device."""

    def __init__(self, clients: CompactClients, device: torch.device) -> None:
        self.host, self.device, self.holds = clients, device, clients.tables
        self._offsets = self.there(clients.offsets)
        self._singles = {name: self.there(one) for name, one in clients.singles.items()}
        self._sequences = {name: self._stretches(one) for name, one in clients.sequences.items()}
        self._rows = {name: self._stretches(one) for name, one in clients.rows.items()}
        self._derived = {name: self.there(one) for name, one in clients.derived.items()}
        self._places = torch.arange(clients.longest, device=device)

    @property
    def widths(self) -> dict[str, int | None]:
        """The length of each column's sequences; None where it has none."""
        host = self.host
        known: dict[str, int | None] = dict.fromkeys(host.singles)
        known |= dict.fromkeys(host.sequences, host.longest)
        return known | {name: known[leader] for name, leader in host.follows.items()}

    @property
    def kinds(self) -> dict[str, Tensor]:
        """Each column that holds no rows, without any values: its type."""
        return {name: one[:0] for name, one in self._singles.items() if name not in self.holds}

    def largest(self, table: str) -> int:
        """Return the most rows that any client has."""
        rows = self.host.rows[table]
        return int((rows.stop - rows.start).max(initial=0))

    def cohort(self, chosen: Indices) -> Cohort:
        """Gather these clients, the one with the most samples first."""
        chosen = chosen[np.argsort(-self.host.samples[chosen], kind="stable")]
        numbers = self.there(chosen)
        samples = self.host.samples[chosen]
        sample, client, start = self._flat(self._offsets[numbers], samples)
        rows = {}
        for name, listed in self.host.rows.items():
            counts = (listed.stop - listed.start)[chosen]
            at, owner, first = self._flat(self._rows[name].start[numbers], counts)
            place = torch.arange(len(at), device=self.device) - first[owner]
            rows[name] = FlatRows(self._rows[name].values[at].to(torch.int64), owner, place, first)
        return Cohort(chosen, numbers, samples, sample, client, start, rows)

    def keep(self, cohort: Cohort, asked: Mapping[str, Tensor]) -> Kept:
        """Keep samples by the rules of ``Samples.keep``: one whose single row is missing goes; a sequence
        keeps the rows that are there, and one with nothing left takes its sample with it."""
        columns: dict[str, Tensor] = {}
        keep = torch.ones(len(cohort.sample), dtype=torch.bool, device=self.device)
        for name, values in self._singles.items():
            columns[name] = values[cohort.sample]
            table = self.holds.get(name, "")
            if table in asked:
                columns[name] = columns[name].to(torch.int64)
                keep &= asked[table][cohort.rows[table].start[cohort.client] + columns[name]]
        for name, stretches in self._sequences.items():
            columns[name], present = self._sequence(cohort, self.holds[name], stretches, asked)
            keep &= present
        return Kept(keep, columns | self._following(columns, cohort.numbers[cohort.client]))

    def everywhere(self, sample: Tensor) -> dict[str, Tensor]:
        """Return any samples of any clients, with the model's row numbers in their columns."""
        client = torch.searchsorted(self._offsets, sample, right=True) - 1
        columns = {name: values[sample] for name, values in self._singles.items()}
        for name, stretches in self._sequences.items():
            values, there = self._listed(stretches, sample)
            columns[name] = torch.where(there, values, NO_ROW)
        columns |= self._following(columns, client)
        for name, table in self.holds.items():
            rows = self._rows[table]
            place = columns[name].to(torch.int64)
            first = rows.start[client].reshape(-1, *[1] * (place.ndim - 1))
            found = rows.values[torch.where(place >= 0, first + place, 0)].to(torch.int64)
            columns[name] = torch.where(place >= 0, found, NO_ROW)
        return columns

    def _sequence(
        self, cohort: Cohort, table: str, stretches: _Stretches, asked: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        listed, there = self._listed(stretches, cohort.sample)
        values = listed.to(torch.int64)
        if table in asked:
            first = cohort.rows[table].start[cohort.client].unsqueeze(1)
            there &= asked[table][torch.where(there, first + values, 0)]
        # What is there moves to the front, in its order; the rest lands beyond the end, which is cut off.
        end = values.shape[1]
        to = torch.where(there, there.cumsum(1) - 1, end)
        moved = torch.full((len(values), end + 1), NO_ROW, device=self.device)
        return moved.scatter_(1, to, values)[:, :end], there.any(1)

    def _listed(self, stretches: _Stretches, sample: Tensor) -> tuple[Tensor, Tensor]:
        """Return what the stretches of these samples hold, side by side, and which of it is there."""
        at = stretches.start[sample].unsqueeze(1) + self._places
        there = at < stretches.stop[sample].unsqueeze(1)
        return stretches.values[torch.where(there, at, 0)], there

    def _following(self, columns: Mapping[str, Tensor], client: Tensor) -> dict[str, Tensor]:
        """Return the columns of derived places that follow from others; ``client`` is each sample's own."""
        found = {}
        for name, leader in self.host.follows.items():
            source = columns[leader].to(torch.int64)
            first = self._rows[self.holds[leader]].start[client].reshape(-1, *[1] * (source.ndim - 1))
            place = self._derived[self.holds[name]][torch.where(source >= 0, first + source, 0)]
            found[name] = torch.where(source >= 0, place.to(torch.int64), NO_ROW)
        return found

    def _flat(self, start: Tensor, counts: Indices) -> tuple[Tensor, Tensor, Tensor]:
        """Lay stretches one behind another: each place, the stretch it is of, and where each begins here."""
        total = int(counts.sum())
        owner = torch.repeat_interleave(
            torch.arange(len(counts), device=self.device), self.there(counts), output_size=total
        )
        first = self.there(np.cumsum(counts) - counts)
        return (start - first)[owner] + torch.arange(total, device=self.device), owner, first

    def _stretches(self, ragged: Ragged) -> _Stretches:
        return _Stretches(*(self.there(one) for one in (ragged.values, ragged.start, ragged.stop)))

    def there(self, array: NDArray[Any]) -> Tensor:
        """Put an array on the device, without waiting for it."""
        own = torch.from_numpy(np.ascontiguousarray(array))
        if self.device.type == "cuda":
            own = own.pin_memory()
        return own.to(self.device, non_blocking=True)
