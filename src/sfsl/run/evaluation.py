"""The model in a store, looked at as a whole: its AUC on the central test set, its state dict."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from sfsl.errors import InputError
from sfsl.run.fleet import Fleet
from sfsl.submodel import RowSet, RowStore
from sfsl.training import auc, score_samples
from sfsl.training.task import Task

_SAMPLES_AT_ONCE = 4096


def central_auc(fleet: Fleet, store: RowStore) -> float:
    """Of all held-out samples of all users; NaN where there are none of one kind.

    Only a simulation can do this: it reads personal rows, and samples that are on the devices otherwise.
    """
    dense = store.read_dense().values
    scores, labels = [np.zeros(0)], [np.zeros(0)]
    for start in range(0, len(fleet.test), _SAMPLES_AT_ONCE):
        some = np.arange(start, min(start + _SAMPLES_AT_ONCE, len(fleet.test)))
        samples = fleet.test.samples(some)
        rows, unknown = fleet.task.needed_rows(samples)
        if unknown:  # rows that the model does not have
            samples = samples.keep(rows)
        values = {name: store.read_rows(name, RowSet(one)).values for name, one in rows.items()}
        scores.append(score_samples(fleet.task, dense, rows, values, samples))
        labels.append(samples.local_columns(rows)["label"])
    return auc(np.concatenate(scores), np.concatenate(labels))


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
