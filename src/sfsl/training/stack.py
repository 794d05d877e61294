"""Many clients as one computation: each has its own weights and rows, stacked, and takes its own steps.

A stack is a set of buffers on one device. Whoever fills them says how many steps each client has, the one
with the most first; clients that are done fall away at the end. On a GPU steps are captured once as graphs
over these buffers and replayed, so that a pass costs what the device computes and nothing in Python.

Rows of a table that the module only looks up (``Task.looked_up``) are fetched once per step, and gradients
are those of what was fetched: work in proportion to a small batch, not to a client's rows.
"""

import copy
import gc
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from sfsl.training.local import LocalSettings
from sfsl.training.task import Batch, Parameters, Task, parameter_of

# Steps in one graph, and how many fewer clients have graphs of their own, which take long if compiled.
STEPS_PER_GRAPH = 8
_SHRINK, _SHRINK_COMPILED = 0.8, 0.6
# The share of clients that have a lane of their own for having the most steps.
_LONGEST = 0.1
# Lookups of a step from which on it is better to have gradients of all of a client's rows.
_MANY = 512

# Kernels that do not wait for each other become one.
_HORIZONTAL: dict[str, Any] = {"combo_kernels": True}

Learn = Callable[..., tuple[Tensor, ...]]
Slopes = Callable[[Parameters, Batch, Tensor], tuple[Parameters, Tensor]]


@dataclass(frozen=True)
class StackPlan:
    """How the columns of samples are laid out for a step.

    ``widths``: of each column, the length of its sequences, or None. ``fetched``: the tables of which a
    step looks up few rows, and the columns that hold them.
    """

    widths: Mapping[str, int | None]
    fetched: Mapping[str, tuple[str, ...]]

    @classmethod
    def of(
        cls, task: Task, holds: Mapping[str, str], widths: Mapping[str, int | None], batch_size: int
    ) -> Self:
        """``holds``: which columns hold rows, and of which table."""
        fetched = {}
        for table in task.looked_up:
            columns = tuple(name for name, one in holds.items() if one == table)
            if batch_size * sum(widths[name] or 1 for name in columns) <= _MANY:
                fetched[table] = columns
        return cls(widths, fetched)

    def pack(self, columns: Mapping[str, Tensor], fillers: Mapping[str, int]) -> "Columns":
        """The rows that each sample looks up of each table side by side, with -1 become the filler."""
        packed = {}
        for table, names in self.fetched.items():
            side_by_side = torch.cat(
                [one.unsqueeze(1) if one.ndim == 1 else one for one in map(columns.__getitem__, names)], dim=1
            )
            packed[table] = torch.where(side_by_side >= 0, side_by_side, fillers[table]).to(torch.int64)
        held = {name for names in self.fetched.values() for name in names}
        return Columns(packed, {name: one for name, one in columns.items() if name not in held})

    def unpack(self, table: str, slots: Tensor) -> dict[str, Tensor]:
        """Columns again, of [clients, batch, lookups]."""
        names = self.fetched[table]
        parts = torch.split(slots, [self.widths[name] or 1 for name in names], dim=2)
        return {
            name: part.squeeze(2) if self.widths[name] is None else part
            for name, part in zip(names, parts, strict=True)
        }


@dataclass(frozen=True)
class Columns:
    """The samples of all clients. ``packed``, by table: [samples, lookups], places among the client's rows.
    ``others``: columns as they are."""

    packed: dict[str, Tensor]
    others: dict[str, Tensor]


@dataclass(frozen=True)
class Stack:
    """Buffers for a number of clients. A table has one row more than any client, which fillers point to.

    ``order``: [clients, steps, batch], which of all samples each step takes; -1 fills up.
    ``losses``: [clients], summed over samples; a trainer writes them.
    """

    dense: Parameters
    tables: Parameters
    columns: Columns
    order: Tensor
    losses: Tensor

    def to(self, device: str) -> "Stack":
        def there(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return {name: one.to(device) for name, one in tensors.items()}

        columns = Columns(there(self.columns.packed), there(self.columns.others))
        order, losses = self.order.to(device), self.losses.to(device)
        return Stack(there(self.dense), there(self.tables), columns, order, losses)

    def first(self, clients: int, start: int = 0) -> "Stack":
        """The same buffers, of the first clients only, or the first from ``start`` on."""
        some = slice(start, start + clients)
        return Stack(
            {name: one[some] for name, one in self.dense.items()},
            {name: one[some] for name, one in self.tables.items()},
            self.columns,
            self.order[some],
            self.losses[some],
        )

    def turn(self, names: Iterable[str]) -> None:
        """Lay these matrices out column by column in memory; whoever holds the old buffers has the old ones.

        Gradients of a linear layer come that way, and to add rows to columns takes six times as long.
        """
        for name in names:
            self.dense[name] = self.dense[name].mT.contiguous().mT


class StackTrainer:
    """Trains what is in a stack, in place; again and again if it is refilled.

    ``compiled``: torch makes fewer and larger kernels of a step, which takes it a minute once.
    """

    def __init__(
        self, task: Task, settings: LocalSettings, stack: Stack, plan: StackPlan, *, compiled: bool = False
    ) -> None:
        self._stack, self._settings, self._plan = stack, settings, plan
        self._tables = {table.name: parameter_of(table) for table in task.tables}
        products = stack.order.is_cuda and not compiled
        loss = mean_loss(task, with_embeddings(task, plan.fetched, lambda own: _Fetched(own, products)))
        captured = stack.order.is_cuda or compiled
        self._slopes: Slopes = vmap(grad_and_value(loss)) if captured else _slopes(vmap(loss))
        self._learn: Learn = self._learned
        self._take: Callable[[Stack, Tensor], None] = self._step
        if compiled and stack.order.is_cuda:
            # For a graph all of a step, rows fetched and put back included: what it costs is kernels.
            self._take = torch.compile(self._step, dynamic=False, options=_HORIZONTAL)
        elif compiled:
            self._learn = _compiled(self._learned)
        device = stack.order.device
        self._fillers = {
            name: torch.tensor(one.shape[1] - 1, device=device) for name, one in stack.tables.items()
        }
        self._turned: set[str] | None = None if captured else set()
        self._rate = torch.zeros((), device=device)
        self._number = torch.zeros(1, dtype=torch.int64, device=device)
        self._lanes = _lanes(len(stack.order), device, compiled) if stack.order.is_cuda else ()
        self._workers = ThreadPoolExecutor(len(self._lanes) or 1)

    def run(self, steps: Sequence[int], rate: float) -> None:
        """``steps`` of each client, none with more than the one before it."""
        self.begin(rate)
        if self._stack.order.is_cuda:
            self._replay(steps)
            return
        for number in range(max(steps, default=0)):
            self._step(self._stack.first(sum(one > number for one in steps)), self._number)
            if not number:
                self._stack.turn(self._turned or ())

    def begin(self, rate: float) -> None:
        self._rate.fill_(rate)
        self._number.zero_()
        self._stack.losses.zero_()

    def advance(self, steps: int) -> None:
        """So many steps of everyone, whatever else is in their order."""
        for _ in range(steps):
            self._step(self._stack, self._number)

    def capture(self) -> None:
        """Make all graphs now rather than when they are first needed."""
        for lane in self._lanes:
            for size in lane.sizes:
                self._graph(lane, size)

    def _replay(self, steps: Sequence[int]) -> None:
        """Lanes begin together and each goes at its own pace; whatever comes next waits for all."""
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

    def _graph(self, lane: "_Lane", size: int) -> None:
        if size not in lane.graphs:
            part = self._stack.first(size, lane.start)
            written = [*part.dense.values(), *part.tables.values(), part.losses, lane.number]
            kept = [one.clone() for one in written]
            lane.number.zero_()
            with torch._dynamo.config.patch(recompile_limit=1024):  # one for each size
                lane.graphs[size] = captured(lambda: self._take(part, lane.number), lane.stream)
            for one, old in zip(written, kept, strict=True):
                one.copy_(old)

    def _step(self, stack: Stack, number: Tensor) -> None:
        """Step ``number`` of all clients of a stack."""
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
        for name, values in zip(fetched, moved, strict=True):
            _put_back(stack.tables[name], places[name].flatten(1), values)
        stack.losses.add_(losses)
        number.add_(1)

    def _learned(
        self,
        parameters: Parameters,
        fetched: Parameters,
        places: Mapping[str, Tensor],
        fillers: Parameters,
        others: Batch,
        chosen: Tensor,
        rate: Tensor,
    ) -> tuple[Tensor, ...]:
        """Moves ``parameters`` in place; the loss of each client, and what was fetched, moved."""
        weight = (chosen >= 0).to(torch.float32)
        batch = dict(others)
        for name, place in places.items():
            # What was fetched lies in the order in which it is looked up.
            slots = torch.arange(place[0].numel(), device=place.device).reshape(place.shape[1:])
            batch |= self._plan.unpack(name, torch.where(place < fillers[name], slots, -1))
        given = parameters | {self._tables[name]: one for name, one in fetched.items()}
        slopes, losses = self._slopes(given, batch, weight)
        if self._turned is not None:
            self._turned = {name for name in parameters if _is_turned(slopes[name])}
        square = torch.stack([_square(slopes[name]) for name in parameters]).sum(0)
        merged = {}
        for name, place in places.items():
            own = slopes[self._tables[name]]
            # A row that was fetched twice moves by the sum of what was learned about it.
            merged[name] = _same(place.flatten(1), own.dtype) @ own
            square = square + (own * merged[name]).sum(dim=(1, 2))
        clip = self._settings.clip
        scale = rate * clip / square.sqrt().clamp_min(clip)
        for name, one in parameters.items():
            one.addcmul_(slopes[name], scale.reshape(-1, *[1] * (one.ndim - 1)), value=-1)
        moved = [fetched[name] - one * scale.reshape(-1, 1, 1) for name, one in merged.items()]
        return losses * weight.sum(1), *moved


def _compiled(learn: Learn) -> Learn:
    """For a CPU: one function without any Python in it, so that threads do not wait for each other."""
    made: Learn = torch.compile(learn, dynamic=False, options={"cpp_wrapper": True})
    return made


def mean_loss(task: Task, module: nn.Module) -> Callable[[Parameters, Batch, Tensor], Tensor]:
    """Of a batch's samples by their weights, as a function of all parameters."""

    def mean(parameters: Parameters, batch: Batch, weight: Tensor) -> Tensor:
        output = functional_call(module, parameters, (batch,))
        # A client that is done has nothing but fillers.
        return (task.loss(output, batch) * weight).sum() / weight.sum().clamp_min(1)

    return mean


def _slopes(losses: Callable[[Parameters, Batch, Tensor], Tensor]) -> Slopes:
    """Gradients of each client's loss: those of their sum, since nobody has a part in another's.

    On a CPU this costs a third less in Python than gradients inside of ``vmap``, whose every operation
    passes two layers, there and back.
    """

    def slopes(parameters: Parameters, batch: Batch, weight: Tensor) -> tuple[Parameters, Tensor]:
        with torch.enable_grad():
            own = {name: one.detach().requires_grad_() for name, one in parameters.items()}
            each = losses(own, batch, weight)
            found = torch.autograd.grad(each.sum(), list(own.values()), materialize_grads=True)
        return dict(zip(own, found, strict=True)), each.detach()

    return slopes


def with_embeddings(
    task: Task, tables: Iterable[str], made: Callable[[nn.Embedding], nn.Module]
) -> nn.Module:
    """The task's module, to be trained, with other layers in place of the embeddings of these tables."""
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
    """Whether it is a matrix that lies in memory column by column."""
    return slope.ndim == 3 and not slope.is_contiguous() and slope.mT.is_contiguous()


def _square(slope: Tensor) -> Tensor:
    """The squared length of each client's gradient; on a CPU, read in the order in which it lies there."""
    if slope.is_cuda:
        return slope.flatten(1).square().sum(1)
    rows = (slope.mT if _is_turned(slope) else slope).flatten(1)
    length: Tensor = torch.linalg.vector_norm(rows, dim=1)
    return length.square()


def _same(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """1 where two of a client's rows are the same, else 0."""
    if rows.is_cuda:
        return (rows.unsqueeze(2) == rows.unsqueeze(1)).to(dtype)
    # Numbers as small as a client's places are exact, and comparing them writes the result at once.
    exact = rows.to(dtype)
    same = exact.new_empty((*rows.shape, rows.shape[1]))
    torch.eq(exact.unsqueeze(2), exact.unsqueeze(1), out=same)
    return same


def _fetched(table: Tensor, places: Tensor) -> Tensor:
    """Rows of each client's part of a table. A CPU copies whole rows faster than single numbers."""
    if table.is_cuda:
        return table[_each(places), places]
    return table.flatten(0, 1).index_select(0, _among_all(table, places)).reshape(*places.shape, -1)


def _put_back(table: Tensor, places: Tensor, values: Tensor) -> None:
    if table.is_cuda:
        table.index_put_((_each(places), places), values)
    else:
        table.flatten(0, 1).index_copy_(0, _among_all(table, places), values.flatten(0, 1))


def _each(places: Tensor) -> Tensor:
    """The number of each client, beside its places."""
    return torch.arange(len(places), device=places.device).unsqueeze(1)


def _among_all(table: Tensor, places: Tensor) -> Tensor:
    first = torch.arange(0, table.shape[0] * table.shape[1], table.shape[1])
    return (places + first.unsqueeze(1)).flatten()


@dataclass(frozen=True)
class _Lane:
    """Neighbours that a GPU trains on a stream of their own, from ``start`` on.

    Few clients have many more steps than the others: alone they leave most of a GPU idle, and beside the
    others they cost next to nothing. A library's working memory belongs to a stream, so a lane's graphs are
    captured where they are replayed.
    """

    start: int
    sizes: tuple[int, ...]
    number: Tensor
    stream: torch.cuda.Stream
    graphs: dict[int, torch.cuda.CUDAGraph] = field(default_factory=dict)

    def replay(self, steps: Sequence[int]) -> None:
        """``steps`` of all clients of the stack."""
        own = steps[self.start : self.start + self.sizes[0]]
        with torch.cuda.stream(self.stream):
            for begun in range(0, max(own, default=0), STEPS_PER_GRAPH):
                live = sum(one > begun for one in own)
                self.graphs[min(size for size in self.sizes if size >= live)].replay()


def _lanes(clients: int, device: torch.device, compiled: bool) -> tuple[_Lane, ...]:
    """Those with the most steps, which nobody should have to wait for, and the others."""
    longest = int(clients * _LONGEST) // 8 * 8  # kernels want their operands aligned
    lanes = []
    for start, stop in [(0, longest), (longest, clients)] if longest else [(0, clients)]:
        shrink, count = (_SHRINK_COMPILED, 3) if compiled else (_SHRINK, 8)
        sizes = tuple(math.ceil((stop - start) * shrink**power) for power in range(count))
        number = torch.zeros(1, dtype=torch.int64, device=device)
        stream = torch.cuda.Stream(device, priority=0 if start else -1)  # type: ignore[no-untyped-call]
        lanes.append(_Lane(start, sizes, number, stream))
    return tuple(lanes)


def captured(step: Callable[[], None], beside: torch.cuda.Stream | None = None) -> torch.cuda.CUDAGraph:
    """``STEPS_PER_GRAPH`` steps as one graph, for a stream. A few are taken on the way."""
    beside = beside or torch.cuda.Stream()  # type: ignore[no-untyped-call]
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        for _ in range(3):  # libraries choose their ways and take their memory
            step()
    torch.cuda.current_stream().wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    collecting = gc.isenabled()
    gc.disable()  # memory of earlier graphs, given back in the middle, would spoil this one
    try:
        with torch.cuda.graph(graph, stream=beside):
            for _ in range(STEPS_PER_GRAPH):
                step()
    finally:
        if collecting:
            gc.enable()
    return graph
