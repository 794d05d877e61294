"""Rounds over hot rows on a device: what a cohort adds up to, as ``PlainHot`` has it (spec hot).

Clients' updates are cut to the clip one by one; rounding comes once, when the sum becomes words, which is
less noise than that of each client by itself: a fortieth of the clip at the most.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sfsl.arrays import Indices
from sfsl.rounds.hot import CUT_SHARE, UPDATE_SHARE, HotParams, HotSet
from sfsl.rounds.params import IndexSpace
from sfsl.submodel import ModelSpec
from sfsl_research.resident.clients import FlatRows
from sfsl_research.resident.compact import CompactClients

_NOISE, _MARKS = 1007, 1008  # their streams of the seed


@dataclass(frozen=True)
class HotFigures:
    """What a cohort came to: the sum of its updates, dense and by table, how many of them were ``cut``, and
    what training came to. ``loss`` is summed over samples."""

    dense: Tensor
    rows: Mapping[str, Tensor]
    cut: Tensor
    samples: Tensor
    loss: Tensor
    diverged: Tensor

    @classmethod
    def none(cls, model: ModelSpec, rows: "HotRows", device: torch.device) -> "HotFigures":
        zero = torch.zeros((), dtype=torch.float64, device=device)
        return cls(
            torch.zeros(model.dense, dtype=torch.float64, device=device),
            {table.name: zero.new_zeros((rows.counts[table.name], table.width)) for table in model.summed},
            *[zero] * 4,
        )

    def __add__(self, other: "HotFigures") -> "HotFigures":
        rows = {name: one + other.rows[name] for name, one in self.rows.items()}
        numbers = (
            getattr(self, name) + getattr(other, name) for name in ("cut", "samples", "loss", "diverged")
        )
        return HotFigures(self.dense + other.dense, rows, *numbers)

    def words(self, params: HotParams) -> NDArray[np.int64]:
        """Return the sum as words, without noise."""
        parts = [self.dense, *(self.rows[table.name].flatten() for table in params.model.summed)]
        values = torch.cat([*parts, (self.cut * CUT_SHARE * params.clip)[None]])
        return (values * (params.levels / params.clip)).round().to(torch.int64).cpu().numpy()


class HotRows:
    """The hot rows of a round on a device. ``begun`` are the tables that clients begin with: hot rows as
    they are downloaded, the others as they were first."""

    def __init__(self, params: HotParams, hot: HotSet, tables: Mapping[str, Tensor]) -> None:
        self.clip, self.counts, self.begun = params.clip, dict(params.rows), dict[str, Tensor]()
        self._places: dict[str, Tensor] = {}
        for table in params.model.summed:
            own = tables[table.name]
            rows = torch.from_numpy(hot.sets(params.model)[table.name].rows.copy()).to(own.device)
            places = torch.full((len(own),), len(rows), dtype=torch.int64, device=own.device)
            places[rows] = torch.arange(len(rows), device=own.device)
            self._places[table.name] = places
            begun = own.clone()
            if params.precision == "float16":
                begun[rows] = own[rows].clamp(-65504, 65504).to(torch.float16).to(torch.float32)
            self.begun[table.name] = begun

    def summed(
        self, dense: Tensor, rows: Mapping[str, Tensor], flat: Mapping[str, FlatRows], fine: Tensor
    ) -> HotFigures:
        """Sum the updates of clients that are ``fine``, each cut to the clip: dense parts and hot rows."""
        dense = torch.where(fine.unsqueeze(1), dense, 0.0)
        square, moves = dense.to(torch.float64).square().sum(1), {}
        for name, places in self._places.items():
            at, client = places[flat[name].row], flat[name].client
            there = fine[client] & (at < self.counts[name])
            own = torch.where(there.unsqueeze(1), rows[name], 0.0).to(torch.float64)
            square = square.index_add(0, client, own.square().sum(1))
            moves[name] = at, client, own
        norm, longest = square.sqrt(), UPDATE_SHARE * self.clip
        scale = longest / norm.clamp_min(longest)
        found = {}
        for name, (at, client, own) in moves.items():
            total = own.new_zeros((self.counts[name] + 1, own.shape[1]))
            found[name] = total.index_add_(0, at, own * scale[client].unsqueeze(1))[:-1]
        zero = torch.zeros((), dtype=torch.float64, device=dense.device)
        cut = (norm > longest).sum().to(torch.float64)
        return HotFigures((scale.to(dense.dtype) @ dense).to(torch.float64), found, cut, zero, zero, zero)


def surveyed_words(
    params: HotParams, clients: CompactClients, chosen: Indices, *, seed: int
) -> NDArray[np.int64]:
    """Return the sum of a survey's marks, without noise: of each client all its rows, or so many of them that
    are drawn by chance."""
    space, parts, owners, start = IndexSpace(params.model), [], [], 0
    for table in (one for one in params.model.tables if one.kind == "shared"):
        listed = clients.rows[table.name]
        counts = (listed.stop - listed.start)[chosen]
        owner = np.repeat(np.arange(len(chosen)), counts)
        at = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        parts.append(start + listed.values[listed.start[chosen][owner] + at].astype(np.int64))
        owners.append(owner)
        start += table.rows
    index, owner = np.concatenate(parts), np.concatenate(owners)
    order = np.lexsort((np.random.default_rng([_MARKS, seed, params.number]).random(len(owner)), owner))
    first = np.searchsorted(owner[order], np.arange(len(chosen)))
    taken = np.arange(len(owner)) - first[owner[order]] < params.marks
    return params.levels * np.bincount(index[order][taken], minlength=space.domain).astype(np.int64)


def noise_words(params: HotParams, clients: int, *, seed: int) -> NDArray[np.int64]:
    """Draw the noise of so many clients together. A Gaussian that is rounded stands for a discrete one: it
    is many words wide, and hides nothing here."""
    if not params.deviation:
        return np.zeros(params.length, np.int64)
    rng = np.random.default_rng([_NOISE, seed, params.number])
    spread = params.deviation * math.sqrt(clients)
    return np.rint(rng.standard_normal(params.length) * spread).astype(np.int64)
