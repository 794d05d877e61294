"""Scores of samples, and the AUC: exact, or from score histograms that can be summed securely."""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch.func import functional_call

from sfsl.arrays import Indices, Reals, Values
from sfsl.errors import InputError
from sfsl.training.task import ClientData, Rows, Task

CHUNK = 1024
_SMALLEST = 1e-12


def score_samples(
    task: Task, dense: Values, rows: Rows, values: Mapping[str, Values], data: ClientData
) -> Reals:
    """The score of each sample. ``values`` are those of ``rows``; of tables not named there, all rows."""
    parameters = task.parameters(dense, values)
    columns = {name: torch.from_numpy(one) for name, one in data.local_columns(rows).items()}
    task.module.eval()
    scores = [torch.zeros(0)]
    with torch.no_grad():
        for start in range(0, len(data), CHUNK):
            batch = {name: column[start : start + CHUNK] for name, column in columns.items()}
            scores.append(task.score(functional_call(task.module, parameters, (batch,))))
    return torch.cat(scores).numpy().astype(np.float64)


def reference_score(task: Task, dense: Values, data: ClientData) -> float:
    """What the model scores a sample of nothing: every column zero, and every row.

    It depends on the dense part only, so everyone who has that knows it. A young model's scores wander as
    a whole, and this wanders with them.
    """
    parameters = task.parameters(
        dense, {table.name: np.zeros((1, table.width), np.float32) for table in task.tables}
    )
    columns = data.local_columns({})
    batch = {
        name: torch.zeros(
            (1,) if one.ndim == 1 else (1, 1, *one.shape[2:]), dtype=torch.from_numpy(one).dtype
        )
        for name, one in columns.items()
    }
    task.module.eval()
    with torch.no_grad():
        return float(task.score(functional_call(task.module, parameters, (batch,)))[0])


def relative_scores(scores: Reals, reference: float) -> Reals:
    """Scores with their log-odds counted from those of ``reference``: in the same order, around one half."""
    if not 0 < reference < 1:
        return scores
    inside = np.clip(scores, _SMALLEST, 1 - _SMALLEST)
    odds = inside / (1 - inside) * (1 - reference) / reference
    return np.where(np.isfinite(scores), odds / (1 + odds), scores)


def auc(scores: ArrayLike, labels: ArrayLike) -> float:
    """The chance that a click scores above a non-click, a tie counting half.

    NaN where it is not defined: with one kind of label only, or with scores that are not finite.
    """
    score, label = np.asarray(scores, dtype=np.float64), np.asarray(labels)
    if score.shape != label.shape:
        raise InputError(f"{score.shape} scores and {label.shape} labels do not belong together")
    if not np.isfinite(score).all():
        return float("nan")
    _, which = np.unique(score, return_inverse=True)
    return auc_from_histograms(np.bincount(which[label == 1]), np.bincount(which[label != 1]))


def auc_from_histograms(clicks: ArrayLike, others: ArrayLike) -> float:
    """The AUC of samples of which only the bin of their score is known: within a bin, all are tied."""
    clicked, passed = (np.asarray(one, dtype=np.float64) for one in (clicks, others))
    bins = max(len(clicked), len(passed))
    clicked, passed = (np.pad(one, (0, bins - len(one))) for one in (clicked, passed))
    pairs = clicked.sum() * passed.sum()
    if pairs == 0:
        return float("nan")
    below = np.cumsum(passed) - passed
    return float((clicked * (below + passed / 2)).sum() / pairs)


def auc_error_bound(clicks: ArrayLike, others: ArrayLike) -> float:
    """How far the AUC from these histograms can be from that of the scores: half the pairs that are tied."""
    clicked, passed = (np.asarray(one, dtype=np.float64) for one in (clicks, others))
    pairs = clicked.sum() * passed.sum()
    return float((clicked * passed).sum() / (2 * pairs)) if pairs else float("nan")


def score_histograms(scores: ArrayLike, labels: ArrayLike, edges: Reals) -> tuple[Indices, Indices]:
    """How many clicks, and how many others, score in each bin. Scores that are not finite are left out."""
    score, label = np.asarray(scores, dtype=np.float64), np.asarray(labels)
    finite = np.isfinite(score)
    which = np.searchsorted(edges, score, side="right")
    clicks, others = (
        np.bincount(which[finite & (label == wanted)], minlength=len(edges) + 1) for wanted in (1, 0)
    )
    return clicks, others
