"""What scores of samples are worth: AUC, log loss, rankings and calibration, beside what needs no model."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from sfsl.arrays import Indices, Reals
from sfsl.errors import InputError

_SMALLEST = 1e-12
# A chance counts as no nearer to 0 or 1 than this, which is how finely float32 tells sigmoids apart: a score
# that is sure and wrong costs 16.1.
_SUREST = 1e-7
# Rankings are judged by their first ten places.
TOP = 10
# An item's popularity counts so many samples at the base rate beside its own.
SMOOTHING = 10
CALIBRATION_BINS = 15


@dataclass(frozen=True)
class Scored:
    """Samples with a model's scores. ``users`` and ``items`` are those of each sample; None where they have
    none. ``chances``: whether a score is the chance of a click, and not only larger where one is likelier."""

    scores: Reals
    labels: Reals
    users: Indices | None = None
    items: Indices | None = None
    chances: bool = True


@dataclass(frozen=True)
class Baselines:
    """What training samples say without a model: their click rate, and that of each item, smoothed."""

    base: float
    items: Reals | None = None

    @classmethod
    def of(cls, labels: ArrayLike, items: Indices | None = None) -> Self:
        """Count the clicks of training samples. An item with n samples and c clicks has the popularity
        (c + m base) / (n + m), where m is ``SMOOTHING``. Where negatives are drawn at random this orders
        items as their number of clicks does, as far as those go."""
        label = np.asarray(labels, dtype=np.float64)
        base = float(label.mean()) if len(label) else float("nan")
        if items is None:
            return cls(base)
        shown, clicked = np.bincount(items), np.bincount(items, weights=label)
        return cls(base, (clicked + SMOOTHING * base) / (shown + SMOOTHING))

    def popularity(self, items: Indices | None) -> Reals | None:
        """Return the popularity of these items, where they are known; that of one without training samples
        is the base rate."""
        if self.items is None or items is None:
            return None
        known = items < len(self.items)
        return np.where(known, np.append(self.items, self.base)[np.where(known, items, -1)], self.base)


@dataclass(frozen=True)
class CalibrationBin:
    """So many samples with neighbouring scores: their mean score, and how often they were clicked."""

    samples: int
    score: float
    rate: float


@dataclass(frozen=True)
class Evaluation:
    """What scores of ``samples`` are worth; None where something is not defined for them.

    ``log_loss`` is the mean cross-entropy in nats. ``ndcg`` and ``recall`` rank each user's samples by score,
    look at the first ten and are means over ``users_ranked``: those with a click and a non-click. A user with
    ten samples or fewer has a recall of 1, whatever the model. The ``base`` figures are those of a model that
    always says ``base_rate``, the training samples' click rate; the ``popularity`` figures, of one that says
    the smoothed click rate of the item among training samples.
    """

    samples: int
    auc: float | None = None
    log_loss: float | None = None
    ndcg: float | None = None
    recall: float | None = None
    users_ranked: int = 0
    base_rate: float | None = None
    base_log_loss: float | None = None
    popularity_auc: float | None = None
    popularity_log_loss: float | None = None
    popularity_ndcg: float | None = None
    popularity_recall: float | None = None
    calibration: tuple[CalibrationBin, ...] = ()


def evaluate(scored: Scored, baselines: Baselines | None = None) -> Evaluation:
    """Return what scores are worth, and what the baselines are worth on the same samples."""
    scores, labels = scored.scores, scored.labels
    ndcg, recall, ranked = rank(scores, labels, scored.users)
    found = {"auc": auc(scores, labels), "ndcg": ndcg, "recall": recall}
    if scored.chances:
        found["log_loss"] = log_loss(scores, labels)
    if scored.chances and baselines is not None:
        found["base_rate"] = baselines.base
        found["base_log_loss"] = log_loss(np.full(len(labels), baselines.base), labels)
        popular = baselines.popularity(scored.items)
        if popular is not None:
            found["popularity_auc"] = auc(popular, labels)
            found["popularity_log_loss"] = log_loss(popular, labels)
            found["popularity_ndcg"], found["popularity_recall"], _ = rank(popular, labels, scored.users)
    return Evaluation(
        samples=len(labels),
        users_ranked=ranked,
        calibration=calibrate(scores, labels) if scored.chances else (),
        **{name: one for name, one in found.items() if np.isfinite(one)},
    )


def log_loss(scores: ArrayLike, labels: ArrayLike) -> float:
    """Return the mean cross-entropy, in nats, of scores that are chances of a click.

    It is NaN without samples, and with scores that are not finite. Chances count as within 1e-7 to 1 - 1e-7.
    """
    score, label = _paired(scores, labels)
    if not len(score) or not np.isfinite(score).all():
        return float("nan")
    chance = np.clip(score, _SUREST, 1 - _SUREST)
    return float(-(label * np.log(chance) + (1 - label) * np.log1p(-chance)).mean())


def rank(
    scores: ArrayLike, labels: ArrayLike, users: Indices | None, *, top: int = TOP
) -> tuple[float, float, int]:
    """Return NDCG and recall of the ``top`` samples of each user, and over how many users they are means.

    Users without a click, or with nothing but clicks, cannot be ranked well or badly and do not count. Equal
    scores are worth their mean over every order they may stand in: the order of the file, in which negatives
    often stand behind their click, says nothing. NaN where nobody counts, or a score is not finite.
    """
    score, label = _paired(scores, labels)
    if users is None or not len(score) or not np.isfinite(score).all():
        return float("nan"), float("nan"), 0
    order = np.lexsort((-score, users))
    score, user, clicked = score[order], users[order], (label[order] == 1).astype(np.float64)
    fresh = np.append(True, user[1:] != user[:-1])
    first = np.flatnonzero(fresh)
    size = np.diff(np.append(first, len(user)))
    place = np.arange(len(user)) - np.repeat(first, size)
    tied = np.flatnonzero(fresh | np.append(True, score[1:] != score[:-1]))
    ties = np.diff(np.append(tied, len(user)))
    clicks = np.add.reduceat(clicked, first)
    counted = (clicks > 0) & (clicks < size)
    if not counted.any():
        return float("nan"), float("nan"), 0

    def gained(worth: Reals) -> Reals:
        mean = np.repeat(np.add.reduceat(worth, tied) / ties, ties)
        return np.asarray(np.add.reduceat(clicked * mean, first)[counted])

    inside, discount = place < top, 1 / np.log2(np.arange(top) + 2)
    best = np.cumsum(discount)[np.minimum(clicks[counted].astype(np.int64), top) - 1]
    ndcg = gained(np.where(inside, discount[np.minimum(place, top - 1)], 0.0)) / best
    recall = gained(inside.astype(np.float64)) / clicks[counted]
    return float(ndcg.mean()), float(recall.mean()), int(counted.sum())


def calibrate(
    scores: ArrayLike, labels: ArrayLike, bins: int = CALIBRATION_BINS
) -> tuple[CalibrationBin, ...]:
    """Return what scores say and what came of it, in at most ``bins`` parts of about as many samples each.

    Equal scores are in one part. There are none without samples, or with scores that are not finite.
    """
    score, label = _paired(scores, labels)
    if not len(score) or not np.isfinite(score).all():
        return ()
    edges = np.unique(np.quantile(score, np.arange(1, bins) / bins))
    which = np.searchsorted(edges, score, side="right")
    counts = np.bincount(which, minlength=bins)
    sums = [np.bincount(which, weights=one, minlength=bins) for one in (score, label)]
    return tuple(
        CalibrationBin(int(count), float(said / count), float(came / count))
        for count, said, came in zip(counts, *sums, strict=True)
        if count
    )


def _paired(scores: ArrayLike, labels: ArrayLike) -> tuple[Reals, Reals]:
    score, label = np.asarray(scores, dtype=np.float64), np.asarray(labels, dtype=np.float64)
    if score.shape != label.shape:
        raise InputError(f"{score.shape} scores and {label.shape} labels do not belong together")
    return score, label


def auc(scores: ArrayLike, labels: ArrayLike) -> float:
    """Return the chance that a click scores above a non-click, a tie counting half.

    It is NaN where it is not defined: with one kind of label only, or with scores that are not finite.
    """
    score, label = _paired(scores, labels)
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
