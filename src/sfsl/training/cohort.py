"""A cohort trained in one pass, or client by client where that cannot be."""

import warnings
from bisect import bisect_left
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, chain, pairwise
from weakref import WeakSet

import numpy as np
import torch
from torch import nn

from sfsl.arrays import Values
from sfsl.errors import SlowerTraining
from sfsl.training.joining import joined_columns, timetable
from sfsl.training.local import (
    ClientWork,
    LocalSettings,
    LocalUpdate,
    checked_update,
    sample_order,
    train_client,
)
from sfsl.training.places import train_in_places
from sfsl.training.stack import Stack, StackTrainer
from sfsl.training.task import Parameters, Task, parameter_of

_Works = Sequence[ClientWork]
_Train = Callable[[_Works], list[LocalUpdate]]

# Clients in one pass. On a CPU more of them leave the cache and fill up more; fewer make more steps.
TOGETHER = 80
# A step of a pass costs in itself about as much as so many clients in it.
_STEP = 8


@dataclass(frozen=True)
class _Way:
    """How a cohort may be trained, and which modules cannot be: nothing is tried, or said, twice."""

    instead: str
    refused: WeakSet[nn.Module] = field(default_factory=WeakSet)


_COMPILED = _Way("cannot be compiled, and is trained without")
_VECTORISED = _Way("cannot be vectorised; its clients train one by one")


def train_cohort(
    task: Task,
    dense: Values,
    cohort: Sequence[ClientWork],
    settings: LocalSettings,
    *,
    round_number: int = 0,
    together: int = TOGETHER,
    device: str = "cpu",
) -> list[LocalUpdate]:
    """Return what ``train_client`` gives for each, to floating-point tolerance.

    A module that cannot be compiled, where that is asked for, is trained without; one that cannot be
    vectorised in a loop; with a warning the first time. On another ``device`` passes are not compiled.
    """

    alone = partial(train_client, task, dense, settings=settings, round_number=round_number)

    def compiled(works: _Works) -> list[LocalUpdate]:
        return train_in_places(task, dense, works, settings, round_number) if works else []

    def vectorised(works: _Works) -> list[LocalUpdate]:
        rate, cores = settings.rate(round_number), torch.get_num_threads() if device == "cpu" else 1
        return _train_in_passes(
            lambda some: _train_together(task, dense, some, settings, rate, device), works, cores, together
        )

    ways: list[tuple[_Way, _Train]] = [(_COMPILED, compiled), (_VECTORISED, vectorised)]
    busy = [client for client, work in enumerate(cohort) if len(work.data)]
    works = [cohort[client] for client in busy]
    failed: list[tuple[_Way, Exception]] = []
    for way, train in ways if settings.compiled and device == "cpu" else ways[1:]:
        if task.module in way.refused:
            continue
        try:
            learned = train(works)
            break
        except (RuntimeError, ValueError) as error:  # torch.func has no error of its own
            if _out_of_memory(error):
                raise
            failed.append((way, error))
    else:
        learned = list(
            map(alone, works)
        )  # a model that is wrong in any case fails here too, with its own words
    for way, reason in failed:
        way.refused.add(task.module)
        said = str(reason).strip().partition("\n")[0]
        warnings.warn(f"{type(task.module).__name__} {way.instead}: {said}", SlowerTraining, stacklevel=2)
    updates = dict(zip(busy, learned, strict=True))
    return [updates[client] if client in updates else alone(work) for client, work in enumerate(cohort)]


def _train_in_passes(train: _Train, cohort: _Works, cores: int, together: int) -> list[LocalUpdate]:
    """Train clients with much to do together, passes side by side on all cores."""
    longest = sorted(range(len(cohort)), key=lambda client: -len(cohort[client].data))
    works = [cohort[client] for client in longest]
    passes = [
        works[one.start : one.stop] for one in _passes([len(work.data) for work in works], cores, together)
    ]
    if min(cores, len(passes)) < 2:
        learned = list(map(train, passes))
    else:
        try:
            with ThreadPoolExecutor(cores, initializer=torch.set_num_threads, initargs=(1,)) as workers:
                learned = list(workers.map(train, passes))
        finally:
            torch.set_num_threads(cores)  # for threads yet to come, a setting is everyone's
    updates = dict(zip(longest, chain.from_iterable(learned), strict=True))
    return [updates[client] for client in range(len(cohort))]


def _passes(samples: Sequence[int], cores: int, together: int) -> list[range]:
    """Cut neighbours into passes of at most ``together``, so that no core has much more to do than others."""

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


def _out_of_memory(error: Exception) -> bool:
    """Say whether memory ran out: a loop might fit, but whoever chose the passes should hear of it."""
    return isinstance(error, torch.OutOfMemoryError) or "allocate memory" in str(error)


def _train_together(
    task: Task, dense: Values, works: _Works, settings: LocalSettings, rate: float, device: str
) -> list[LocalUpdate]:
    """Train one pass; the client with the most steps comes first."""
    orders = [sample_order(work, settings) for work in works]
    plan, columns = joined_columns(task, works, settings)
    own = task.parameters(dense, works[0].values)
    tables = {}
    for table in task.tables:
        rows = max(len(work.rows[table.name]) for work in works)
        block = np.zeros((len(works), rows + 1, table.width), np.float32)
        for place, work in enumerate(works):
            block[place, : len(work.rows[table.name])] = work.values[table.name]
        tables[table.name] = torch.from_numpy(block)
    starts = dict(enumerate(accumulate((len(work.data) for work in works[:-1]), initial=0)))
    stack = Stack(
        dense={name: own[name].repeat(len(works), *[1] * own[name].ndim) for name in task.dense_shapes},
        tables=tables,
        columns=plan.pack(columns, {name: one.shape[1] - 1 for name, one in tables.items()}),
        order=timetable([[client] for client in starts], orders, starts),
        losses=torch.zeros(len(works)),
    ).to(device)
    before = {name: one.clone() for name, one in _parameters(stack, task).items()}
    StackTrainer(task, settings, stack, plan).run([len(one) for one in orders], rate)
    change = {name: (one - before[name]).cpu() for name, one in _parameters(stack, task).items()}
    losses = stack.losses.cpu()
    updates = []
    for place, work in enumerate(works):
        moved = {name: one[place] for name, one in change.items()}
        for table in task.tables:
            moved[parameter_of(table)] = moved[parameter_of(table)][: len(work.rows[table.name])]
        updates.append(checked_update(task, work, settings, moved, losses[place]))
    return updates


def _parameters(stack: Stack, task: Task) -> Parameters:
    return stack.dense | {parameter_of(table): stack.tables[table.name] for table in task.tables}
