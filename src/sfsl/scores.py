"""What scores of samples are worth: AUC, log loss, rankings and calibration, beside what needs no model."""

from dataclasses import dataclass, field
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from sfsl.arrays import Indices, Reals, find
from sfsl.correction import SUREST, Correction, Parts, fit_correction, sigmoid
from sfsl.errors import InputError

_SMALLEST = 1e-12
# A score that is sure and wrong costs 16.1.
_FARTHEST = -float(np.log(SUREST))
# Rankings are judged by their first ten places.
TOP = 10
# An item's popularity counts so many samples at the base rate beside its own.
SMOOTHING = 10
CALIBRATION_BINS = 15


@dataclass(frozen=True)
class Scored:
    """Samples with a model's scores. ``users`` and ``items`` are those of each sample; None where they have
    none. ``chances``: whether a score is the chance of a click, and not only larger where one is likelier.
    ``parts`` are those of the log-odds, by name, of a model whose log-odds have any."""

    scores: Reals
    labels: Reals
    users: Indices | None = None
    items: Indices | None = None
    chances: bool = True
    parts: Parts = field(default_factory=dict)


@dataclass(frozen=True)
class Baselines:
    """What training samples say without a model: their click rate and smoothed ``rates`` of ``items``."""

    base: float
    items: Indices | None = None
    rates: Reals | None = None

    @classmethod
    def of(cls, labels: ArrayLike, items: Indices | None = None) -> Self:
        """Count the clicks of training samples. An item with n samples and c clicks has the popularity
        (c + m base) / (n + m), where m is ``SMOOTHING``. Where negatives are drawn at random this orders
        items as their number of clicks does, as far as those go."""
        label = np.asarray(labels, dtype=np.float64)
        base = float(label.mean()) if len(label) else float("nan")
        if items is None:
            return cls(base)
        rows, which = np.unique(items, return_inverse=True)  # there may be billions; few of them were seen
        shown, clicked = np.bincount(which), np.bincount(which, weights=label)
        return cls(base, rows, (clicked + SMOOTHING * base) / (shown + SMOOTHING))

    def popularity(self, items: Indices | None) -> Reals | None:
        """Return the popularity of these items, where they are known; that of one without training samples
        is the base rate."""
        if self.items is None or self.rates is None or items is None:
            return None
        at, seen = find(items, self.items)
        return np.append(self.rates, self.base)[np.where(seen, at, -1)]


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
    the smoothed click rate of the item among training samples. ``correction`` is what the scores were
    corrected by.
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
    correction: Correction | None = None


def evaluate(
    scored: Scored, baselines: Baselines | None = None, correction: Correction | None = None
) -> Evaluation:
    """Return what scores are worth, corrected where there is a correction, and what the baselines are worth
    on the same samples."""
    scores, labels = scored.scores, scored.labels
    if correction is not None:
        scores = correction.chances(scores, scored.parts)
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
        correction=correction,
        **{name: one for name, one in found.items() if np.isfinite(one)},
    )


def correction_of(scored: Scored) -> Correction | None:
    """Return the correction that these samples fit; None where scores are no chances."""
    return fit_correction(scored.scores, scored.labels, scored.parts) if scored.chances else None


def unbeaten(found: Evaluation) -> list[str]:
    """Name the baselines than which a model is no better, and by which figure."""
    by = {
        "AUC": _below(found.popularity_auc, found.auc),
        "log loss": _below(found.log_loss, found.popularity_log_loss),
    }
    lost = " and ".join(name for name, won in by.items() if won is False)
    names = [f"item popularity ({lost})"] if lost else []
    return [*names, "the base rate"] if _below(found.log_loss, found.base_log_loss) is False else names


def _below(low: float | None, high: float | None) -> bool | None:
    return None if low is None or high is None else low < high


def verdict(found: Evaluation, rounds: int, *, of: int = 0) -> str:
    """Say in one sentence what a model is worth after so many rounds, and whether it beats its baselines.
    ``of``: the rounds of its run, where it is the best of them and not the last."""
    if found.auc is None:
        return ""
    said = f"After {rounds:,} round{'' if rounds == 1 else 's'} the model"
    if of > rounds:
        said = f"The best model, of round {rounds:,} of {of:,},"
    said += f" reaches AUC {found.auc:.4f}"
    if found.popularity_auc is not None:
        said += f" (item popularity: {found.popularity_auc:.4f})"
    if found.log_loss is None:
        return said + "."
    said += f" and log loss {found.log_loss:.4f}"
    known = {"base rate": found.base_log_loss, "item popularity": found.popularity_log_loss}
    beside = [f"{name}: {one:.4f}" for name, one in known.items() if one is not None]
    if beside:
        lost, both = unbeaten(found), "both" if len(beside) > 1 else "it"
        said += f" ({', '.join(beside)}): " + (
            f"no better than {' and '.join(lost)}" if lost else f"better than {both}"
        )
    return said + "."


def log_loss(scores: ArrayLike, labels: ArrayLike) -> float:
    """Return the mean cross-entropy, in nats, of scores that are chances of a click.

    It is NaN without samples, and with scores that are not finite. Chances count as within 1e-7 to 1 - 1e-7.
    """
    score, label = _paired(scores, labels)
    if not len(score) or not np.isfinite(score).all():
        return float("nan")
    chance = np.clip(score, SUREST, 1 - SUREST)
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
    # Shares, also where the mean of equal parts is a last bit above them.
    return min(1.0, float(ndcg.mean())), min(1.0, float(recall.mean())), int(counted.sum())


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


def log_loss_from_histograms(
    clicks: ArrayLike, others: ArrayLike, edges: Reals, middles: Reals
) -> tuple[float, float]:
    """Return the log loss of samples of which only the bin of their log-odds is known, all of them moved by
    the one constant that fits them best, and how far that may be off.

    Log-odds that are counted from a reference leave the constant open. So this is what the order and the
    spread of scores are worth, and at most the log loss of the scores themselves. Bins lie between ``edges``,
    of which the first and the last are infinite; samples count as at the ``middles``, and may lie anywhere
    in their bin that is within the chances ``log_loss`` tells apart. NaN with one kind of label only.
    """
    clicked, passed = (np.asarray(one, dtype=np.float64) for one in (clicks, others))
    if not clicked.sum() or not passed.sum():
        return float("nan"), float("nan")
    inside = np.clip(edges, min(-_FARTHEST, middles[0]), max(_FARTHEST, middles[-1]))
    low, high = inside[:-1], inside[1:]
    found, constant = _fitted_log_loss(clicked, passed, middles, middles)
    least, _ = _fitted_log_loss(clicked, passed, high, low)  # every sample lies where it suits its label
    most = _log_loss_at(clicked, passed, low, high, constant)
    return found, max(0.0, most - found, found - least)


def _fitted_log_loss(
    clicked: Reals, passed: Reals, of_clicks: Reals, of_others: Reals
) -> tuple[float, float]:
    """Return the log loss at the best constant, and that: as many clicks are expected there as there are."""
    low, high = -4 * _FARTHEST, 4 * _FARTHEST
    for _ in range(60):
        constant = (low + high) / 2
        missed = clicked @ sigmoid(-of_clicks - constant) - passed @ sigmoid(of_others + constant)
        low, high = (constant, high) if missed > 0 else (low, constant)
    return _log_loss_at(clicked, passed, of_clicks, of_others, constant), constant


def _log_loss_at(clicked: Reals, passed: Reals, of_clicks: Reals, of_others: Reals, constant: float) -> float:
    costs = clicked @ np.logaddexp(0, -of_clicks - constant) + passed @ np.logaddexp(0, of_others + constant)
    return float(costs / (clicked.sum() + passed.sum()))


def rate_log_loss(clicks: float, others: float) -> float:
    """Return the log loss of always saying the click rate of the very samples that are judged."""
    rate = clicks / (clicks + others) if clicks + others else float("nan")
    return rate * log_loss([rate], [1]) + (1 - rate) * log_loss([rate], [0])


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
