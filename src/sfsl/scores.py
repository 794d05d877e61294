"""Scores of samples as counts in bins, and the AUC that follows from them."""

import numpy as np
from numpy.typing import ArrayLike

from sfsl.arrays import Indices, Reals
from sfsl.errors import InputError

_SMALLEST = 1e-12


def auc(scores: ArrayLike, labels: ArrayLike) -> float:
    """Return the chance that a click scores above a non-click, a tie counting half.

    It is NaN where it is not defined: with one kind of label only, or with scores that are not finite.
    """
    score, label = np.asarray(scores, dtype=np.float64), np.asarray(labels)
    if score.shape != label.shape:
        raise InputError(f"{score.shape} scores and {label.shape} labels do not belong together")
    if not np.isfinite(score).all():
        return float("nan")
    _, which = np.unique(score, return_inverse=True)
    return auc_from_histograms(np.bincount(which[label == 1]), np.bincount(which[label != 1]))


def auc_from_histograms(clicks: ArrayLike, others: ArrayLike) -> float:
    """Return the AUC of samples of which only the bin of their score is known: within a bin, all are tied."""
    clicked, passed = (np.asarray(one, dtype=np.float64) for one in (clicks, others))
    bins = max(len(clicked), len(passed))
    clicked, passed = (np.pad(one, (0, bins - len(one))) for one in (clicked, passed))
    pairs = clicked.sum() * passed.sum()
    if pairs == 0:
        return float("nan")
    below = np.cumsum(passed) - passed
    return float((clicked * (below + passed / 2)).sum() / pairs)


def auc_error_bound(clicks: ArrayLike, others: ArrayLike) -> float:
    """Bound how far the AUC of these histograms is from that of the scores: half the pairs that are tied."""
    clicked, passed = (np.asarray(one, dtype=np.float64) for one in (clicks, others))
    pairs = clicked.sum() * passed.sum()
    return float((clicked * passed).sum() / (2 * pairs)) if pairs else float("nan")


def relative_scores(scores: Reals, reference: float) -> Reals:
    """Count the log-odds of scores from those of ``reference``: in the same order, around one half."""
    if not 0 < reference < 1:
        return scores
    inside = np.clip(scores, _SMALLEST, 1 - _SMALLEST)
    odds = inside / (1 - inside) * (1 - reference) / reference
    return np.where(np.isfinite(scores), odds / (1 + odds), scores)


def score_histograms(scores: ArrayLike, labels: ArrayLike, edges: Reals) -> tuple[Indices, Indices]:
    """Count the clicks and the others that score in each bin. Scores that are not finite are left out."""
    score, label = np.asarray(scores, dtype=np.float64), np.asarray(labels)
    finite = np.isfinite(score)
    which = np.searchsorted(edges, score, side="right")
    clicks, others = (
        np.bincount(which[finite & (label == wanted)], minlength=len(edges) + 1) for wanted in (1, 0)
    )
    return clicks, others
