"""What honest clients can have said together in a sum over hot rows (spec hot 9.1). What goes beyond is cut.

A client's vector has a bounded norm, but only honest clients keep to it: nobody can look under masks. The sum
can be looked at: a liar is then worth no more than what owners could have said together.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from sfsl.arrays import Counts, Reals
from sfsl.rounds.hot import SCORES_SHARE, UPDATE_SHARE, HotParams

# Noise of honest clients goes beyond what is allowed for it with a chance of at most 2^-40: for all single
# rows of a round, for all of them together, and for the histograms.
_RARE = 40 * math.log(2)
_LEAST = 1e-300


@dataclass(frozen=True)
class Part:
    """Sums of rows, of one width, and how many clients each is the sum of."""

    sums: Reals
    owners: Counts


@dataclass(frozen=True)
class Bounds:
    """What so many clients can have added up to, with noise of this deviation in each number."""

    params: HotParams
    clients: int
    noise: float

    def histograms(self, sums: Reals) -> Reals:
        """Return the sums of histograms, the longest cut until all clients together can have said them."""
        longest = self.clients * self._said(SCORES_SHARE, sums.size)
        longest += self.noise * _noise_norm(np.ones(sums.size))
        most = _level(np.abs(sums), longest)
        return np.clip(sums, -most, most)

    def model(self, parts: Sequence[Part]) -> list[Reals]:
        """Return the sums of all parts of the model, cut twice: each row to what its owners can have said of
        it alone, and the longest rows until all together are what the clients can have said.

        An owner's moves of all rows have a norm of at most its share of the clip. So by Cauchy's inequality
        squares of sums, each over its owners, add up to no more than one such square for each client.
        """
        rows = sum(len(one.sums) for one in parts)
        cut = [one.sums * self._alone(one, rows)[:, None] for one in parts]
        of_owner = np.concatenate(
            [np.linalg.norm(sums, axis=1) / np.sqrt(one.owners) for one, sums in zip(parts, cut, strict=True)]
        )
        longest = _level(of_owner, self._together(parts))
        shares = np.split(longest / np.maximum(of_owner, max(longest, _LEAST)), _ends(parts))
        return [sums * share[:, None] for sums, share in zip(cut, shares, strict=False)]

    def _alone(self, part: Part, rows: int) -> Reals:
        """Return which share of each row's sum its owners can have said."""
        width = part.sums.shape[1]
        longest = part.owners * self._said(UPDATE_SHARE, width)
        longest = longest + self.noise * _noise_norm(np.ones(width), math.log(max(1, rows)))
        share: Reals = np.minimum(1.0, longest / np.maximum(np.linalg.norm(part.sums, axis=1), _LEAST))
        return share

    def _together(self, parts: Sequence[Part]) -> float:
        said = math.sqrt(self.clients) * self._said(UPDATE_SHARE, self.params.length)
        squares = [np.repeat(1 / one.owners, one.sums.shape[1]) for one in parts]
        return said + self.noise * _noise_norm(np.concatenate(squares))

    def _said(self, share: float, words: int) -> float:
        """Return the largest norm of so many numbers of an honest client, whose norm is this share of the
        clip before it rounds them."""
        return self.params.clip * (share + math.sqrt(words) / self.params.levels)


def _noise_norm(weights: Reals, rarer: float = 0.0) -> float:
    """Return what the root of a weighted sum of squares of unit noise exceeds with a chance of 2^-40, or
    ``rarer`` by so many powers of e (Hsu, Kakade and Zhang 2012, which holds for subgaussian noise)."""
    if not weights.size:
        return 0.0
    rare = _RARE + rarer
    spread = 2 * math.sqrt(float(np.square(weights).sum()) * rare)
    return math.sqrt(float(weights.sum()) + spread + 2 * float(weights.max()) * rare)


def _level(lengths: Reals, norm: float) -> float:
    """Return the length to which the longest of ``lengths`` have to be cut for all to have this norm."""
    ordered = np.sort(lengths)
    squares = np.square(ordered)
    before = np.concatenate([[0.0], np.cumsum(squares)])[:-1]
    # With all from here on as long as this one, the norm is still too large: so the level is below it.
    over = np.flatnonzero(before + squares * np.arange(len(ordered), 0, -1) > norm**2)
    if not len(over):
        return float(ordered[-1]) if len(ordered) else 0.0
    first = int(over[0])
    return math.sqrt(max(0.0, norm**2 - float(before[first])) / (len(ordered) - first))


def _ends(parts: Sequence[Part]) -> list[int]:
    return list(accumulate(len(one.sums) for one in parts))
