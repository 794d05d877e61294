"""A whole cohort in one batched pass: the step of ``local``, vectorised over clients.

Each client has its own dense weights and rows, stacked; rows and sequences are filled up to the longest.
Clients stand in order of their number of steps, and those that are done fall away at the end, so that
nothing is computed for a client that has finished.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sfsl.training.local import (
    ClientWork,
    LocalSettings,
    LocalUpdate,
    checked_update,
    sample_order,
)
from sfsl.training.stack import Stack, StackTrainer
from sfsl.training.task import Indices, Parameters, Task, Values, parameter_of

FILLER = -1
# Clients in one pass. On a CPU more of them leave the cache and fill up more; fewer make more steps.
TOGETHER = 50


def train_cohort(
    task: Task,
    dense: Values,
    cohort: Sequence[ClientWork],
    settings: LocalSettings,
    *,
    round_number: int = 0,
    together: int = TOGETHER,
) -> list[LocalUpdate]:
    """What ``train_client`` gives for each, to floating-point tolerance; without dropout layers."""
    by_steps = sorted(range(len(cohort)), key=lambda client: -len(cohort[client].data))
    updates: dict[int, LocalUpdate] = {}
    for start in range(0, len(cohort), together):
        clients = by_steps[start : start + together]
        works = [cohort[client] for client in clients]
        updates |= zip(clients, _train_together(task, dense, works, settings, round_number), strict=True)
    return [updates[client] for client in range(len(cohort))]


def _train_together(
    task: Task, dense: Values, works: Sequence[ClientWork], settings: LocalSettings, round_number: int
) -> list[LocalUpdate]:
    """One pass; the client with the most steps comes first."""
    orders = [sample_order(work, settings) for work in works]
    stack = _stack(task, dense, works, orders)
    before = {name: one.clone() for name, one in _parameters(stack, task).items()}
    trainer = StackTrainer(task, settings, stack, works[0].data.tables)
    trainer.run([len(one) for one in orders], settings.rate(round_number))
    after = _parameters(stack, task)
    updates = []
    for place, work in enumerate(works):
        moved = {name: after[name][place] - before[name][place] for name in after}
        for table in task.tables:
            moved[parameter_of(table)] = moved[parameter_of(table)][: len(work.rows[table.name])]
        updates.append(checked_update(task, work, settings, moved, stack.losses[place]))
    return updates


def _parameters(stack: Stack, task: Task) -> Parameters:
    return stack.dense | {parameter_of(table): stack.tables[table.name] for table in task.tables}


def _stack(task: Task, dense: Values, works: Sequence[ClientWork], orders: Sequence[Indices]) -> Stack:
    own = task.parameters(dense, works[0].values)
    tables = {}
    for table in task.tables:
        rows = max(len(work.rows[table.name]) for work in works)
        block = np.zeros((len(works), rows + 1, table.width), np.float32)
        for place, work in enumerate(works):
            block[place, : len(work.rows[table.name])] = work.values[table.name]
        tables[table.name] = torch.from_numpy(block)
    each = [work.data.local_columns(work.rows) for work in works]
    starts = np.cumsum([0, *(len(work.data) for work in works)])
    shifted = [
        np.where(order >= 0, order + start, FILLER) for order, start in zip(orders, starts, strict=False)
    ]
    return Stack(
        dense={name: own[name].repeat(len(works), *[1] * own[name].ndim) for name in task.dense_shapes},
        tables=tables,
        columns={name: torch.from_numpy(_joined([one[name] for one in each])) for name in each[0]},
        order=torch.from_numpy(_filled(shifted)),
        losses=torch.zeros(len(works)),
    )


def _joined(columns: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """One behind another along the samples; sequences are filled up to the longest."""
    shape = np.max([one.shape[1:] for one in columns], axis=0)
    joined = np.full((sum(map(len, columns)), *shape.astype(int)), FILLER, dtype=columns[0].dtype)
    start = 0
    for one in columns:
        joined[(slice(start, start + len(one)), *map(slice, one.shape[1:]))] = one
        start += len(one)
    return joined


def _filled(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Arrays that differ in size, one behind another, filled up to the largest."""
    shape = np.max([one.shape for one in arrays], axis=0)
    stacked = np.full((len(arrays), *shape), FILLER, dtype=arrays[0].dtype)
    for place, one in enumerate(arrays):
        stacked[place][tuple(slice(size) for size in one.shape)] = one
    return stacked
