"""Weighted updates as numbers of a ring, and their sums back (spec submodel 3).

Weighting comes first, then rounding. In the other order, which is the paper's (App. B), every coordinate
of a row with one owner would be divisible by the owner's count, so that its sum would betray the owner's
exact update; and the rounding error would be multiplied by the count.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Literal, Self

import numpy as np
from msgspec import Meta
from numpy.typing import ArrayLike

from sfsl.arrays import Counts, Reals, whole_numbers
from sfsl.codec import Checked
from sfsl.crypto.ring import Z32, Ring, Words, ring_named, uniform
from sfsl.crypto.secret import Randomness
from sfsl.errors import InputError, NotFinite, ParameterError
from sfsl.submodel.tables import RowSet

# Beyond this a double no longer tells neighbouring steps apart, so finer steps would be of no use.
_FINEST = 2**52
_WORD_VALUES = 2.0**32


@dataclass(frozen=True)
class WeightedSums:
    """A decoded sum, row by row: the sum of weight x delta, and the sum of weights.

    ``refused`` rows had a sum that no honest cohort can make; they are here with weight zero. ``noise``: the
    deviation of the noise that clients added to each value together, which is public; 0 is none. ``said``:
    the square of one owner's move at each place of a row, as far as it is seen under noise.
    """

    values: Reals
    weights: Counts
    refused: int
    noise: float = 0.0
    said: Reals | None = None

    def __add__(self, other: Self) -> Self:
        """Add the sums of other clients, over the same rows."""
        return type(self)(
            self.values + other.values,
            self.weights + other.weights,
            self.refused + other.refused,
            math.hypot(self.noise, other.noise),
        )

    def over(self, own: RowSet, rows: RowSet) -> Self:
        """Return the same sums over more rows, which ``own`` are some of; nobody has moved the others."""
        at = rows.positions_of(own.rows)
        values = np.zeros((len(rows), self.values.shape[1]))
        weights = np.zeros(len(rows), np.int64)
        values[at], weights[at] = self.values, self.weights
        return type(self)(values, weights, self.refused, self.noise)


class Quantization(Checked, frozen=True):
    """How one part of the update, the rows or the dense rest, becomes words. Public, the same for all.

    A delta is clipped to ±``clip``, in steps of clip / ``levels``. A weight is at most ``max_weight``.
    """

    ring: Literal["z32", "z64"]
    cohort: Annotated[int, Meta(ge=1, le=2**16)]
    clip: Annotated[float, Meta(gt=0, le=1e6)]
    levels: Annotated[int, Meta(ge=1, le=_FINEST)]
    max_weight: Annotated[int, Meta(ge=1, le=2**32)]

    def require_sound(self) -> None:
        largest = self.cohort * self.max_weight * self.levels
        half = self._ring.modulus // 2
        if largest >= half or self.max_weight * self.levels > _FINEST:
            raise ParameterError(
                f"a sum of {self.cohort} clients x weight {self.max_weight} x {self.levels} levels needs "
                f"numbers up to {largest}; {self.ring} holds {half - 1}, and one client at most 2^52. Lower "
                "the levels (Quantization.finest), the largest weight or the cohort, or take the ring z64"
            )

    @classmethod
    def finest(cls, ring: Literal["z32", "z64"], *, cohort: int, clip: float, max_weight: int) -> Self:
        """Return the quantization with the most levels that cannot overflow."""
        room = (ring_named(ring).modulus // 2 - 1) // max(cohort, 1)
        levels = min(room, _FINEST) // max(max_weight, 1)
        return cls(ring=ring, cohort=cohort, clip=clip, levels=max(levels, 1), max_weight=max_weight)

    @property
    def unit(self) -> float:
        return self.clip / self.levels

    @property
    def _ring(self) -> Ring:
        return ring_named(self.ring)

    def encode(self, deltas: ArrayLike, weights: ArrayLike, randomness: Randomness) -> Words:
        """Encode rows of deltas [n, width] and their weights [n] as words [n, width + 1], weights last.

        Weights above ``max_weight`` are capped, in the product too: this is what makes overflow impossible.
        """
        values = _numbers(deltas)
        capped = np.minimum(whole_numbers(weights, "weights"), self.max_weight)
        if values.ndim != 2 or capped.shape != values.shape[:1]:
            raise InputError(f"deltas of shape {values.shape} with weights of shape {capped.shape}")
        # Both factors are at most what they are meant to be even after rounding, so the product is too.
        scaled = np.clip(values, -self.clip, self.clip) / self.clip
        scaled *= (capped * self.levels)[:, None]
        words = np.empty((len(values), values.shape[1] + 1), np.int64)
        words[:, :-1] = round_stochastic(scaled, randomness)
        words[:, -1] = capped
        return words.astype(self._ring.dtype)

    def encode_dense(self, delta: ArrayLike, weight: int, randomness: Randomness) -> Words:
        """Encode the dense part, which is one long row."""
        values = _numbers(delta)
        if values.ndim != 1:
            raise InputError(f"a dense part of shape {values.shape}; it is one flat vector")
        words: Words = self.encode(values[None], [weight], randomness)[0]
        return words

    def decode(self, total: ArrayLike, contributors: ArrayLike | None = None) -> WeightedSums:
        """Decode summed words [n, width + 1]. What no honest cohort can make is refused or cut down.

        ``contributors`` says how many clients are in each row's sum, where that is known.
        """
        words = self._ring.vector(total, "a sum of updates")
        if words.ndim != 2 or words.shape[1] < 1:
            raise InputError(f"a sum of updates has rows of parameters and a weight, not shape {words.shape}")
        weights = words[:, -1].astype(np.int64)
        known = np.full(len(weights), self.cohort) if contributors is None else contributors
        clients = whole_numbers(known, "contributors")
        if clients.shape != weights.shape:
            raise InputError(f"contributors of shape {clients.shape} for a sum of {len(weights)} rows")
        impossible = (weights < 0) | (weights > np.minimum(clients, self.cohort) * self.max_weight)
        weights[impossible] = 0
        signed = words[:, :-1].view(f"<i{self._ring.word_bytes}").astype(np.float64)
        # Honest deltas are within ±clip, so their weighted sum is within ±weight x clip.
        bound = (weights * self.levels).astype(np.float64)[:, None]
        values = np.clip(signed, -bound, bound) * self.unit
        return WeightedSums(values, weights, int(impossible.sum()))


def round_stochastic(values: Reals, randomness: Randomness) -> Counts:
    """Round each value to one of its two neighbouring whole numbers; the expectation is the value.

    The chance of rounding up is the fraction, to 2^-32. A whole number stays what it is.
    """
    below = np.floor(values)
    draws = uniform(Z32, values.size, randomness).reshape(values.shape)
    return below.astype(np.int64) + (draws < (values - below) * _WORD_VALUES)


def _numbers(given: ArrayLike) -> Reals:
    try:
        array = np.asarray(given)
    except (ValueError, OverflowError) as error:
        raise InputError(f"not an array of numbers ({error})") from None
    if array.dtype.kind != "f":
        raise InputError(f"an update is an array of floating-point numbers, not of {array.dtype}")
    if bad := int((~np.isfinite(array)).sum()):
        raise NotFinite(
            f"{bad} of {array.size} numbers of this update are NaN or infinite; "
            "nothing was encoded. Lower the learning rate or look at the data"
        )
    return array.astype(np.float64)
