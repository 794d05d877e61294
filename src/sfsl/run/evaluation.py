"""The model in a store as plain tensors."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from sfsl.errors import InputError
from sfsl.submodel import RowSet, RowStore
from sfsl.training.task import Task


def state_dict(task: Task, store: RowStore, max_bytes: int) -> Mapping[str, Tensor]:
    """All parameters as ``module.load_state_dict`` takes them; rows never touched are as they begin."""
    sizes = {table.name: 4 * table.rows * table.width for table in task.tables}
    if sum(sizes.values()) > max_bytes:
        largest = max(sizes, key=lambda name: sizes[name])
        raise InputError(
            f"the tables take {sum(sizes.values()) / 2**30:,.2f} GiB as plain tensors, {largest!r} alone "
            f"{sizes[largest] / 2**30:,.2f}; the limit is {max_bytes / 2**30:,.2f}. Raise it with --max-gib, "
            "or read the rows you need from the run's store"
        )
    tables = {
        table.name: store.read_rows(table.name, RowSet(np.arange(table.rows))).values for table in task.tables
    }
    parameters = task.parameters(store.read_dense().values, tables)
    order = [name for name, _ in task.module.named_parameters()]
    buffers = {name: torch.clone(one) for name, one in task.module.named_buffers()}
    return {name: parameters[name] for name in order} | buffers
