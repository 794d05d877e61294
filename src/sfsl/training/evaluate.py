"""A model's scores of samples."""

from collections.abc import Mapping

import numpy as np
import torch
from torch.func import functional_call

from sfsl.arrays import Reals, Values
from sfsl.training.task import ClientData, Rows, Task

CHUNK = 1024


def score_samples(
    task: Task, dense: Values, rows: Rows, values: Mapping[str, Values], data: ClientData
) -> Reals:
    """Score each sample. ``values`` are those of ``rows``; of tables not named there, all rows."""
    parameters = task.parameters(dense, values)
    columns = {name: torch.from_numpy(one) for name, one in data.local_columns(rows).items()}
    task.module.eval()
    scores = [torch.zeros(0)]
    with torch.no_grad():
        for start in range(0, len(data), CHUNK):
            batch = {name: column[start : start + CHUNK] for name, column in columns.items()}
            scores.append(task.score(functional_call(task.module, parameters, (batch,))))
    return torch.cat(scores).numpy().astype(np.float64)


def reference_score(task: Task, dense: Values, data: ClientData) -> float:
    """Return what the model scores a sample of nothing: every column zero, and every row.

    It depends on the dense part only, so everyone who has that knows it. A young model's scores wander as
    a whole, and this wanders with them.
    """
    parameters = task.parameters(
        dense, {table.name: np.zeros((1, table.width), np.float32) for table in task.tables}
    )
    batch = {
        name: torch.from_numpy(np.zeros((1, 1, *one.shape[2:])[: one.ndim], one.dtype))
        for name, one in data.local_columns({}).items()
    }
    task.module.eval()
    with torch.no_grad():
        return float(task.score(functional_call(task.module, parameters, (batch,)))[0])
