"""From sums to moves: how far each row goes in a round (spec submodel 4)."""

import math
from typing import Annotated, Literal

import numpy as np
from msgspec import Meta
from numpy.typing import ArrayLike

from sfsl.arrays import Counts, Reals, whole_numbers
from sfsl.codec import Checked
from sfsl.errors import ParameterError
from sfsl.submodel.quantize import WeightedSums


class Averaging(Checked, frozen=True):
    """A row moves by the sum of weight x delta over max(sum of weights, ``kappa``).

    ``weights``: ``samples``, a client counts as often as its samples touch the row (paper Alg. 1);
    ``owners``, each client that trained the row counts once; ``dataset``, a client counts on every row it
    asked for as often as it has samples, as in federated averaging of a full model. ``kappa`` holds back
    rows that few clients trained: they are the noisy ones, and the ones a single client can poison.
    ``max_move`` bounds the Euclidean length of a row's move in one round.
    """

    weights: Literal["samples", "owners", "dataset"] = "owners"
    kappa: Annotated[float, Meta(ge=1)] = 5
    max_move: Annotated[float, Meta(gt=0)] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not math.isfinite(self.kappa) or not math.isfinite(self.max_move or 0):
            raise ParameterError("Averaging: kappa and max_move are finite numbers")

    def row_weights(self, counts: ArrayLike, samples: int) -> Counts:
        """What a client says its rows weigh, from how many of its samples touch each, and has in all."""
        touching = whole_numbers(counts, "counts")
        if self.weights == "dataset":
            return np.full_like(touching, samples)
        return touching if self.weights == "samples" else (touching > 0).astype(np.int64)

    def idle_weight(self, samples: int) -> int:
        """What a row weighs that a client asked for and did not train."""
        return samples if self.weights == "dataset" else 0

    def largest_weight(self, max_count: int) -> int:
        return 1 if self.weights == "owners" else max_count

    def moves(self, sums: WeightedSums) -> Reals:
        """Row by row; a row whose weights sum to zero does not move."""
        moves = sums.values / np.maximum(sums.weights, self.kappa)[:, None]
        moves[sums.weights == 0] = 0
        if self.max_move is not None:
            length = np.linalg.norm(moves, axis=1, keepdims=True)
            moves *= self.max_move / np.maximum(length, self.max_move)
        return moves


# Algorithm 1 of the paper for rows, and everybody's choice for the dense part, which all clients train.
PAPER = Averaging(weights="samples", kappa=1)
