"""What the recommenders share: embeddings of users, items and categories, activations, a tower on top."""

from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from sfsl.training.task import Batch


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


WIDTH = 18
TOWER = (200, 80)
PARTS = ("tower", "user", "item", "match")
BIASES = ("user", "item")

Slopes = Literal["dice", "prelu"]
Layout = Literal["wide", "paper"]


class ItemModel(nn.Module):
    """An item is the embeddings of its row and of its category's side by side, ``size`` numbers in all.

    ``device`` is that of the tables; on ``meta`` they have a shape and no values. A model of this kind adds
    its own layers in ``add_layers``; its tower reads a user and ``vectors`` as wide as an item.

    The ``layout`` "paper" gives the tower the sum of a history. That grows with the history: each client's
    dense part moves at a scale of its own then, and the average of these moves is worth little. The layout
    "wide" is fit for averaging: the tower reads the mean, and three things reach the logit without passing
    the dense part, so that rows learn them from the first round on: the first number of the user's row and
    of the item's and category's rows, as biases, and the product of the item with the mean of the history.
    With the tower they are the ``logit_parts``, which ``forward`` gives side by side where it is asked for
    them ``apart``. A user's row is rebuilt so that its bias and the item's, the ``bias_parts``, explain the
    user's samples by themselves, too.
    """

    vectors = 4

    def __init__(
        self,
        users: int,
        items: int,
        categories: int | None,
        *,
        width: int = WIDTH,
        slopes: Slopes = "dice",
        layout: Layout = "wide",
        device: str | None = None,
    ) -> None:
        super().__init__()
        self.user = nn.Embedding(users, width, device=device)
        self.item = nn.Embedding(items, width, device=device)
        self.category = nn.Embedding(categories, width, device=device) if categories else None
        self.size = 2 * width if categories else width
        self.width, self.slopes, self.layout = width, slopes, layout
        self.logit_parts = PARTS if layout == "wide" else ()
        self.bias_parts = BIASES if layout == "wide" else ()
        inputs = width + self.vectors * self.size
        self.add_layers(self.size, inputs)
        layers: list[nn.Module] = []
        for before, units in pairwise((inputs, *TOWER)):
            slope = Dice(units) if slopes == "dice" else nn.PReLU(units, init=0.1)
            layers += [nn.Linear(before, units), slope]
        self.tower = nn.Sequential(*layers, nn.Linear(TOWER[-1], 2))

    def add_layers(self, size: int, inputs: int) -> None:
        """Make the layers below the tower, for items of ``size`` numbers and a tower of ``inputs``."""
        raise NotImplementedError

    def click_logit(
        self, entry: Tensor, user: Tensor, item: Tensor, whole: Tensor, *, apart: bool = False
    ) -> Tensor:
        """The logit of a click, or its parts. The softmax over the tower's two outputs, of which the second
        is for a click, is the sigmoid of their difference. ``whole`` is the pooled history."""
        pair: Tensor = self.tower(entry)
        logit = pair[..., 1] - pair[..., 0]
        if self.layout == "paper":
            return logit.unsqueeze(-1) if apart else logit
        others = user[..., 0], item[..., :: self.width].sum(dim=-1), (item * whole).sum(dim=-1)
        return torch.stack([logit, *others], dim=-1) if apart else logit + others[0] + others[1] + others[2]

    def items(self, batch: Batch, name: str) -> Tensor:
        """The items of a column. Fillers are some item or other: whoever asks masks them."""
        items: Tensor = self.item(batch[name].clamp_min(0))
        if self.category is None:
            return items
        return torch.cat([items, self.category(batch[f"{name}_category"].clamp_min(0))], dim=-1)

    def pooled(self, past: Tensor, held: Tensor) -> Tensor:
        """What the tower reads of a whole history; ``past`` is zero where ``held`` is not."""
        total = past.sum(dim=-2)
        return total if self.layout == "paper" else total / held.sum(dim=-1, keepdim=True).clamp_min(1)
