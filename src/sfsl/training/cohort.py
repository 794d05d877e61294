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
from torch import Tensor
from torch.func import vmap

from sfsl.training.local import (
    ClientWork,
    LocalSettings,
    LocalUpdate,
    checked_update,
    sample_order,
    sgd_step,
)
from sfsl.training.task import Parameters, Task, Values, parameter_of

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
    before = _stacked_parameters(task, dense, works)
    columns = _stacked_columns(works)
    orders = [sample_order(work, settings) for work in works]
    order = torch.from_numpy(_stacked(orders))
    step = vmap(sgd_step(task, settings, round_number))
    task.module.train()

    parameters, finished = before, []
    losses = torch.zeros(len(works))
    for number in range(order.shape[1]):
        live = sum(len(one) > number for one in orders)
        finished.append({name: one[live:] for name, one in parameters.items()})
        chosen = order[:live, number]
        weight = (chosen >= 0).to(torch.float32)
        who = torch.arange(live).unsqueeze(1)
        batch = {name: column[who, chosen.clamp_min(0)] for name, column in columns.items()}
        parameters, loss = step({name: one[:live] for name, one in parameters.items()}, batch, weight)
        losses[:live] += loss * weight.sum(dim=1)
    finished.append(parameters)
    after = {name: torch.cat([one[name] for one in reversed(finished)]) for name in before}

    updates = []
    for place, work in enumerate(works):
        moved = {name: after[name][place] - before[name][place] for name in after}
        for table in task.tables:
            moved[parameter_of(table)] = moved[parameter_of(table)][: len(work.rows[table.name])]
        updates.append(checked_update(task, work, settings, moved, losses[place]))
    return updates


def _stacked_parameters(task: Task, dense: Values, works: Sequence[ClientWork]) -> Parameters:
    own = task.parameters(dense, works[0].values)
    stacked = {name: own[name].expand(len(works), *own[name].shape) for name in task.dense_shapes}
    for table in task.tables:
        blocks = _stacked([work.values[table.name] for work in works], filler=0)
        stacked[parameter_of(table)] = torch.from_numpy(blocks)
    return stacked


def _stacked_columns(works: Sequence[ClientWork]) -> dict[str, Tensor]:
    each = [work.data.local_columns(work.rows) for work in works]
    return {name: torch.from_numpy(_stacked([one[name] for one in each])) for name in each[0]}


def _stacked(arrays: Sequence[NDArray[Any]], filler: int = FILLER) -> NDArray[Any]:
    """Arrays that differ in size, one behind another, filled up to the largest."""
    shape = np.max([one.shape for one in arrays], axis=0)
    stacked = np.full((len(arrays), *shape), filler, dtype=arrays[0].dtype)
    for place, one in enumerate(arrays):
        stacked[place][tuple(slice(size) for size in one.shape)] = one
    return stacked
