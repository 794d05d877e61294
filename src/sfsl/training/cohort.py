"""A cohort trained in one pass, or client by client where that cannot be."""

import warnings
from bisect import bisect_left
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import accumulate, chain, pairwise
from weakref import WeakSet

import numpy as np
import torch
from torch import Tensor, nn

from sfsl.arrays import Indices, Values
from sfsl.errors import SlowerTraining
from sfsl.training.graphs import STEPS_PER_GRAPH
from sfsl.training.local import (
    LocalUpdate,
    checked_update,
    found_rows,
    learning,
    rebuilding,
    spoiled,
    take_steps,
    with_rebuilt,
    without_personal,
)
from sfsl.training.places import train_in_places
from sfsl.training.stack import Stack, StackTrainer, joined_columns, timetable
from sfsl.training.task import Parameters, Task, parameter_of
from sfsl.training.work import ClientWork, LocalSettings, Pass, Steps, draw_lot, rebuild_order

_Moves = list[tuple[Parameters, Tensor]]
_Train = Callable[[Sequence[Steps]], _Moves]

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
    lots = [draw_lot(task, work, settings) for work in cohort]
    begun, rebuilt = [work.values for work in cohort], [Parameters() for _ in cohort]
    rebuilds = [lot.rebuild for lot in lots if lot.rebuild is not None]
    if rebuilds:
        rebuilt = _rebuilt(task, dense, cohort, rebuilds, settings, together, device)
        begun = [with_rebuilt(task, work.values, own) for work, own in zip(cohort, rebuilt, strict=True)]
    steps = [Steps(work, own, lot.order) for work, own, lot in zip(cohort, begun, lots, strict=True)]
    how = learning(task, settings, round_number, rebuilt=bool(rebuilds))
    moves = _take_all(task, dense, steps, how, together, device)
    return [
        checked_update(task, work, lot, settings, own, *moved)
        for work, lot, own, moved in zip(cohort, lots, rebuilt, moves, strict=True)
    ]


def rebuild_cohort(
    task: Task,
    dense: Values,
    cohort: Sequence[ClientWork],
    settings: LocalSettings,
    *,
    together: int = TOGETHER,
    device: str = "cpu",
) -> list[dict[str, Values]]:
    """Return what ``rebuild_client`` gives for each, to floating-point tolerance."""
    if not task.personal:
        return [{} for _ in cohort]
    orders = [rebuild_order(work, settings) for work in cohort]
    return [
        found_rows(task, one) for one in _rebuilt(task, dense, cohort, orders, settings, together, device)
    ]


def _rebuilt(
    task: Task,
    dense: Values,
    cohort: Sequence[ClientWork],
    orders: Sequence[Indices],
    settings: LocalSettings,
    together: int,
    device: str,
) -> list[Parameters]:
    steps = [
        Steps(work, without_personal(task, work), order) for work, order in zip(cohort, orders, strict=True)
    ]
    moves = _take_all(task, dense, steps, rebuilding(task, settings), together, device)
    return [spoiled(*one) for one in moves]


def _take_all(
    task: Task, dense: Values, cohort: Sequence[Steps], how: Pass, together: int, device: str
) -> _Moves:
    """Return what ``take_steps`` gives for each, in the fastest way that the model and the device allow."""

    def compiled(steps: Sequence[Steps]) -> _Moves:
        return train_in_places(task, dense, steps, how) if steps else []

    def vectorised(steps: Sequence[Steps]) -> _Moves:
        cores = torch.get_num_threads() if device == "cpu" else 1
        return _train_in_passes(
            lambda some: _train_together(task, dense, some, how, device), steps, cores, together
        )

    ways: list[tuple[_Way, _Train]] = [(_COMPILED, compiled), (_VECTORISED, vectorised)]
    busy = [client for client, own in enumerate(cohort) if len(own.order)]
    steps = [cohort[client] for client in busy]
    failed: list[tuple[_Way, Exception]] = []
    for way, train in ways if how.compiled and device == "cpu" else ways[1:]:
        if task.module in way.refused:
            continue
        try:
            learned = train(steps)
            break
        except (RuntimeError, ValueError) as error:  # torch.func has no error of its own
            if _out_of_memory(error):
                raise
            failed.append((way, error))
    else:  # a model that is wrong in any case fails here too, with its own words
        learned = [take_steps(task, dense, own, how) for own in steps]
    for way, reason in failed:
        way.refused.add(task.module)
        said = str(reason).strip().partition("\n")[0]
        warnings.warn(f"{type(task.module).__name__} {way.instead}: {said}", SlowerTraining, stacklevel=3)
    moves = dict(zip(busy, learned, strict=True))
    return [
        moves[client] if client in moves else take_steps(task, dense, own, how)
        for client, own in enumerate(cohort)
    ]


def _train_in_passes(train: _Train, cohort: Sequence[Steps], cores: int, together: int) -> _Moves:
    """Train clients with much to do together, passes side by side on all cores."""
    samples = [int((own.order >= 0).sum()) for own in cohort]
    longest = sorted(range(len(cohort)), key=lambda client: -samples[client])
    passes = [
        [cohort[client] for client in longest[one.start : one.stop]]
        for one in _passes([samples[client] for client in longest], cores, together)
    ]
    if min(cores, len(passes)) < 2:
        learned = list(map(train, passes))
    else:
        try:
            with ThreadPoolExecutor(cores, initializer=torch.set_num_threads, initargs=(1,)) as workers:
                learned = list(workers.map(train, passes))
        finally:
            torch.set_num_threads(cores)  # for threads yet to come, a setting is everyone's
    moves = dict(zip(longest, chain.from_iterable(learned), strict=True))
    return [moves[client] for client in range(len(cohort))]


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


def _train_together(task: Task, dense: Values, steps: Sequence[Steps], how: Pass, device: str) -> _Moves:
    """Train one pass; the client with the most steps comes first."""
    works, orders = [one.work for one in steps], [one.order for one in steps]
    plan, columns = joined_columns(task, works, how.batch_size)
    own = task.parameters(dense, works[0].values)
    still = not how.moving & task.dense_shapes.keys()  # then one copy of the dense part serves everyone
    tables = {}
    for table in task.tables:
        rows = max(len(work.rows[table.name]) for work in works)
        block = np.zeros((len(works), rows + 1, table.width), np.float32)
        for place, one in enumerate(steps):
            block[place, : len(one.values[table.name])] = one.values[table.name]
        tables[table.name] = torch.from_numpy(block)
    starts = dict(enumerate(accumulate((len(work.data) for work in works[:-1]), initial=0)))
    dense_parts = {name: own[name] for name in task.dense_shapes}
    stack = Stack(
        dense={}
        if still
        else {name: one.repeat(len(works), *[1] * one.ndim) for name, one in dense_parts.items()},
        tables=tables,
        columns=plan.pack(columns, {name: one.shape[1] - 1 for name, one in tables.items()}),
        order=timetable(
            [[client] for client in starts],
            orders,
            starts,
            multiple=1 if device == "cpu" else STEPS_PER_GRAPH,
        ),
        losses=torch.zeros(len(works)),
    ).to(device)
    before = {name: one.clone() for name, one in _parameters(stack, task, how).items()}
    trainer = StackTrainer(task, how, stack, plan, same=dense_parts if still else None)
    trainer.run([len(one) for one in orders], how.rate)
    change = {name: (one - before[name]).cpu() for name, one in _parameters(stack, task, how).items()}
    losses = stack.losses.cpu()
    moves = []
    for place, work in enumerate(works):
        moved = {name: one[place] for name, one in change.items()}
        for table in task.tables:
            if (name := parameter_of(table)) in moved:
                moved[name] = moved[name][: len(work.rows[table.name])]
        moves.append((moved, losses[place]))
    return moves


def _parameters(stack: Stack, task: Task, how: Pass) -> Parameters:
    """Return what may move of a stack."""
    every = stack.dense | {parameter_of(table): stack.tables[table.name] for table in task.tables}
    return {name: one for name, one in every.items() if name in how.moving}
