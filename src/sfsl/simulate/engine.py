"""What runs a simulation's rounds, whatever it runs them on."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sfsl.arrays import Indices
from sfsl.correction import Correction
from sfsl.rounds import RoundOutcome, RoundParams, ScoreBins
from sfsl.rounds.hot import HotState
from sfsl.rounds.hot_server import HotRound
from sfsl.rounds.record import RoundRecord, RoundTally
from sfsl.scores import Baselines, Evaluation, Scored, correction_of, evaluate
from sfsl.simulate.rebuilt import Rebuilt
from sfsl.submodel import Commit, RowSet, RowStore
from sfsl.training import score_parts
from sfsl.training.task import ClientData, Task

_SAMPLES_AT_ONCE = 4096


class Pool(Protocol):
    """Samples of all clients in one place, which only a simulation has."""

    def __len__(self) -> int: ...
    def samples(self, positions: Indices) -> ClientData: ...
    def column(self, name: str) -> NDArray[Any] | None:
        """Return one number of every sample; None where they have none of this name."""

    def owners(self) -> tuple[Sequence[object] | NDArray[Any], Indices]:
        """Return names of clients, and the place among them of each sample's own."""


@dataclass(frozen=True)
class RoundResult:
    """What a simulated round came to. ``commit`` is for the caller to make, also after an abort, where it
    only counts the round: a round is never repeated. ``record`` was made from ``tally``. ``plan`` is that
    of one cohort, where there was any."""

    record: RoundRecord
    tally: RoundTally
    commit: Commit
    outcome: RoundOutcome | None = None
    plan: RoundParams | HotRound | None = None


class Engine(ABC):
    """Runs rounds against a store, which it only reads, and evaluates the model that is in it.

    ``pools`` are held-out samples to evaluate on, by name: ``test``, and those of other devices in ``valid``
    where there are any, which are of the clients that ``choose`` a model. ``baselines`` are what training
    samples say without a model.
    """

    task: Task
    store: RowStore
    pools: Mapping[str, Pool] = {}
    choose: Collection[str] = ()
    baselines: Baselines | None = None

    @abstractmethod
    def run(
        self, cohort: Sequence[str], *, scores: ScoreBins | None = None, hot: HotState | None = None
    ) -> RoundResult:
        """Run one round up to its commit. ``scores``, the bins of the secure evaluation, and ``hot`` are what
        the last round left, if anything was kept."""

    def evaluate(self, pool: str = "test", correction: Correction | None = None) -> Evaluation:
        """Return what the model's scores of a pool are worth; of no samples where there is no such pool."""
        return evaluate(self.scored(pool), self.baselines, correction)

    def evaluate_both(self) -> tuple[Evaluation, Evaluation]:
        """Return what the model's scores are worth to ``test`` and to ``valid``, both under the correction
        that ``valid`` fits, where there is one."""
        chooses = self.scored("valid")
        correction = correction_of(chooses)
        return self.evaluate(correction=correction), evaluate(chooses, self.baselines, correction)

    def scored(self, pool: str) -> Scored:
        """Score the samples of a pool."""
        if pool not in self.pools:
            return Scored(np.zeros(0), np.zeros(0))
        return score_pool(self.task, self.pools[pool], self.store, self.rebuilt())

    def rebuilt(self) -> Rebuilt | None:
        """Return personal rows that were rebuilt to score with; None where those in the store serve."""
        return None

    def close(self) -> None:  # noqa: B027 -- most hold on to nothing
        """Give back what the engine holds on to."""


def score_pool(task: Task, pool: Pool, store: RowStore, rebuilt: Rebuilt | None = None) -> Scored:
    """Score these samples of all users, but for those of rows that the model does not have; or, of personal
    rows, only those that were ``rebuilt``.

    Only a simulation can do this: it reads personal rows, and samples that are on the devices otherwise.
    """
    dense = store.read_dense().values
    scores, kept = [np.zeros(0)], list[Mapping[str, NDArray[Any]]]()
    parts = [np.zeros((0, len(task.parts)))]
    for start in range(0, len(pool), _SAMPLES_AT_ONCE):
        samples = pool.samples(np.arange(start, min(start + _SAMPLES_AT_ONCE, len(pool))))
        if rebuilt is not None:
            samples = samples.keep({name: own for name, (own, _) in rebuilt.items()})
        rows, unknown = task.needed_rows(samples)
        if unknown:  # rows that the model does not have
            samples = samples.keep(rows)
        values = {
            name: store.read_rows(name, RowSet(one)).values
            if rebuilt is None or name not in rebuilt
            else rebuilt[name][1][np.searchsorted(rebuilt[name][0], one)]
            for name, one in rows.items()
        }
        found, apart = score_parts(task, dense, rows, values, samples)
        scores.append(found)
        parts.append(apart)
        kept.append(samples.local_columns({}))
    item = item_column(task, pool)
    labels, users, items = (_joined(kept, name) for name in ("label", "user", item))
    return Scored(
        np.concatenate(scores),
        np.zeros(0) if labels is None else labels,
        users,
        items,
        task.chances,
        dict(zip(task.parts, np.concatenate(parts).T, strict=True)),
    )


def _joined(parts: Sequence[Mapping[str, NDArray[Any]]], name: str) -> NDArray[Any] | None:
    """Join one column, which need not be there."""
    return np.concatenate([part[name] for part in parts]) if parts and name in parts[0] else None


def item_column(task: Task, pool: Pool) -> str:
    """Name the column by which samples are popular: ``item``, or else the first that holds one row of a
    shared table; empty where there is none."""
    none = pool.samples(np.zeros(0, np.int64))
    columns, shared = none.local_columns({}), {table.name for table in task.tables if table.kind == "shared"}
    single = [name for name, table in none.tables.items() if table in shared and columns[name].ndim == 1]
    return "item" if "item" in single else next(iter(single), "")


def baselines_of(task: Task, train: Pool) -> Baselines | None:
    """Return what training samples say without a model; None where its scores are not chances of a click."""
    labels = train.column("label") if task.chances else None
    return None if labels is None else Baselines.of(labels, train.column(item_column(task, train)))
