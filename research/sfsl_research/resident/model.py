"""A model whole on a device, and how sums of updates move it: ``sfsl.submodel`` in torch."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sfsl.arrays import Indices
from sfsl.submodel import Averaging, Commit, Quantization, RowSet, RowStore, ServerStep, Table, UpdateParams
from sfsl.submodel.update import LOUDEST
from sfsl.training.task import Parameters, Task

_LEAST = 1e-30  # as ``ServerStep`` has it


@dataclass(frozen=True)
class Moved:
    """Sums over clients: [rows, width] and [rows], whole numbers."""

    values: Tensor
    weights: Tensor


class ResidentModel:
    """A model on a device. Its tables have one row more, which fillers point to and nobody reads.

    ``touched`` says which rows any round moved since the last ``changes``.
    """

    def __init__(self, task: Task, store: RowStore, device: torch.device) -> None:
        self.task, self.device = task, device
        self.tables: dict[str, Tensor] = {}
        self.states: dict[str, Tensor] = {}
        self.touched: dict[str, Tensor] = {}
        for table in task.tables:
            block = store.read_rows(table.name, RowSet(np.arange(table.rows)))
            self.tables[table.name] = self._padded(block.values)
            self.states[table.name] = self._padded(block.state)
            self.touched[table.name] = torch.zeros(table.rows + 1, dtype=torch.bool, device=device)
        self.maps = {table.name: self._map(table) for table in task.tables if table.source}
        dense = store.read_dense()
        self.dense = torch.from_numpy(dense.values).to(device)
        self.dense_state = torch.from_numpy(dense.state).to(device)

    def dense_parameters(self) -> Parameters:
        """Return the dense part by name: views of it."""
        return self.task.dense_parts(self.dense)

    def state(self) -> dict[str, NDArray[np.float32]]:
        """Return everything about the model, as arrays of this machine."""
        return {name: one.cpu().numpy() for name, one in self._parts().items()}

    def restore(self, arrays: Mapping[str, NDArray[np.float32]]) -> None:
        """Take up what ``state`` gave, in place."""
        for name, one in self._parts().items():
            if arrays[name].shape != tuple(one.shape):
                raise ValueError(f"{name} has shape {arrays[name].shape}, not {tuple(one.shape)}")
            one.copy_(torch.from_numpy(arrays[name]))

    def move_rows(self, table: str, rows: Tensor, moves: Tensor, moved: Tensor, update: UpdateParams) -> None:
        """Move ``rows``, each given once; those of which ``moved`` is false stay as they are."""
        own, state, step = self.tables[table], self.states[table], update.row_step
        values, new = stepped(step, own[rows], state[rows], moves)
        if step.kind == "heat":
            values = (own[rows] + limited(values - own[rows], update.averaging)).to(torch.float32)
        keep = moved.unsqueeze(1)
        own[rows] = torch.where(keep, values, own[rows])
        if step.slots:
            state[rows] = torch.where(keep.unsqueeze(2), new, state[rows])
        self.touched[table][rows] |= moved

    def move_dense(self, moves: Tensor, moved: Tensor, step: ServerStep) -> None:
        values, state = stepped(step, self.dense[None], self.dense_state[None], moves[None])
        self.dense.copy_(torch.where(moved, values[0], self.dense))
        self.dense_state.copy_(torch.where(moved, state[0], self.dense_state))

    def take(self, commit: Commit) -> None:
        """Take up what a server made of the model: rows that moved, and the dense part."""
        for name, block in commit.tables.items():
            rows = torch.from_numpy(block.rows.rows.copy()).to(self.device)
            self.tables[name][rows] = torch.from_numpy(block.values).to(self.device)
            self.states[name][rows] = torch.from_numpy(block.state).to(self.device)
        if commit.dense is not None:
            self.dense.copy_(torch.from_numpy(commit.dense.values))
            self.dense_state.copy_(torch.from_numpy(commit.dense.state))

    def changes(self) -> dict[str, tuple[Indices, NDArray[np.float32], NDArray[np.float32]]]:
        """Return, by table, rows that moved since this was last asked, ascending, with values and state."""
        found = {}
        for name, touched in self.touched.items():
            rows = torch.nonzero(touched[:-1]).flatten()
            parts = rows, self.tables[name][rows], self.states[name][rows]
            found[name] = tuple(one.cpu().numpy() for one in parts)
            touched.zero_()
        return found  # type: ignore[return-value]

    def _parts(self) -> dict[str, Tensor]:
        parts = {"dense": self.dense, "dense state": self.dense_state}
        for table in self.task.tables:
            parts[f"rows of {table.name}"] = self.tables[table.name][:-1]
            parts[f"state of {table.name}"] = self.states[table.name][:-1]
        return parts

    def _map(self, table: Table) -> Tensor:
        """Return the row of a derived table for each row of its source, and for a filler."""
        source = self.task.spec.table(str(table.source))
        rows = self.task.row_maps.rows_of(table.name, np.arange(source.rows))
        return torch.from_numpy(np.append(rows, table.rows)).to(self.device)

    def _padded(self, rows: NDArray[np.float32]) -> Tensor:
        own = torch.from_numpy(rows)
        return torch.cat([own, own.new_zeros((1, *own.shape[1:]))]).to(self.device)


def encoded(
    deltas: Tensor, weights: Tensor, how: Quantization, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return weighted updates as whole numbers, rounded by chance, and weights: ``Quantization.encode``."""
    capped = weights.clamp_max(how.max_weight)
    scaled = deltas.to(torch.float64).clamp(-how.clip, how.clip) / how.clip
    scaled *= (capped * how.levels).unsqueeze(1)
    below = scaled.floor()
    draws = torch.rand(scaled.shape, generator=generator, device=deltas.device, dtype=torch.float64)
    return below.to(torch.int64) + (draws < scaled - below), capped


def decoded(sums: Moved, how: Quantization, contributors: Tensor) -> tuple[Tensor, Tensor]:
    """Return summed words as numbers, and weights, as ``Quantization.decode`` does."""
    largest = contributors.clamp_max(how.cohort) * how.max_weight
    weights = torch.where((sums.weights < 0) | (sums.weights > largest), 0, sums.weights)
    bound = (weights * how.levels).to(torch.float64).unsqueeze(1)
    return torch.clamp(wrapped(sums.values, how.ring).to(torch.float64), -bound, bound) * how.unit, weights


def wrapped(values: Tensor, ring: str) -> Tensor:
    """Return values as the ring has them: signed numbers of 32 bits, or of 64 as they are."""
    return values.to(torch.int32).to(torch.int64) if ring == "z32" else values


def averaged(values: Tensor, weights: Tensor, how: Averaging) -> Tensor:
    """Return what ``Averaging.moves`` does."""
    moves = values / weights.to(torch.float64).clamp_min(how.kappa).unsqueeze(1)
    moves = torch.where((weights == 0).unsqueeze(1), 0.0, moves)
    return limited(moves, how)


def limited(moves: Tensor, how: Averaging) -> Tensor:
    """Return what ``Averaging.limited`` does."""
    if how.max_move is None:
        return moves
    cut: Tensor = moves * (how.max_move / moves.norm(dim=1, keepdim=True).clamp_min(how.max_move))
    return cut


def row_moves(values: Tensor, weights: Tensor, update: UpdateParams) -> Tensor:
    """Return what ``UpdateParams.row_moves`` does; rows that do not count have no weight."""
    if update.row_step.kind != "heat":
        return averaged(values, weights, update.averaging)
    known = torch.where((weights > 0).unsqueeze(1), values, 0.0)
    squares = known.square().mean(dim=1) / weights.clamp_min(1)
    usual = torch.minimum(squares, LOUDEST * torch.where(squares > 0, squares, torch.nan).nanquantile(0.5))
    square = (torch.where(squares > 0, usual, 0.0) * weights).sum() / weights.sum().clamp_min(1)
    return known / square.sqrt().clamp_min(_LEAST)


def stepped(step: ServerStep, values: Tensor, state: Tensor, moves: Tensor) -> tuple[Tensor, Tensor]:
    """Return what ``ServerStep.apply`` does."""
    if step.kind == "add":
        return (values + step.rate * moves).to(torch.float32), state
    old = state.to(torch.float64)
    if step.pull:
        now, before = moves.square().sum(1, keepdim=True), old[:, 0].sum(1, keepdim=True)
        moves = moves - (step.pull * now / (now + before).clamp_min(_LEAST)).clamp_max(1.0) * values
    if step.kind in ("adagrad", "heat"):
        first, second = moves, old[:, 0] + moves**2
        new = second.unsqueeze(1)
    else:
        first = step.beta1 * old[:, 0] + (1 - step.beta1) * moves
        second = step.beta2 * old[:, 1] + (1 - step.beta2) * moves**2
        new = torch.stack([first, second], dim=1)
    if step.kind == "heat":
        size = (second + step.tau**2).sqrt()
    else:
        own = (second.sum(1, keepdim=True) / max(1, second.shape[1])).sqrt()
        size = second.sqrt() + (step.tau * own).clamp_min(_LEAST)
    return (values + step.rate * first / size).to(torch.float32), new.to(torch.float32)
