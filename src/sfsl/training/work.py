"""What one client does in a round: how it trains, on what, and which samples it takes for which part."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfsl.arrays import Counts, Indices, Values
from sfsl.errors import ParameterError
from sfsl.training.task import ClientData, Rows, Task


@dataclass(frozen=True)
class LocalSettings:
    """The paper's settings (§V), and a ``clip`` on the norm of a step's gradient, over all that moves.

    Without the clip, a learning rate of 1 on batches of two diverges. With ``compiled`` a cohort's step is
    made into machine code, which takes a C++ compiler and half a minute once.

    ``rebuild`` is the share of a client's samples on which its personal rows are rebuilt first, from zero and
    with everything else frozen; the other samples then train everything else with these rows held fixed
    (Singhal et al., 2021, federated reconstruction). At 0 personal rows are kept from round to round and
    trained along with the rest. ``rebuild_rate`` does not decay: the rows always begin anew. ``max_samples``
    is how many samples a client takes in a round at the most, drawn afresh in each; 0 is all of them.
    """

    batch_size: int = 2
    epochs: int = 1
    learning_rate: float = 1.0
    decay: float = 0.999
    clip: float = 0.1
    compiled: bool = False
    rebuild: float = 0.0
    rebuild_rate: float = 1.0
    rebuild_epochs: int = 5
    max_samples: int = 0

    def __post_init__(self) -> None:
        if min(self.batch_size, self.epochs, self.rebuild_epochs) < 1:
            raise ParameterError(
                f"{self.epochs} epochs of batches of {self.batch_size}, or {self.rebuild_epochs} epochs that "
                "rebuild, train nothing"
            )
        positive = self.learning_rate > 0 and self.rebuild_rate > 0 and self.clip > 0
        if not (positive and 0 < self.decay <= 1):
            raise ParameterError(
                f"learning rate {self.learning_rate}, rebuild rate {self.rebuild_rate}, decay {self.decay} "
                f"and clip {self.clip} must be positive, and the decay at most 1"
            )
        if not 0 <= self.rebuild < 1 or self.max_samples < 0:
            raise ParameterError(
                f"rebuild = {self.rebuild} is a share from 0 up to 1, and max_samples = {self.max_samples} "
                "a number from 0, which means all"
            )

    def rate(self, round_number: int) -> float:
        """Return the learning rate of a round, counted from 0."""
        return self.learning_rate * self.decay**round_number

    def parts(self, samples: Indices) -> tuple[Indices, Indices]:
        """Say how many of so many samples rebuild and how many are learned from, each client's by itself.

        Those that are learned from fill a batch, if need be with some that rebuild: a client of few samples
        has more to say of the rows that it shares than it loses by knowing them already.
        """
        taken = np.minimum(samples, self.max_samples) if self.max_samples else samples
        if not self.rebuild:
            return np.zeros_like(taken), taken
        rebuild = np.ceil(self.rebuild * taken).astype(np.int64)
        rebuild = np.minimum(rebuild, np.maximum(taken - 1, np.minimum(taken, 1)))
        return rebuild, np.maximum(taken - rebuild, np.minimum(taken, self.batch_size))


@dataclass(frozen=True)
class ClientWork:
    """What one client trains: rows of each table, their values in that order, and samples that fit them.

    ``data`` is what ``keep(rows)`` left. Which samples it takes, and their order, follow from ``seed``.
    """

    rows: Rows
    values: Mapping[str, Values]
    data: ClientData
    seed: int

    @cached_property
    def columns(self) -> Mapping[str, NDArray[Any]]:
        """The samples, with places among ``rows`` for row numbers."""
        return self.data.local_columns(self.rows)

    def counts(self, samples: Indices) -> dict[str, Counts]:
        """Count these samples that touch each row; one that has it twice counts once."""
        if len(samples) == len(self.data):
            return dict(self.data.counts(self.rows))
        counts = {}
        for table, rows in self.rows.items():
            held = [name for name, one in self.data.tables.items() if one == table]
            touched = [self.columns[name][samples].reshape(len(samples), -1) for name in held]
            places = np.sort(np.concatenate(touched, axis=1), axis=1)
            fresh = places >= 0
            fresh[:, 1:] &= places[:, 1:] != places[:, :-1]
            counts[table] = np.bincount(places[fresh], minlength=len(rows)).astype(np.int64)
        return counts


@dataclass(frozen=True)
class Lot:
    """The samples a client takes in a round: those it has ``learned`` from, and the order of all its steps.

    An order is [steps, batch size], each batch filled up with -1. ``rebuild`` is that of the steps which
    rebuild personal rows; None where these are trained along with the rest.
    """

    learned: Indices
    order: Indices
    rebuild: Indices | None


def draw_lot(task: Task, work: ClientWork, settings: LocalSettings) -> Lot:
    """Draw which samples a client rebuilds with and learns from. A model without personal rows learns from
    all that it takes."""
    rng, every = np.random.default_rng(work.seed), np.arange(len(work.data))
    rebuilds = bool(settings.rebuild and task.personal)
    if rebuilds or 0 < settings.max_samples < len(every):
        every = rng.permutation(len(every))[: settings.max_samples or None]
    if not rebuilds:
        return Lot(every, _order(rng, every, settings.epochs, settings.batch_size), None)
    first, last = (int(one) for one in settings.parts(np.array(len(every))))
    rebuild = _order(rng, every[:first], settings.rebuild_epochs, settings.batch_size)
    learned = every[len(every) - last :]
    return Lot(learned, _order(rng, learned, settings.epochs, settings.batch_size), rebuild)


def rebuild_order(work: ClientWork, settings: LocalSettings) -> Indices:
    """Draw the steps by which rows are rebuilt for nothing but to score with: on all samples, or as many as a
    round takes."""
    rng = np.random.default_rng(work.seed)
    taken = rng.permutation(len(work.data))[: settings.max_samples or None]
    return _order(rng, taken, settings.rebuild_epochs, settings.batch_size)


def _order(rng: np.random.Generator, samples: Indices, epochs: int, size: int) -> Indices:
    """Shuffle these samples afresh in each epoch, and deal them into batches that are alike, or one apart: a
    last batch of few would have as much to say as a full one."""
    steps = -(-len(samples) // size)
    few, more = divmod(len(samples), max(1, steps))
    taken = np.arange(size) < (few + (np.arange(steps) < more))[:, np.newaxis]
    order = np.full((epochs, steps, size), -1, dtype=np.int64)
    for epoch in order:
        epoch[taken] = samples[rng.permutation(len(samples))]
    return order.reshape(-1, size)


@dataclass(frozen=True)
class Steps:
    """One client's part in a pass: the values at which its rows begin, and the order of its samples."""

    work: ClientWork
    values: Mapping[str, Values]
    order: Indices


@dataclass(frozen=True)
class Pass:
    """Which parameters move, by name, and how: all others stay as they are. ``biases``: the places of parts
    of the log-odds that are held against labels by themselves (``mean_loss``)."""

    moving: frozenset[str]
    rate: float
    clip: float
    batch_size: int
    compiled: bool = False
    biases: tuple[int, ...] = ()
