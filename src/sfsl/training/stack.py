"""Many clients as one computation: each has its own weights and rows, stacked, and takes its own steps.

A stack is a set of buffers on one device. Whoever fills them says how many steps each client has, the one
with the most first; clients that are done fall away at the end. On a GPU steps are captured once as graphs
over these buffers and replayed, so that a pass costs what the device computes and nothing in Python.

Rows of a table that the module only looks up (``Task.looked_up``) are fetched once per step, and gradients
are those of what was fetched: work in proportion to a small batch, not to a client's rows.
"""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import grad_and_value, vmap

from sfsl.arrays import Indices
from sfsl.training.graphs import captured, lanes
from sfsl.training.local import Loss, mean_loss
from sfsl.training.task import Batch, Parameters, Task, parameter_of
from sfsl.training.work import ClientWork, Pass

# Lookups of a step from which on it is better to have gradients of all of a client's rows.
_MANY = 512

FILLER = -1
Slopes = Callable[[Parameters, Parameters, Batch, Tensor], tuple[Parameters, Tensor]]


@dataclass(frozen=True)
class StackPlan:
    """How the columns of samples are laid out for a step.

    ``widths`` has the length of each column's sequences, or None. ``fetched`` has the tables of which a step
    looks up few rows, and the columns that hold them.
    """

    widths: Mapping[str, int | None]
    fetched: Mapping[str, tuple[str, ...]]

    @classmethod
    def of(
        cls, task: Task, holds: Mapping[str, str], widths: Mapping[str, int | None], batch_size: int
    ) -> Self:
        """Lay out columns of these widths; ``holds`` says which of them hold rows, and of which table."""
        columns = {
            table: tuple(name for name, one in holds.items() if one == table) for table in task.looked_up
        }
        few = _MANY // batch_size
        return cls(
            widths,
            {table: own for table, own in columns.items() if sum(widths[name] or 1 for name in own) <= few},
        )

    def pack(self, columns: Mapping[str, Tensor], fillers: Mapping[str, int]) -> "Columns":
        """Put the rows that each sample looks up of each table side by side, the filler in place of -1."""
        packed = {}
        for table, names in self.fetched.items():
            some = [columns[name] for name in names]
            own = torch.cat([one.unsqueeze(1) if one.ndim == 1 else one for one in some], dim=1)
            packed[table] = torch.where(own >= 0, own, fillers[table]).to(torch.int64)
        held = {name for names in self.fetched.values() for name in names}
        return Columns(packed, {name: one for name, one in columns.items() if name not in held})

    def unpack(self, table: str, slots: Tensor) -> dict[str, Tensor]:
        """Make columns again of [clients, batch, lookups]."""
        names = self.fetched[table]
        parts = torch.split(slots, [self.widths[name] or 1 for name in names], dim=2)
        return {
            name: part.squeeze(2) if self.widths[name] is None else part
            for name, part in zip(names, parts, strict=True)
        }


@dataclass(frozen=True)
class Columns:
    """The samples of all clients: ``packed`` by table, [samples, lookups], are places among the client's
    rows, and ``others`` are columns as they are."""

    packed: dict[str, Tensor]
    others: dict[str, Tensor]


@dataclass(frozen=True)
class Stack:
    """Buffers for a number of clients. A table has one row more than any client, which fillers point to.

    ``order``, [clients, steps, batch], says which of all samples each step takes; -1 fills up. ``losses``,
    [clients], are summed over samples; a trainer writes them.
    """

    dense: Parameters
    tables: Parameters
    columns: Columns
    order: Tensor
    losses: Tensor

    def to(self, device: str) -> "Stack":
        """Return the stack with its buffers on a device."""
        some = ({name: one.to(device) for name, one in part.items()} for part in vars(self.columns).values())
        return replace(self._changed(lambda one: one.to(device)), columns=Columns(*some))

    def first(self, clients: int, start: int = 0) -> "Stack":
        """Return the same buffers, of the first clients only, or the first from ``start`` on."""
        return self._changed(lambda one: one[start : start + clients])

    def _changed(self, change: Callable[[Tensor], Tensor]) -> "Stack":
        """Change every buffer that has a part for each client."""
        return Stack(
            {name: change(one) for name, one in self.dense.items()},
            {name: change(one) for name, one in self.tables.items()},
            self.columns,
            change(self.order),
            change(self.losses),
        )

    def turn(self, names: Iterable[str]) -> None:
        """Lay these matrices out column by column in memory; whoever holds the old buffers has the old ones.

        Gradients of a linear layer come that way, and to add rows to columns takes six times as long.
        """
        for name in names:
            self.dense[name] = self.dense[name].mT.contiguous().mT


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
    queues: Sequence[Sequence[int]],
    orders: Sequence[Indices],
    starts: Mapping[int, int],
    *,
    multiple: int = 1,
) -> Tensor:
    """Say which sample of all is whose turn: [places, steps, batch], filled up to the longest queue and on
    to a ``multiple``: a GPU takes ``STEPS_PER_GRAPH`` steps at a time.

    ``starts`` has where each client's own samples begin.
    """
    steps = max(sum(len(orders[client]) for client in own) for own in queues)
    steps = -(-steps // multiple) * multiple
    table = np.full((len(queues), steps, *orders[0].shape[1:]), FILLER)
    for place, own in enumerate(queues):
        step = 0
        for client in own:
            order = orders[client]
            table[place, step : step + len(order)] = np.where(order >= 0, order + starts[client], FILLER)
            step += len(order)
    return torch.from_numpy(table)


class StackTrainer:
    """Trains what is in a stack, in place; again and again if it is refilled. Of a pass it takes what moves
    and the clip.

    ``same`` are parameters that stay and are the same for all clients; the stack need not hold them. Layers
    with such weights compute as one large batch. If ``compiled``, torch makes fewer and larger kernels of a
    step, which takes it a minute once.
    """

    def __init__(
        self,
        task: Task,
        how: Pass,
        stack: Stack,
        plan: StackPlan,
        *,
        same: Parameters | None = None,
        compiled: bool = False,
    ) -> None:
        self._stack, self._plan, self._clip, self._moving = stack, plan, how.clip, how.moving
        self._tables = {table.name: parameter_of(table) for table in task.tables}
        products = stack.order.is_cuda and not compiled
        module = with_embeddings(task, plan.fetched, lambda own: _Fetched(own, products))
        for name, one in (same or {}).items():
            module.get_parameter(name).requires_grad_(False).data = one.to(stack.order.device)
        loss = mean_loss(task, module, how.biases)
        whole = stack.order.is_cuda or compiled
        self._slopes: Slopes = vmap(grad_and_value(loss)) if whole else _slopes(vmap(loss))
        self._learn: Callable[..., tuple[Tensor, ...]] = self._learned
        self._take: Callable[[Stack, Tensor], None] = self._step
        if compiled and stack.order.is_cuda:
            # For a graph all of a step, rows fetched and put back included: what it costs is kernels. Those
            # that do not wait for each other become one.
            self._take = torch.compile(self._step, dynamic=False, options={"combo_kernels": True})
        elif compiled:  # one function without any Python in it, so that threads do not wait for each other
            self._learn = torch.compile(self._learned, dynamic=False, options={"cpp_wrapper": True})
        device = stack.order.device
        self._fillers = {
            name: torch.tensor(one.shape[1] - 1, device=device) for name, one in stack.tables.items()
        }
        self._turned: set[str] | None = None if whole else set()
        self._rate = torch.zeros((), device=device)
        self._number = torch.zeros(1, dtype=torch.int64, device=device)
        self._lanes = lanes(len(stack.order), device, compiled) if stack.order.is_cuda else ()
        self._workers = ThreadPoolExecutor(len(self._lanes) or 1)

    def run(self, steps: Sequence[int], rate: float) -> None:
        """Take so many ``steps`` of each client, none of which has more than the one before it."""
        self.begin(rate)
        if self._stack.order.is_cuda:
            self._replay(steps)
            return
        for number in range(max(steps, default=0)):
            self._step(self._stack.first(sum(one > number for one in steps)), self._number)
            if not number:
                self._stack.turn(self._turned or ())

    def begin(self, rate: float) -> None:
        """Begin a pass at this learning rate."""
        self._rate.fill_(rate)
        self._number.zero_()
        self._stack.losses.zero_()

    def advance(self, steps: int) -> None:
        """Take so many steps of everyone, whatever else is in their order."""
        for _ in range(steps):
            self._step(self._stack, self._number)

    def capture(self) -> None:
        """Make all graphs now rather than when they are first needed."""
        due = [(lane, size) for lane in self._lanes for size in lane.sizes if size not in lane.graphs]
        for lane, size in due:
            part = self._stack.first(size, lane.start)
            written = [*part.dense.values(), *part.tables.values(), part.losses, lane.number]
            kept = [one.clone() for one in written]
            lane.number.zero_()
            with torch._dynamo.config.patch(recompile_limit=1024):  # one for each size
                lane.graphs[size] = captured(partial(self._take, part, lane.number), lane.stream)
            for one, old in zip(written, kept, strict=True):
                one.copy_(old)

    def _replay(self, steps: Sequence[int]) -> None:
        """Let lanes begin together, each at its own pace; whatever comes next waits for all."""
        self.capture()
        now = torch.cuda.current_stream()
        for lane in self._lanes:
            lane.number.zero_()
            lane.stream.wait_stream(now)
        # A thread for each: whoever hands a GPU more than it takes in has to wait.
        for _ in self._workers.map(lambda lane: lane.replay(steps), self._lanes):
            pass
        for lane in self._lanes:
            now.wait_stream(lane.stream)

    def _step(self, stack: Stack, number: Tensor) -> None:
        """Take step ``number`` of all clients of a stack."""
        chosen = stack.order.index_select(1, number).squeeze(1)
        at = chosen.clamp_min(0)
        places = {name: one[at] for name, one in stack.columns.packed.items()}
        fetched = {name: _fetched(stack.tables[name], one.flatten(1)) for name, one in places.items()}
        parameters = stack.dense | {
            self._tables[name]: one for name, one in stack.tables.items() if name not in fetched
        }
        fillers = {name: self._fillers[name] for name in fetched}
        others = {name: one[at] for name, one in stack.columns.others.items()}
        losses, *moved = self._learn(parameters, fetched, places, fillers, others, chosen, self._rate)
        learned = [name for name in fetched if self._tables[name] in self._moving]
        for name, values in zip(learned, moved, strict=True):
            _put_back(stack.tables[name], places[name].flatten(1), values)
        stack.losses.add_(losses)
        number.add_(1)

    def _learned(
        self,
        parameters: Parameters,
        fetched: Parameters,
        places: Mapping[str, Tensor],
        fillers: Parameters,
        columns: Batch,
        chosen: Tensor,
        rate: Tensor,
    ) -> tuple[Tensor, ...]:
        """Move ``parameters`` in place; return the loss of each client, and what was fetched and moved."""
        weight = (chosen >= 0).to(torch.float32)
        batch = dict(columns)
        for name, place in places.items():
            # What was fetched lies in the order in which it is looked up.
            slots = torch.arange(place[0].numel(), device=place.device).reshape(place.shape[1:])
            batch |= self._plan.unpack(name, torch.where(place < fillers[name], slots, -1))
        given = parameters | {self._tables[name]: one for name, one in fetched.items()}
        moving = {name: one for name, one in given.items() if name in self._moving}
        others = {name: one for name, one in given.items() if name not in self._moving}
        slopes, losses = self._slopes(moving, others, batch, weight)
        whole = [name for name in parameters if name in slopes]
        if self._turned is not None:
            self._turned = {name for name in whole if _is_turned(slopes[name])}
        squares = [_square(slopes[name]) for name in whole] or [weight.new_zeros(len(weight))]
        square = torch.stack(squares).sum(0)
        merged = {}
        for name, place in places.items():
            own = slopes.get(self._tables[name])
            if own is None:
                continue
            # A row that was fetched twice moves by the sum of what was learned about it.
            merged[name] = _same(place.flatten(1), own.dtype) @ own
            square = square + (own * merged[name]).sum(dim=(1, 2))
        scale = rate * self._clip / square.sqrt().clamp_min(self._clip)
        for name in whole:
            one = parameters[name]
            one.addcmul_(slopes[name], scale.reshape(-1, *[1] * (one.ndim - 1)), value=-1)
        moved = [fetched[name] - one * scale.reshape(-1, 1, 1) for name, one in merged.items()]
        return losses * weight.sum(1), *moved


def _slopes(losses: Loss) -> Slopes:
    """Return the gradients of each client's loss: those of their sum, as nobody has a part in another's.

    On a CPU this costs a third less in Python than gradients inside of ``vmap``, whose every operation
    passes two layers, there and back.
    """

    def slopes(
        moving: Parameters, others: Parameters, batch: Batch, weight: Tensor
    ) -> tuple[Parameters, Tensor]:
        with torch.enable_grad():
            own = {name: one.detach().requires_grad_() for name, one in moving.items()}
            each = losses(own, others, batch, weight)
            found = torch.autograd.grad(each.sum(), list(own.values()), materialize_grads=True)
        return dict(zip(own, found, strict=True)), each.detach()

    return slopes


def with_embeddings(
    task: Task, tables: Iterable[str], made: Callable[[nn.Embedding], nn.Module]
) -> nn.Module:
    """Return the task's module, to be trained, with other layers as the embeddings of these tables."""
    module = copy.deepcopy(task.module)
    for table in tables:
        own = module.get_submodule(table)
        assert isinstance(own, nn.Embedding)  # noqa: S101 -- the task has checked it
        parent, _, name = table.rpartition(".")
        setattr(module.get_submodule(parent), name, made(own))
    return module.train()


class _Fetched(nn.Module):
    """An embedding of few rows. As a product, its gradient is one too, where a GPU would have to sort."""

    def __init__(self, table: nn.Embedding, product: bool) -> None:
        super().__init__()
        self.weight, self.product = table.weight, product

    def forward(self, rows: Tensor) -> Tensor:
        if not self.product:
            return self.weight[rows]
        every = torch.arange(self.weight.shape[0], device=rows.device)
        return (rows.unsqueeze(-1) == every).to(self.weight.dtype) @ self.weight


def _is_turned(slope: Tensor) -> bool:
    """Say whether this is a matrix that lies in memory column by column."""
    return slope.ndim == 3 and not slope.is_contiguous() and slope.mT.is_contiguous()


def _square(slope: Tensor) -> Tensor:
    """Return the squared length of each client's gradient; a CPU reads it in the order in which it lies."""
    if slope.is_cuda:
        return slope.flatten(1).square().sum(1)
    rows = (slope.mT if _is_turned(slope) else slope).flatten(1)
    length: Tensor = torch.linalg.vector_norm(rows, dim=1)
    return length.square()


def _same(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Return 1 where two of a client's rows are the same, else 0."""
    if rows.is_cuda:
        return (rows.unsqueeze(2) == rows.unsqueeze(1)).to(dtype)
    # Numbers as small as a client's places are exact, and comparing them writes the result at once.
    exact = rows.to(dtype)
    same = exact.new_empty((*rows.shape, rows.shape[1]))
    torch.eq(exact.unsqueeze(2), exact.unsqueeze(1), out=same)
    return same


def _fetched(table: Tensor, places: Tensor) -> Tensor:
    """Fetch rows of each client's part of a table. A CPU copies whole rows faster than single numbers."""
    if table.is_cuda:
        return table[_each(places), places]
    return table.flatten(0, 1).index_select(0, _among_all(table, places)).reshape(*places.shape, -1)


def _put_back(table: Tensor, places: Tensor, values: Tensor) -> None:
    if table.is_cuda:
        table.index_put_((_each(places), places), values)
    else:
        table.flatten(0, 1).index_copy_(0, _among_all(table, places), values.flatten(0, 1))


def _each(places: Tensor) -> Tensor:
    """Return the number of each client, to stand beside its places."""
    return torch.arange(len(places), device=places.device).unsqueeze(1)


def _among_all(table: Tensor, places: Tensor) -> Tensor:
    first = torch.arange(0, table.shape[0] * table.shape[1], table.shape[1])
    return (places + first.unsqueeze(1)).flatten()
