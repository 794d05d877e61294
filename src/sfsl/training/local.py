"""Local steps of one client, and a model's scores of samples.

A step is a pure function of parameters and batch. One client runs it as it is; a whole cohort runs it
under ``torch.func.vmap`` (``cohort``).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value

from sfsl.arrays import Indices, Reals, Values
from sfsl.errors import ParameterError
from sfsl.training.task import Batch, ClientData, Parameters, Rows, Task, parameter_of


@dataclass(frozen=True)
class LocalSettings:
    """The paper's settings (§V), and a ``clip`` on the norm of a step's gradient, all parameters together.

    Without the clip, a learning rate of 1 on batches of two diverges. With ``compiled`` a cohort's step is
    made into machine code, which takes a C++ compiler and half a minute once.
    """

    batch_size: int = 2
    epochs: int = 1
    learning_rate: float = 1.0
    decay: float = 0.999
    clip: float = 0.1
    compiled: bool = False

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.epochs < 1:
            raise ParameterError(f"{self.epochs} epochs of batches of {self.batch_size} train nothing")
        if not (self.learning_rate > 0 and 0 < self.decay <= 1 and self.clip > 0):
            raise ParameterError(
                f"learning rate {self.learning_rate}, decay {self.decay} and clip {self.clip} must be "
                "positive, and the decay at most 1"
            )

    def rate(self, round_number: int) -> float:
        """Return the learning rate of a round, counted from 0."""
        return self.learning_rate * self.decay**round_number


@dataclass(frozen=True)
class ClientWork:
    """What one client trains: rows of each table, their values in that order, and samples that fit them.

    ``data`` is what ``keep(rows)`` left. The order of the samples follows from ``seed``.
    """

    rows: Rows
    values: Mapping[str, Values]
    data: ClientData
    seed: int


@dataclass(frozen=True)
class LocalUpdate:
    """What a client has learned: deltas of the dense vector and of each row, in the order of the rows.

    ``counts`` says how many samples touch each row. Where something was not finite it has ``diverged``: the
    update is zero then and counts nothing, so that it can go into a sum without harm.
    """

    dense: Values
    rows: Mapping[str, Values]
    counts: Rows
    samples: int
    loss: float
    diverged: bool = False


def mean_loss(task: Task, module: nn.Module) -> Callable[[Parameters, Batch, Tensor], Tensor]:
    """Return the mean loss of a batch's samples by their weights, as a function of all parameters.

    A sample of weight 0 fills up a batch and has no say.
    """

    def mean(parameters: Parameters, batch: Batch, weight: Tensor) -> Tensor:
        output = functional_call(module, parameters, (batch,))
        # A client that is done has nothing but fillers.
        return (task.loss(output, batch) * weight).sum() / weight.sum().clamp_min(1)

    return mean


def sample_order(work: ClientWork, settings: LocalSettings) -> Indices:
    """Say which samples each step takes, a fresh shuffle per epoch: [steps, batch size], filled up."""
    rng, samples = np.random.default_rng(work.seed), len(work.data)
    steps = -(-samples // settings.batch_size)
    order = np.full((settings.epochs, steps * settings.batch_size), -1, dtype=np.int64)
    for epoch in order:
        epoch[:samples] = rng.permutation(samples)
    return order.reshape(-1, settings.batch_size)


def train_client(
    task: Task, dense: Values, work: ClientWork, settings: LocalSettings, *, round_number: int = 0
) -> LocalUpdate:
    """Train one client. The same arguments give the same update."""
    parameters = before = task.parameters(dense, work.values)
    columns = {name: torch.from_numpy(one) for name, one in work.data.local_columns(work.rows).items()}
    rate, clip = settings.rate(round_number), settings.clip
    gradient = grad_and_value(mean_loss(task, task.module))
    losses = [torch.zeros(())]
    task.module.train()
    with torch.random.fork_rng(devices=[]):  # a module may draw, for dropout
        torch.manual_seed(work.seed)
        for order in sample_order(work, settings):
            chosen = torch.from_numpy(order[order >= 0])
            batch = {name: column[chosen] for name, column in columns.items()}
            slopes, loss = gradient(parameters, batch, torch.ones(len(chosen)))
            norm = torch.stack([slope.square().sum() for slope in slopes.values()]).sum().sqrt()
            scale = rate * clip / norm.clamp_min(clip)
            parameters = {name: one - scale * slopes[name] for name, one in parameters.items()}
            losses.append(loss * len(chosen))
    moved = {name: parameters[name] - before[name] for name in parameters}
    return checked_update(task, work, settings, moved, torch.stack(losses).sum())


def checked_update(
    task: Task, work: ClientWork, settings: LocalSettings, moved: Mapping[str, Tensor], loss: Tensor
) -> LocalUpdate:
    """Return the update a client reports, or zeros where training went astray or there are no samples.

    ``loss`` is the sum over all samples and epochs.
    """
    finite = bool(torch.stack([loss, *(one.sum() for one in moved.values())]).isfinite().all())
    samples = len(work.data)
    if finite and samples:
        return LocalUpdate(
            dense=task.dense_vector(moved),
            rows={table.name: moved[parameter_of(table)].numpy() for table in task.tables},
            counts=dict(work.data.counts(work.rows)),
            samples=samples,
            loss=float(loss) / (samples * settings.epochs),
        )
    return LocalUpdate(
        dense=np.zeros(task.spec.dense, dtype=np.float32),
        rows={name: np.zeros_like(block) for name, block in work.values.items()},
        counts={name: np.zeros(len(block), dtype=np.int64) for name, block in work.values.items()},
        samples=0,
        loss=float("nan"),
        diverged=not finite,
    )


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
