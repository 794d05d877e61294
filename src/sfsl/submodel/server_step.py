"""How the server applies a round's moves: by addition, or with an adaptive optimizer (spec submodel 5).

Numbers at rest (rows, dense part, optimizer state) are float32. A step is computed in float64 and rounded
once, when its result is stored.
"""

from typing import Annotated, Literal

import numpy as np
from msgspec import Meta

from sfsl.arrays import Reals, Values
from sfsl.codec import Checked
from sfsl.errors import InputError

_SLOTS = {"add": 0, "adagrad": 1, "adam": 2}


class ServerStep(Checked, frozen=True):
    """``add`` with rate 1 is the paper. ``adagrad`` and ``adam`` are FedAdagrad and FedAdam (Reddi et al.
    2021, Alg. 2), the move standing for the gradient.

    Optimizer state is a row's own, kept beside it, and changes only when the row moves: a row that nobody
    trained in a round costs nothing, and keeps its momentum for the round in which somebody does.
    """

    kind: Literal["add", "adagrad", "adam"]
    rate: Annotated[float, Meta(gt=0, le=1e6)]
    beta1: Annotated[float, Meta(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Meta(ge=0, lt=1)] = 0.99
    tau: Annotated[float, Meta(gt=0, le=1e6)] = 1e-3

    @property
    def slots(self) -> int:
        """How many numbers of state each parameter has. They begin at zero."""
        return _SLOTS[self.kind]

    def apply(self, values: Values, state: Values, moves: Reals) -> tuple[Values, Values]:
        """New values [n, width] and new state [n, slots, width] of the rows that moved."""
        if moves.shape != values.shape or state.shape != (len(values), self.slots, values.shape[1]):
            raise InputError(
                f"rows of shape {values.shape} with state of shape {state.shape} and moves of shape "
                f"{moves.shape}; {self.kind} keeps {self.slots} numbers for each parameter"
            )
        old = state.astype(np.float64)
        if self.kind == "add":
            step, new = self.rate * moves, old
        elif self.kind == "adagrad":
            second = old[:, 0] + moves**2
            step, new = self._scaled(moves, second), second[:, None]
        else:
            first = self.beta1 * old[:, 0] + (1 - self.beta1) * moves
            second = self.beta2 * old[:, 1] + (1 - self.beta2) * moves**2
            step, new = self._scaled(first, second), np.stack([first, second], axis=1)
        return (values + step).astype(np.float32), new.astype(np.float32)

    def _scaled(self, first: Reals, second: Reals) -> Reals:
        return self.rate * first / (np.sqrt(second) + self.tau)


# Line 9 of Algorithm 1.
ADDITION = ServerStep(kind="add", rate=1)
