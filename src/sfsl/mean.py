"""The mean of float vectors from a secure sum, with a bound on what quantization changes in it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfsl.crypto.secret import Randomness, SystemRandomness
from sfsl.errors import InputError, NotFinite, ParameterError
from sfsl.secagg import Cost, aggregate
from sfsl.secagg.facade import SumOptions
from sfsl.submodel import Quantization

# Relative error of one operation on doubles.
_HALF_ULP = 2.0**-53
# A grid finer than this would be of numbers that have fewer digits, and the bound would not hold.
_LEAST_CLIP = 1e-280


@dataclass(frozen=True)
class SecureMean:
    """``mean`` is that of the vectors of ``survivors``, each value cut to ±``clip`` first.

    It is at most ``error_bound`` from the exact mean of what was cut, in every coordinate: each client
    rounds to a grid, by chance up or down. ``clipped`` counts the values of survivors that were cut.

    >>> import sfsl
    >>> result = sfsl.secure_mean({"ann": [0.5], "bob": [3.0]}, clip=1.0)
    >>> bool(abs(result.mean[0] - 0.75) <= result.error_bound), result.clipped
    (True, 1)
    """

    mean: NDArray[np.float64]
    error_bound: float
    clipped: int
    survivors: frozenset[str]
    cost: Cost


def secure_mean(
    vectors: Mapping[str, ArrayLike],
    *,
    clip: float,
    weights: Mapping[str, int] | None = None,
    max_weight: int | None = None,
    ring: Literal["z32", "z64"] = "z32",
    randomness: Randomness | None = None,
    **options: Unpack[SumOptions],
) -> SecureMean:
    """The mean of float vectors, one a client, without anyone seeing one of them.

    Values are cut to ±``clip``, which is public, and rounded to the finest grid that the ring has room for
    ("z64" has a finer one). ``weights`` are whole numbers, such as counts of samples; they stay as hidden as
    the vectors, only their sum is seen. ``max_weight``, also public: whoever weighs more counts as this
    (default: the largest given). ``options`` are as in ``aggregate``: threshold, neighbours, active, and who
    is dropped before what.

    >>> import sfsl
    >>> speeds = {"ann": [0.25, -0.5], "bob": [0.75, 0.7], "cyd": [9.0, 0.0]}
    >>> result = sfsl.secure_mean(speeds, clip=1.0, threshold=2, dropped_before_upload={"cyd"})
    >>> result.mean.round(6).tolist(), sorted(result.survivors), result.error_bound < 1e-8
    ([0.5, 0.1], ['ann', 'bob'], True)
    """
    given = {name: _numbers(name, vector) for name, vector in vectors.items()}
    if len({len(vector) for vector in given.values()}) > 1:
        raise InputError(f"vectors of different lengths: {sorted({len(one) for one in given.values()})}")
    counted = _weights(given, weights)
    largest = max([1, *counted.values()]) if max_weight is None else max_weight
    if not clip >= _LEAST_CLIP:
        raise ParameterError(f"a clip of {clip:g}: at least {_LEAST_CLIP:g}, below which numbers lose digits")
    quantization = Quantization.finest(ring, cohort=max(1, len(given)), clip=clip, max_weight=largest)
    source = randomness or SystemRandomness()
    found = aggregate(
        {name: quantization.encode_dense(vector, counted[name], source) for name, vector in given.items()},
        ring=ring,
        wrap=True,  # numbers below zero stand at the ring's upper end; quantization leaves room for the sum
        randomness=source,
        **options,
    )
    sums = quantization.decode(found.total[None])
    total = int(sums.weights[0])
    if not total:
        raise InputError("the clients that were left have weight 0 together: there is no mean")
    clipped = sum(int((np.abs(given[name]) > clip).sum()) for name in found.survivors)
    bound = _bound(quantization, len(found.survivors), total)
    return SecureMean(sums.values[0] / total, bound, clipped, found.survivors, found.cost)


def _bound(quantization: Quantization, survivors: int, weight: int) -> float:
    """Less than one step for each client, divided by the weight; and what doubles lose on the way. A client's
    words are off by less than one step, and by a few parts in 2^53 of its weighted value, which is at most
    weight x clip; the sum is exact, and dividing it costs as little again."""
    return survivors * quantization.unit / weight + 16 * _HALF_ULP * quantization.clip


def _numbers(name: str, vector: ArrayLike) -> NDArray[np.float64]:
    try:
        values = np.asarray(vector)
    except ValueError as error:
        raise InputError(f"client {name!r}: not a vector of numbers ({error})") from None
    if values.ndim != 1 or (values.size and values.dtype.kind not in "fiu"):
        what = f"{values.dtype} of shape {values.shape}"
        raise InputError(f"client {name!r}: {what}, not a flat vector of numbers")
    values = values.astype(np.float64)
    if not np.isfinite(values).all():
        raise NotFinite(f"client {name!r}: {int((~np.isfinite(values)).sum())} values are NaN or infinite")
    return values


def _weights(given: Mapping[str, object], weights: Mapping[str, int] | None) -> dict[str, int]:
    if weights is None:
        return dict.fromkeys(given, 1)
    if weights.keys() != given.keys():
        either = sorted(weights.keys() ^ given.keys())
        raise InputError(f"vectors and weights name different clients: {either}")
    for name, weight in weights.items():
        if isinstance(weight, bool) or not isinstance(weight, int | np.integer) or weight < 0:
            raise ParameterError(f"client {name!r}: a weight is a whole number from 0, not {weight!r}")
    return {name: int(weight) for name, weight in weights.items()}
