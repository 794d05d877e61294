"""Training on everyone's samples in one place, which federated learning is compared with: the engine of
``sfsl run --scheme centralized``.

It commits to the same stores as a round does, with the optimizer's state beside each row, so that it can be
resumed, evaluated and exported alike.
"""

import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import msgspec
import numpy as np
import torch
from torch.func import functional_call

from sfsl.arrays import Indices
from sfsl.errors import ParameterError
from sfsl.rounds import ScoreBins
from sfsl.rounds.hot import HotState
from sfsl.rounds.record import RoundTally
from sfsl.run.fleet import Fleet
from sfsl.settings.run import RunConfig
from sfsl.simulate.engine import Engine, Pool, RoundResult
from sfsl.submodel import Commit, DenseBlock, RowBlock, RowSet, RowStore
from sfsl.training.task import Parameters, Task, parameter_of

_ORDER = 4  # its stream of the run's seed


@dataclass(frozen=True)
class CentralSettings:
    """A round has so many ``samples``. ``clip`` bounds the norm of a step's gradient, for SGD only."""

    samples: int
    optimizer: Literal["sgd", "adam"]
    batch_size: int
    learning_rate: float
    decay: float
    clip: float

    def __post_init__(self) -> None:
        if self.samples < 1 or self.batch_size < 1:
            raise ParameterError(f"rounds of {self.samples} samples in batches of {self.batch_size}")

    @property
    def slots(self) -> int:
        """The optimizer keeps so many numbers for each parameter."""
        return 2 if self.optimizer == "adam" else 0

    @property
    def steps(self) -> int:
        return -(-self.samples // self.batch_size)


class CentralizedEngine(Engine):
    """Trains epochs over ``pool`` in an order that ``seed`` makes, cut into rounds.

    With Adam, rows that no sample of a round touches rest in it, state and all (lazily, as sparse
    optimizers do).
    """

    def __init__(
        self,
        task: Task,
        pool: Pool,
        store: RowStore,
        settings: CentralSettings,
        *,
        seed: int,
    ) -> None:
        self.task, self.store = task, store
        self._pool, self._settings, self._seed = pool, settings, seed
        self._device = "cpu"

    def on(self, device: str) -> Self:
        """Return the same engine, whose steps are taken on this device."""
        moved = copy.copy(self)
        moved._device = device
        return moved

    def run(
        self, cohort: Sequence[str] = (), *, scores: ScoreBins | None = None, hot: HotState | None = None
    ) -> RoundResult:
        """Train on as many samples as a cohort would bring. There are no clients, and nobody to ask."""
        start, store = time.perf_counter(), self.store
        number = store.round + 1
        data = self._pool.samples(self._positions(number))
        rows, unknown = self.task.needed_rows(data)
        data = data.keep(rows)
        blocks = {name: store.read_rows(name, RowSet(some)) for name, some in rows.items()}
        dense = store.read_dense()
        parameters = self._moved(
            self.task.parameters(dense.values, {name: block.values for name, block in blocks.items()})
        )
        for one in parameters.values():
            one.requires_grad_()
        states = [
            self._moved(
                self.task.parameters(
                    dense.state[slot], {name: block.state[:, slot] for name, block in blocks.items()}
                )
            )
            for slot in range(self._settings.slots)
        ]
        columns = self._moved({name: torch.from_numpy(one) for name, one in data.local_columns(rows).items()})
        loss = self._train(number, parameters, states, columns, len(data))
        commit = self._commit(number, parameters, states, blocks)
        tally = RoundTally(samples=len(data), loss=loss, unknown_rows=unknown)
        tally.training_seconds = time.perf_counter() - start
        return RoundResult(tally.record(number, None), tally, commit)

    def _moved(self, tensors: Parameters) -> Parameters:
        return {name: one.to(self._device) for name, one in tensors.items()}

    def _positions(self, number: int) -> Indices:
        total, wanted = len(self._pool), self._settings.samples
        first, last = (number - 1) * wanted, number * wanted
        epochs = range(first // total, (last - 1) // total + 1)
        order = [np.random.default_rng([_ORDER, self._seed, epoch]).permutation(total) for epoch in epochs]
        return np.concatenate(order)[first - epochs[0] * total :][:wanted]

    def _train(
        self,
        number: int,
        parameters: Parameters,
        states: list[Parameters],
        columns: Parameters,
        samples: int,
    ) -> float:
        """Take the steps of a round in place, ``states`` by slot; return the loss, summed over samples."""
        settings, module = self._settings, self.task.module
        rate = settings.learning_rate * settings.decay ** (number - 1)
        kind: Any = torch.optim.Adam if settings.optimizer == "adam" else torch.optim.SGD
        optimizer = kind(parameters.values(), lr=rate)
        done = float((number - 1) * settings.steps)
        for name, one in parameters.items() if states else ():
            first, second = (state[name] for state in states)
            optimizer.state[one] = {"step": torch.tensor(done), "exp_avg": first, "exp_avg_sq": second}
        module.train()
        total = 0.0
        for start in range(0, samples, settings.batch_size):
            batch = {name: one[start : start + settings.batch_size] for name, one in columns.items()}
            losses = self.task.loss(functional_call(module, parameters, (batch,)), batch)
            optimizer.zero_grad()
            losses.mean().backward()  # type: ignore[no-untyped-call]
            if settings.optimizer == "sgd":
                torch.nn.utils.clip_grad_norm_(parameters.values(), settings.clip)
            optimizer.step()
            total += float(losses.detach().sum())
        return total

    def _commit(
        self, number: int, parameters: Parameters, states: list[Parameters], blocks: dict[str, RowBlock]
    ) -> Commit:
        task = self.task
        done = {name: one.detach().cpu() for name, one in parameters.items()}
        states = [{name: one.cpu() for name, one in state.items()} for state in states]
        dense = DenseBlock(task.dense_vector(done), np.zeros((len(states), task.spec.dense), np.float32))
        for own, state in zip(dense.state, states, strict=True):
            own[:] = task.dense_vector(state)
        tables = {}
        for table in task.tables:
            name, block = parameter_of(table), blocks[table.name]
            own = np.zeros((len(block.rows), len(states), table.width), np.float32)
            for slot, state in enumerate(states):
                own[:, slot] = state[name].numpy()
            tables[table.name] = RowBlock(block.rows, done[name].numpy(), own)
        return Commit(number, tables, dense, self.store.selection)


def require(config: RunConfig) -> None:
    """Take any run: it needs nothing that a run does not."""


def build(config: RunConfig, fleet: Fleet, store: RowStore) -> CentralizedEngine:
    settings = central_settings(config, len(fleet.train), len(fleet.devices))
    return CentralizedEngine(fleet.task, fleet.train, store, settings, seed=config.run.seed)


def central_settings(config: RunConfig, samples: int, clients: int) -> CentralSettings:
    """Return settings for so many samples of so many clients: a round has a cohort's on average."""
    return CentralSettings(
        samples=max(1, round(samples / clients * config.round.clients)),
        decay=config.training.decay,
        clip=config.training.clip,
        **msgspec.structs.asdict(config.centralized),
    )
