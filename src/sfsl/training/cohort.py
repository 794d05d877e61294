"""A whole cohort in one batched pass: the step of ``local``, vectorised over clients.

Each client has its own dense weights and rows, stacked; rows and sequences are filled up to the longest.
Clients stand in order of their number of steps, and those that are done fall away at the end, so that
nothing is computed for a client that has finished. Every core has passes of its own: operations this small
gain nothing from being split, and waiting for each other's halves costs much where cores are shared.

What ``torch.func`` cannot vectorise is trained client by client: layers that draw, as dropout does, and
forward passes that look at values to decide what to do.
"""

import warnings
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any
from weakref import WeakSet

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sfsl.training.local import (
    ClientWork,
    LocalSettings,
    LocalUpdate,
    checked_update,
    sample_order,
    train_client,
)
from sfsl.training.stack import Stack, StackPlan, StackTrainer
from sfsl.training.task import Indices, Parameters, Task, Values, parameter_of

_Clients = Sequence[int]
_Trained = list[tuple[int, LocalUpdate]]

FILLER = -1
# Clients in one pass. On a CPU more of them leave the cache and fill up more; fewer make more steps.
TOGETHER = 80
# A step of a pass costs in itself about as much as so many clients in it.
_STEP = 8
# Modules that could not be vectorised: nothing is tried, or said, twice.
_ONE_BY_ONE: WeakSet[nn.Module] = WeakSet()


def train_cohort(
    task: Task,
    dense: Values,
    cohort: Sequence[ClientWork],
    settings: LocalSettings,
    *,
    round_number: int = 0,
    together: int = TOGETHER,
) -> list[LocalUpdate]:
    """What ``train_client`` gives for each, to floating-point tolerance.

    A module that cannot be vectorised is trained in a loop, with a warning the first time.
    """
    reason = None
    if task.module not in _ONE_BY_ONE:
        try:
            return _train_in_passes(task, dense, cohort, settings, round_number, together)
        except (RuntimeError, ValueError) as error:  # torch.func has no error of its own
            if _out_of_memory(error):
                raise
            reason = error
    # A model that is wrong in any case fails here too, with its own words.
    updates = [train_client(task, dense, work, settings, round_number=round_number) for work in cohort]
    if reason is not None:
        _ONE_BY_ONE.add(task.module)
        said = str(reason).strip().partition("\n")[0]
        warnings.warn(
            f"{type(task.module).__name__} cannot be vectorised; its clients train one by one: {said}",
            stacklevel=2,
        )
    return updates


def _train_in_passes(
    task: Task,
    dense: Values,
    cohort: Sequence[ClientWork],
    settings: LocalSettings,
    round_number: int,
    together: int,
) -> list[LocalUpdate]:
    """Clients with much to do together, and those with nothing to do not at all."""
    updates = {
        client: train_client(task, dense, work, settings)
        for client, work in enumerate(cohort)
        if not len(work.data)
    }
    busy = [client for client in range(len(cohort)) if client not in updates]
    busy.sort(key=lambda client: -len(cohort[client].data))
    passes = _passes([len(cohort[client].data) for client in busy], torch.get_num_threads(), together)

    def trained(clients: _Clients) -> _Trained:
        works = [cohort[client] for client in clients]
        return list(zip(clients, _train_together(task, dense, works, settings, round_number), strict=True))

    for one in _on_every_core(trained, [[busy[place] for place in places] for places in passes]):
        updates |= one
    return [updates[client] for client in range(len(cohort))]


def _passes(samples: Sequence[int], cores: int, together: int) -> list[range]:
    """Neighbours in passes of at most ``together``, so that no core has much more to do than another."""

    def cut(limit: int) -> list[range]:
        starts: list[int] = []
        cost = limit
        for place, own in enumerate(samples):
            if cost + own > limit or place - starts[-1] == together:
                starts.append(place)
                cost = _STEP * own
            cost += own
        return [range(start, stop) for start, stop in pairwise([*starts, len(samples)])]

    count = min(len(samples), cores * -(-len(samples) // (cores * together)))
    most = (_STEP + len(samples)) * max(samples, default=0)
    return cut(bisect_left(range(most), True, key=lambda limit: len(cut(limit)) <= count))


def _on_every_core(train: Callable[[_Clients], _Trained], passes: Sequence[_Clients]) -> list[_Trained]:
    cores = torch.get_num_threads()
    if min(cores, len(passes)) < 2:
        return list(map(train, passes))
    try:
        with ThreadPoolExecutor(cores, initializer=torch.set_num_threads, initargs=(1,)) as workers:
            return list(workers.map(train, passes))
    finally:
        torch.set_num_threads(cores)  # for threads yet to come, a setting is everyone's


def _out_of_memory(error: Exception) -> bool:
    """A loop might fit where a stack does not, but whoever chose the size of a pass should hear of it."""
    return isinstance(error, torch.OutOfMemoryError) or "allocate memory" in str(error)


def _train_together(
    task: Task, dense: Values, works: Sequence[ClientWork], settings: LocalSettings, round_number: int
) -> list[LocalUpdate]:
    """One pass; the client with the most steps comes first."""
    orders = [sample_order(work, settings) for work in works]
    columns = _columns(works)
    widths = {name: one.shape[1] if one.ndim == 2 else None for name, one in columns.items()}
    plan = StackPlan.of(task, works[0].data.tables, widths, settings.batch_size)
    stack = _stack(task, dense, works, orders, columns, plan)
    before = {name: one.clone() for name, one in _parameters(stack, task).items()}
    trainer = StackTrainer(task, settings, stack, plan)
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


def _stack(
    task: Task,
    dense: Values,
    works: Sequence[ClientWork],
    orders: Sequence[Indices],
    columns: Mapping[str, Tensor],
    plan: StackPlan,
) -> Stack:
    own = task.parameters(dense, works[0].values)
    tables = {}
    for table in task.tables:
        rows = max(len(work.rows[table.name]) for work in works)
        block = np.zeros((len(works), rows + 1, table.width), np.float32)
        for place, work in enumerate(works):
            block[place, : len(work.rows[table.name])] = work.values[table.name]
        tables[table.name] = torch.from_numpy(block)
    starts = np.cumsum([0, *(len(work.data) for work in works)])
    shifted = [
        np.where(order >= 0, order + start, FILLER) for order, start in zip(orders, starts, strict=False)
    ]
    return Stack(
        dense={name: own[name].repeat(len(works), *[1] * own[name].ndim) for name in task.dense_shapes},
        tables=tables,
        columns=plan.pack(columns, {name: one.shape[1] - 1 for name, one in tables.items()}),
        order=torch.from_numpy(_filled(shifted)),
        losses=torch.zeros(len(works)),
    )


def _columns(works: Sequence[ClientWork]) -> dict[str, Tensor]:
    each = [work.data.local_columns(work.rows) for work in works]
    return {name: torch.from_numpy(_joined([one[name] for one in each])) for name in each[0]}


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
