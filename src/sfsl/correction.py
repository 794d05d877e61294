"""How sure a model may be: one line through the log-odds of its scores, which validation devices fit."""

from dataclasses import dataclass

import numpy as np

from sfsl.arrays import Reals

# A chance counts as no nearer to 0 or 1 than this, which is how finely float32 tells sigmoids apart.
SUREST = 1e-7
# What is believed of scale and shift before any sample is seen: that they are 1 and 0, give or take so much.
# Few samples move them little.
_SCALE_DEVIATION, _SHIFT_DEVIATION = 0.5, 0.3
# A scale is at least this, or the order of scores, and with it the AUC, would be another.
_SMALLEST_SCALE = 0.05
_STEPS = 50


@dataclass(frozen=True)
class Correction:
    """The log-odds of a model's scores count times ``scale`` and plus ``shift``: training makes a model too
    sure, and samples that it was not trained on say by how much. The order of scores stays."""

    scale: float
    shift: float

    def chances(self, scores: Reals) -> Reals:
        """Return the chances of a click that these scores are worth; what is not finite stays so."""
        finite = np.isfinite(scores)
        odds = self.scale * log_odds(np.where(finite, scores, 0.5)) + self.shift
        return np.where(finite, sigmoid(odds), scores)


def fit_correction(scores: Reals, labels: Reals) -> Correction | None:
    """Return the correction under which these labels are likeliest, held to 1 and 0 by what is believed
    beforehand; None without samples, and where scores are not finite."""
    if not len(scores) or not np.isfinite(scores).all():
        return None
    inputs, clicked = np.stack([log_odds(scores), np.ones(len(scores))]), np.asarray(labels) == 1
    found = believed = np.array([1.0, 0.0])
    stiffness = np.diag([_SCALE_DEVIATION**-2, _SHIFT_DEVIATION**-2])
    for _ in range(_STEPS):
        chance = sigmoid(found @ inputs)
        slope = inputs @ (chance - clicked) + stiffness @ (found - believed)
        step = np.linalg.solve((inputs * (chance * (1 - chance))) @ inputs.T + stiffness, slope)
        farthest = float(np.abs(step).max())
        found = found - step / max(
            1.0, farthest
        )  # Newton's step may go too far where chances are near 0 and 1
        if farthest < 1e-9:
            break
    return Correction(max(_SMALLEST_SCALE, float(found[0])), float(found[1]))


def log_odds(scores: Reals) -> Reals:
    inside = np.clip(np.asarray(scores, dtype=np.float64), SUREST, 1 - SUREST)
    return np.asarray(np.log(inside) - np.log1p(-inside))


def sigmoid(odds: Reals) -> Reals:
    return np.asarray(np.exp(-np.logaddexp(0, -odds)))
