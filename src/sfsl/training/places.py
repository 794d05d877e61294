"""A cohort by a step that is compiled once: clients one after another in a few places.

A compiled step costs little in itself, so a few clients at a time keep a core busy, and their weights stay
in its cache. Whoever is done makes room for the next, so that hardly a place is idle before the end, and the
step always has the same shape: one compilation serves all rounds.
"""

import heapq
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate

import torch
from torch import Tensor

from sfsl.arrays import Indices, Values
from sfsl.training.stack import Stack, StackTrainer, joined_columns, timetable
from sfsl.training.task import Parameters, Task, parameter_of
from sfsl.training.work import Pass, Steps

# Clients at a time on each core: with fewer, a step's own cost weighs more; more do not stay in the cache.
PLACES = 8
# Sequences are filled up to a multiple: another length is another compilation.
_MULTIPLE = 10


def train_in_places(
    task: Task, dense: Values, cohort: Sequence[Steps], how: Pass
) -> list[tuple[Parameters, Tensor]]:
    """Take the steps of clients who all have some. Each core has places of its own.

    Where torch cannot compile, this raises what torch raises; where it would compile in every round, a
    ``ValueError``.
    """
    cores = torch.get_num_threads()
    dealt = _deal([len(one.order) for one in cohort], cores)
    parts = [_Part(task, dense, cohort, own, how) for own in dealt]
    moves: dict[int, tuple[Parameters, Tensor]] = {}
    torch.set_num_threads(1)  # which goes into what is compiled
    try:
        parts[0].compile()
        with ThreadPoolExecutor(cores, initializer=torch.set_num_threads, initargs=(1,)) as workers:
            for learned in workers.map(lambda part: part.train(how.rate), parts):
                moves |= learned
    finally:
        torch.set_num_threads(cores)
    return [moves[client] for client in range(len(cohort))]


def _deal(steps: Sequence[int], cores: int) -> list[list[list[int]]]:
    """Say who comes after whom in which place of which core: the longest first, where it can begin first."""
    free = [(0, place) for place in range(cores * PLACES)]
    dealt: list[list[list[int]]] = [[[] for _ in range(PLACES)] for _ in range(cores)]
    for client in sorted(range(len(steps)), key=lambda one: -steps[one]):
        taken, place = heapq.heappop(free)
        dealt[place % cores][place // cores].append(client)
        heapq.heappush(free, (taken + steps[client], place))
    return [own for own in dealt if any(own)]


class _Part:
    """What one core does. ``queues`` has the clients of each place, one after another."""

    def __init__(
        self,
        task: Task,
        dense: Values,
        cohort: Sequence[Steps],
        queues: Sequence[Sequence[int]],
        how: Pass,
    ) -> None:
        orders = [one.order for one in cohort]
        self._own = {client: cohort[client] for place in queues for client in place}
        self._task, self._moving = task, how.moving
        works = {client: one.work for client, one in self._own.items()}
        self._before = task.parameters(dense, next(iter(works.values())).values)
        plan, columns = joined_columns(task, list(works.values()), how.batch_size, multiple=_MULTIPLE)
        if len(plan.fetched) < len(task.tables):
            raise ValueError("a step that takes a whole table has another shape in each round")
        rows = {name: max(len(work.rows[name]) for work in works.values()) for name in plan.fetched}
        starts = accumulate((len(work.data) for work in works.values()), initial=0)
        self._stack = Stack(
            dense={name: torch.zeros((PLACES, *shape)) for name, shape in task.dense_shapes.items()},
            tables={one.name: torch.zeros((PLACES, rows[one.name] + 1, one.width)) for one in task.tables},
            columns=plan.pack(columns, rows),
            order=timetable(queues, orders, dict(zip(works, starts, strict=False))),
            losses=torch.zeros(PLACES),
        )
        self._changes = _changes(queues, orders)
        self._trainer = StackTrainer(task, how, self._stack, plan, compiled=True)

    def compile(self) -> None:
        """Make the step, unless this process has it already: nobody is there yet to learn from it."""
        self._trainer.begin(0.0)
        self._trainer.advance(1)

    def train(self, rate: float) -> dict[int, tuple[Parameters, Tensor]]:
        """Train the clients of all places; return how far each moved, and its loss."""
        moves, there, now = dict[int, tuple[Parameters, Tensor]](), dict[int, int](), 0
        self._trainer.begin(rate)
        for step, changes in sorted(self._changes.items()):
            self._trainer.advance(step - now)
            now = step
            for place, client in changes:
                if (done := there.pop(place, None)) is not None:
                    moves[done] = self._moved(place, done)
                if client is not None:
                    self._enter(place, client)
                    there[place] = client
        return moves

    def _enter(self, place: int, client: int) -> None:
        for name, one in self._stack.dense.items():
            one[place] = self._before[name]
        for name, values in self._own[client].values.items():
            own = self._stack.tables[name][place].zero_()  # what fillers point to may have gone astray
            own[: len(values)] = torch.from_numpy(values)
        self._stack.losses[place] = 0

    def _moved(self, place: int, client: int) -> tuple[Parameters, Tensor]:
        stack, begun = self._stack, self._own[client].values
        moved = {name: one[place] - self._before[name] for name, one in stack.dense.items()}
        for table in self._task.tables:
            values = torch.from_numpy(begun[table.name])
            moved[parameter_of(table)] = stack.tables[table.name][place, : len(values)] - values
        return {name: moved[name] for name in moved if name in self._moving}, stack.losses[place].clone()


def _changes(
    queues: Sequence[Sequence[int]], orders: Sequence[Indices]
) -> dict[int, list[tuple[int, int | None]]]:
    """Say before which step who takes which place; None leaves it empty."""
    changes: dict[int, list[tuple[int, int | None]]] = {}
    for place, own in enumerate(queues):
        ends = accumulate((len(orders[client]) for client in own), initial=0)
        for step, client in zip(ends, [*own, None], strict=True):
            changes.setdefault(step, []).append((place, client))
    return changes
