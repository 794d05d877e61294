"""Activations with a learned slope per unit, so that either makes a model of the same size."""

import torch
from torch import Tensor, nn


class Dice(nn.Module):
    """x where a unit is on, alpha * x where it is off, with a soft gate between (Zhou et al., KDD 2018).

    The original gate is the sigmoid of x normalised by the batch's mean and variance. With two samples
    in a batch these say no more than which of the two is larger, a score would depend on its neighbours
    in the batch, and running averages of them would be state that is in no sum and differs between
    clients. So the gate is the sigmoid of x itself: mean 0, variance 1. The layer before has a weight
    and a bias per unit, which can learn what the normalisation would have set.
    """

    def __init__(self, units: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(units))

    def forward(self, x: Tensor) -> Tensor:
        gate = torch.sigmoid(x)
        return x * (gate + self.alpha * (1 - gate))


def activation(name: str, units: int) -> nn.Module:
    return Dice(units) if name == "dice" else nn.PReLU(units, init=0.1)
