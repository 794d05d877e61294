"""How sure a model may be, and how much each part of it counts: what validation devices fit to its scores."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from sfsl.arrays import Bits, Reals
from sfsl.errors import InputError

# By name, a part of the log-odds of every sample.
Parts = Mapping[str, Reals]

# A chance counts as no nearer to 0 or 1 than this, which is how finely float32 tells sigmoids apart.
SUREST = 1e-7
# What is believed of scale and shift before any sample is seen: that they are 1 and 0, give or take so much;
# and of parts, that each counts as the others do, give or take so much. Few samples move them little.
_SCALE_DEVIATION, _SHIFT_DEVIATION, _PART_DEVIATION = 0.5, 0.3, 0.3
# A scale is at least this, or the order of scores, and with it the AUC, would be the opposite.
_SMALLEST_SCALE = 0.05
_STEPS = 50
# Parts may be far larger than their sum.
_FARTHEST = 1e6


@dataclass(frozen=True)
class Correction:
    """The log-odds of a model's scores count times ``scale`` and plus ``shift``: training makes a model too
    sure, and samples that it was not trained on say by how much.

    Log-odds that are the sum of parts count by ``parts``, of mean 1: what one of them has only memorized is
    worth little to others. Without any all count alike, and the order of scores stays.
    """

    scale: float
    shift: float
    parts: dict[str, float] = field(default_factory=dict)

    def chances(self, scores: Reals, parts: Parts | None = None) -> Reals:
        """Return the chances of a click that these scores are worth, whose log-odds are the sum of ``parts``
        where these are known; what is not finite stays so."""
        finite = np.isfinite(scores)
        if self.parts and parts is not None and len(scores):
            if set(parts) != set(self.parts):
                raise InputError(
                    f"the scores are corrected by parts of the log-odds ({', '.join(self.parts)}), and the "
                    f"model that gave them has {', '.join(parts) or 'none'}; its code has changed since"
                )
            odds = np.asarray(sum(times * _bounded(parts[name]) for name, times in self.parts.items()))
        else:
            odds = log_odds(np.where(finite, scores, 0.5))
        return np.where(finite, sigmoid(self.scale * np.where(finite, odds, 0.0) + self.shift), scores)


def fit_correction(scores: Reals, labels: Reals, parts: Parts | None = None) -> Correction | None:
    """Return the correction under which these labels are likeliest, held to 1 and 0 by what is believed
    beforehand; None without samples, and where scores are not finite."""
    if not len(scores) or not np.isfinite(scores).all():
        return None
    known = dict(parts or {})
    odds = np.stack([_bounded(one) for one in known.values()] or [log_odds(scores)])
    found = _likeliest(odds, np.asarray(labels) == 1)
    weights, shift = np.maximum(0.0, found[:-1]), float(found[-1])
    scale = float(weights.mean())
    if scale < _SMALLEST_SCALE:  # next to nothing that it says is believed
        return Correction(_SMALLEST_SCALE, shift)
    return Correction(scale, shift, dict(zip(known, (weights / scale).tolist(), strict=bool(known))))


def _likeliest(odds: Reals, clicked: Bits) -> Reals:
    """Return by what each part of the log-odds [parts, samples] is multiplied, and the shift. A part that
    would count below zero counts nothing: there is no reason why the opposite of what it learned should be
    true."""
    count = len(odds)
    inputs, believed = np.vstack([odds, np.ones(odds.shape[1])]), np.append(np.ones(count), 0.0)
    spread = np.zeros((count + 1, count + 1))
    spread[:-1, :-1] = _SCALE_DEVIATION**2 + (count > 1) * _PART_DEVIATION**2 * np.eye(count)
    spread[-1, -1] = _SHIFT_DEVIATION**2
    stiffness, found, free = np.linalg.inv(spread), believed.copy(), np.ones(count + 1, np.bool_)
    for _ in range(_STEPS):
        chance = sigmoid(found @ inputs)
        slope = inputs @ (chance - clicked) + stiffness @ (found - believed)
        bend = (inputs * (chance * (1 - chance))) @ inputs.T + stiffness
        step = np.zeros(count + 1)
        step[free] = np.linalg.solve(bend[np.ix_(free, free)], slope[free])
        farthest = float(np.abs(step).max())
        # Newton's step may go too far where chances are near 0 and 1.
        found = found - step / max(1.0, farthest)
        if farthest < 1e-9:
            below = free & (found < 0)
            below[-1] = False
            if count == 1 or not below.any():
                break
            free &= ~below
            found[below] = 0.0
    return found


def _bounded(part: Reals) -> Reals:
    return np.clip(part, -_FARTHEST, _FARTHEST)


def log_odds(scores: Reals) -> Reals:
    inside = np.clip(np.asarray(scores, dtype=np.float64), SUREST, 1 - SUREST)
    return np.asarray(np.log(inside) - np.log1p(-inside))


def sigmoid(odds: Reals) -> Reals:
    return np.asarray(np.exp(-np.logaddexp(0, -odds)))
