"""Samples of several clients as one set of columns, and whose turn they are."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from sfsl.arrays import Indices
from sfsl.training.stack import StackPlan
from sfsl.training.task import Task
from sfsl.training.work import ClientWork

FILLER = -1


def joined_columns(
    task: Task, works: Sequence[ClientWork], batch_size: int, *, multiple: int = 1
) -> tuple[StackPlan, dict[str, Tensor]]:
    """Join the samples of all clients, one behind another, and plan their layout.

    Sequences are filled up to the longest, and on to a ``multiple``.
    """
    each = [work.columns for work in works]
    columns = {}
    for name in each[0]:
        own = [one[name] for one in each]
        longest = np.max([one.shape[1:] for one in own], axis=0).astype(int)
        shape = -(-longest // multiple) * multiple
        joined = np.full((sum(map(len, own)), *shape), FILLER, dtype=own[0].dtype)
        start = 0
        for one in own:
            joined[(slice(start, start + len(one)), *map(slice, one.shape[1:]))] = one
            start += len(one)
        columns[name] = torch.from_numpy(joined)
    widths = {name: one.shape[1] if one.ndim == 2 else None for name, one in columns.items()}
    return StackPlan.of(task, works[0].data.tables, widths, batch_size), columns


def timetable(
    queues: Sequence[Sequence[int]], orders: Sequence[Indices], starts: Mapping[int, int]
) -> Tensor:
    """Say which sample of all is whose turn: [places, steps, batch], filled up to the longest queue.

    ``starts`` has where each client's own samples begin.
    """
    steps = max(sum(len(orders[client]) for client in own) for own in queues)
    table = np.full((len(queues), steps, *orders[0].shape[1:]), FILLER)
    for place, own in enumerate(queues):
        step = 0
        for client in own:
            order = orders[client]
            table[place, step : step + len(order)] = np.where(order >= 0, order + starts[client], FILLER)
            step += len(order)
    return torch.from_numpy(table)
