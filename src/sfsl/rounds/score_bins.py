"""The bins in which clients count the scores of held-out samples (spec round 6)."""

from typing import Annotated, Self

import numpy as np
from msgspec import Meta
from numpy.typing import ArrayLike, NDArray

from sfsl.codec import Checked

MAX_BINS = 4096
_FARTHEST = 50.0  # log-odds beyond which no score is told from 0 or 1


class ScoreBins(Checked, frozen=True):
    """Bins of the log-odds of scores from 0 to 1, all equally likely under a logistic distribution.

    A young model scores everything nearly alike, and its scores wander as a whole; bins of equal width
    could not tell them apart. So the bins follow: ``after`` puts them where the last scores were, as
    narrow as these were close together and as wide as they have moved. Both follow from opened sums, and
    cost no privacy.
    """

    bins: Annotated[int, Meta(ge=1, le=MAX_BINS)]
    centre: Annotated[float, Meta(ge=-_FARTHEST, le=_FARTHEST)] = 0.0
    scale: Annotated[float, Meta(ge=1e-6, le=_FARTHEST)] = 1.0

    @property
    def edges(self) -> NDArray[np.float64]:
        """The inner edges, as scores."""
        return np.asarray(1 / (1 + np.exp(-self._log_odds(np.arange(1, self.bins)))), np.float64)

    def after(self, clicks: ArrayLike, others: ArrayLike) -> Self:
        """The bins of the next round, after these were counted."""
        counts = (np.asarray(clicks) + np.asarray(others)).astype(np.float64)
        if not counts.sum():
            return self
        share = counts / counts.sum()
        middle = self._log_odds(np.arange(self.bins) + 0.5)
        centre = float(share @ middle)
        # Scores that share a bin are not known apart; a little of the scale allows for that.
        spread = max(float(np.sqrt(share @ (middle - centre) ** 2)), self.scale / 32)
        scale = 0.6 * spread + 0.8 * abs(centre - self.centre)
        return type(self)(
            bins=self.bins,
            centre=float(np.clip(centre, -_FARTHEST, _FARTHEST)),
            scale=float(np.clip(scale, 1e-6, _FARTHEST)),
        )

    def _log_odds(self, places: ArrayLike) -> NDArray[np.float64]:
        """At these places, counted in bins from the left."""
        share = np.asarray(places, np.float64) / self.bins
        return np.asarray(self.centre + self.scale * np.log(share / (1 - share)), np.float64)
