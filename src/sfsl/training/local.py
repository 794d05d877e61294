"""Local steps of one client, and a model's scores of samples.

A step is a pure function of parameters and batch. One client runs it as it is; a whole cohort runs it
under ``torch.func.vmap`` (``cohort``).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value

from sfsl.arrays import Indices, Reals, Values
from sfsl.training.task import Batch, ClientData, Parameters, Rows, Task, parameter_of
from sfsl.training.work import (
    ClientWork,
    LocalSettings,
    Lot,
    Pass,
    Steps,
    draw_lot,
    rebuild_order,
)


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


Loss = Callable[[Parameters, Parameters, Batch, Tensor], Tensor]


def mean_loss(task: Task, module: nn.Module, biases: Sequence[int] = ()) -> Loss:
    """Return the mean loss of a batch's samples by their weights, as a function of the parameters that move
    and of others, which the former replace.

    A sample of weight 0 fills up a batch and has no say. With ``biases``, places of parts of the log-odds,
    the loss is half that of these parts by themselves and half that of all: others may know by heart the
    very samples that a row is rebuilt on, and would leave its own bias nothing to say.
    """

    def mean(moving: Parameters, others: Parameters, batch: Batch, weight: Tensor) -> Tensor:
        output = functional_call(module, others | moving, (batch,), {"apart": True} if biases else {})
        if biases:
            alone = torch.stack([output[..., place] for place in biases]).sum(dim=0)
            losses = (task.loss(alone, batch) + task.loss(output.sum(dim=-1), batch)) / 2
        else:
            losses = task.loss(output, batch)
        # A client that is done has nothing but fillers.
        return (losses * weight).sum() / weight.sum().clamp_min(1)

    return mean


def train_client(
    task: Task, dense: Values, work: ClientWork, settings: LocalSettings, *, round_number: int = 0
) -> LocalUpdate:
    """Train one client. The same arguments give the same update."""
    lot = draw_lot(task, work, settings)
    begun, rebuilt = work.values, Parameters()
    if lot.rebuild is not None:
        rebuilt = _rebuilt(task, dense, work, lot.rebuild, settings)
        begun = with_rebuilt(task, work.values, rebuilt)
    one = learning(task, settings, round_number, rebuilt=lot.rebuild is not None)
    moved, loss = take_steps(task, dense, Steps(work, begun, lot.order), one)
    return checked_update(task, work, lot, settings, rebuilt, moved, loss)


def rebuild_client(task: Task, dense: Values, work: ClientWork, settings: LocalSettings) -> dict[str, Values]:
    """Return a client's personal rows, by table, rebuilt on its samples; zeros where that went astray."""
    if not task.personal:
        return {}
    return found_rows(task, _rebuilt(task, dense, work, rebuild_order(work, settings), settings))


def _rebuilt(
    task: Task, dense: Values, work: ClientWork, order: Indices, settings: LocalSettings
) -> Parameters:
    steps = Steps(work, without_personal(task, work), order)
    return spoiled(*take_steps(task, dense, steps, rebuilding(task, settings)))


def learning(task: Task, settings: LocalSettings, round_number: int, *, rebuilt: bool) -> Pass:
    """Return the pass in which everything moves, or everything but the personal rows if they were rebuilt."""
    every = {*task.dense_shapes, *map(parameter_of, task.tables)}
    moving = frozenset(every - set(task.personal.values()) if rebuilt else every)
    return Pass(
        moving, settings.rate(round_number), settings.clip, settings.batch_size, compiled=settings.compiled
    )


def rebuilding(task: Task, settings: LocalSettings) -> Pass:
    """Return the pass in which nothing but personal rows moves."""
    moving = frozenset(task.personal.values())
    return Pass(
        moving,
        settings.rebuild_rate,
        settings.clip,
        settings.batch_size,
        compiled=settings.compiled,
        biases=task.biases,
    )


def without_personal(task: Task, work: ClientWork) -> dict[str, Values]:
    """Return the values of a client's rows, zero for the personal ones, as a rebuild begins."""
    return {**work.values, **{name: np.zeros_like(work.values[name]) for name in task.personal}}


def with_rebuilt(task: Task, values: Mapping[str, Values], rebuilt: Parameters) -> dict[str, Values]:
    return {**values, **{name: rebuilt[one].numpy() for name, one in task.personal.items()}}


def spoiled(rebuilt: Parameters, loss: Tensor) -> Parameters:
    """Return rebuilt rows, NaN if the loss was not finite: rows may be, with scores beyond all bounds."""
    return {name: torch.where(loss.isfinite(), one, torch.nan) for name, one in rebuilt.items()}


def found_rows(task: Task, rebuilt: Parameters) -> dict[str, Values]:
    """Return rebuilt rows by table; all zero where one is not finite."""
    fine = all(bool(one.isfinite().all()) for one in rebuilt.values())
    return {
        name: (rebuilt[one] if fine else torch.zeros_like(rebuilt[one])).numpy()
        for name, one in task.personal.items()
    }


def take_steps(task: Task, dense: Values, steps: Steps, how: Pass) -> tuple[Parameters, Tensor]:
    """Return how far the parameters of a pass moved, and the loss, summed over all samples and epochs."""
    every = task.parameters(dense, steps.values)
    parameters = before = {name: one for name, one in every.items() if name in how.moving}
    columns = {name: torch.from_numpy(one) for name, one in steps.work.columns.items()}
    gradient = grad_and_value(mean_loss(task, task.module, how.biases))
    losses = [torch.zeros(())]
    task.module.train()
    with torch.random.fork_rng(devices=[]):  # a module may draw, for dropout
        torch.manual_seed(steps.work.seed)
        for order in steps.order:
            chosen = torch.from_numpy(order[order >= 0])
            batch = {name: column[chosen] for name, column in columns.items()}
            slopes, loss = gradient(parameters, every, batch, torch.ones(len(chosen)))
            norm = torch.stack([slope.square().sum() for slope in slopes.values()]).sum().sqrt()
            scale = how.rate * how.clip / norm.clamp_min(how.clip)
            parameters = {name: one - scale * slopes[name] for name, one in parameters.items()}
            losses.append(loss * len(chosen))
    return {name: parameters[name] - before[name] for name in parameters}, torch.stack(losses).sum()


def checked_update(
    task: Task,
    work: ClientWork,
    lot: Lot,
    settings: LocalSettings,
    rebuilt: Parameters,
    moved: Parameters,
    loss: Tensor,
) -> LocalUpdate:
    """Return the update a client reports, or zeros where training went astray or there are no samples.

    ``rebuilt`` are its new personal rows, if any; ``loss`` is the sum over all samples and epochs.
    """
    kept = {task.personal[name]: torch.tensor(work.values[name]) for name in task.personal if rebuilt}
    moved = moved | {name: rebuilt[name] - old for name, old in kept.items()}
    finite = bool(torch.stack([loss, *(one.sum() for one in moved.values())]).isfinite().all())
    samples = len(lot.learned)
    if finite and samples:
        return LocalUpdate(
            dense=task.dense_vector(moved),
            rows={table.name: moved[parameter_of(table)].numpy() for table in task.tables},
            counts=work.counts(lot.learned),
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
    found = [task.score(one) for one in _outputs(task, dense, rows, values, data)]
    return torch.cat([torch.zeros(0), *found]).numpy().astype(np.float64)


def score_parts(
    task: Task, dense: Values, rows: Rows, values: Mapping[str, Values], data: ClientData
) -> tuple[Reals, Reals]:
    """Score each sample; return the parts of its log-odds too, [samples, parts], if the model has any."""
    if not task.parts:
        scores = score_samples(task, dense, rows, values, data)
        return scores, np.zeros((len(scores), 0))
    apart = _outputs(task, dense, rows, values, data, apart=True)
    parts = torch.cat([torch.zeros(0, len(task.parts)), *apart])
    return task.score(parts.sum(dim=-1)).numpy().astype(np.float64), parts.numpy().astype(np.float64)


def _outputs(
    task: Task, dense: Values, rows: Rows, values: Mapping[str, Values], data: ClientData, **asked: bool
) -> Iterator[Tensor]:
    """Yield what the module makes of the samples, some at a time."""
    parameters = task.parameters(dense, values)
    columns = {name: torch.from_numpy(one) for name, one in data.local_columns(rows).items()}
    task.module.eval()
    with torch.no_grad():
        for start in range(0, len(data), CHUNK):
            batch = {name: column[start : start + CHUNK] for name, column in columns.items()}
            if asked and not start:
                task.require_parts(parameters, batch)
            yield functional_call(task.module, parameters, (batch,), asked)


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
