"""What runs a simulation's rounds, whatever it runs them on."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from sfsl.arrays import Indices
from sfsl.rounds import RoundOutcome, RoundParams, ScoreBins
from sfsl.rounds.record import RoundRecord, RoundTally
from sfsl.submodel import Commit, RowSet, RowStore
from sfsl.training import auc, score_samples
from sfsl.training.task import ClientData, Task

_SAMPLES_AT_ONCE = 4096


class Pool(Protocol):
    """Samples of all clients in one place, which only a simulation has."""

    def __len__(self) -> int: ...
    def samples(self, positions: Indices) -> ClientData: ...


@dataclass(frozen=True)
class RoundResult:
    """What a simulated round came to. ``commit`` is for the caller to make, also after an abort, where it
    only counts the round: a round is never repeated. ``record`` was made from ``tally``. ``params`` are those
    of one cohort, where there was any."""

    record: RoundRecord
    tally: RoundTally
    commit: Commit
    outcome: RoundOutcome | None = None
    params: RoundParams | None = None


class Engine(ABC):
    """Runs rounds against a store, which it only reads, and evaluates the model that is in it.

    ``test`` are everyone's held-out samples; None where there are none to evaluate on.
    """

    task: Task
    store: RowStore
    test: Pool | None = None

    @abstractmethod
    def run(self, cohort: Sequence[str], *, scores: ScoreBins | None = None) -> RoundResult:
        """Run one round up to its commit. ``scores``: the bins of the secure evaluation, if any were kept."""

    def auc(self) -> float:
        """Return the AUC of the central test set; NaN where it has no samples, or those of one kind only."""
        return float("nan") if self.test is None else central_auc(self.task, self.test, self.store)

    def close(self) -> None:  # noqa: B027 -- most hold on to nothing
        """Give back what the engine holds on to."""


def central_auc(task: Task, test: Pool, store: RowStore) -> float:
    """Return the AUC of these samples of all users; NaN where there are none of one kind.

    Only a simulation can do this: it reads personal rows, and samples that are on the devices otherwise.
    """
    dense = store.read_dense().values
    scores, labels = [np.zeros(0)], [np.zeros(0)]
    for start in range(0, len(test), _SAMPLES_AT_ONCE):
        samples = test.samples(np.arange(start, min(start + _SAMPLES_AT_ONCE, len(test))))
        rows, unknown = task.needed_rows(samples)
        if unknown:  # rows that the model does not have
            samples = samples.keep(rows)
        values = {name: store.read_rows(name, RowSet(one)).values for name, one in rows.items()}
        scores.append(score_samples(task, dense, rows, values, samples))
        labels.append(samples.local_columns(rows)["label"])
    return auc(np.concatenate(scores), np.concatenate(labels))
