"""Deep Interest Network for click prediction (paper §V; Zhou et al., KDD 2018)."""

from typing import Literal, cast

import torch
from torch import Tensor, nn

from sfsl.data.interactions import Interactions
from sfsl.models.activations import activation
from sfsl.models.click_task import click_task
from sfsl.training.task import Batch, Task

WIDTH = 18
INITIAL = 0.05
ATTENTION = (80, 40)
TOWER = (200, 80)


class DIN(nn.Module):
    """Columns: ``user``, ``item``, ``history``; with categories also ``item_category``, ``history_category``.

    With g = 36, the width of a good (embeddings of item and category side by side), the paper's 64,327
    dense parameters are::

        attention  Linear 4g -> 80, 80 -> 40, 40 -> 1     11,600 + 3,240 + 41 = 14,881
        entry      scale and shift per input, 18 + 4g            2 x 162      =    324
        tower      Linear 162 -> 200 -> 80 -> 2           32,600 + 16,080 + 162 = 48,842
        slopes     one per unit of PReLU or Dice                 200 + 80     =    280

    and (49,023 + 143,534 + 4,815) rows of 18 make 3,617,023 in all. It is the layout of the reference
    code of DIN and DIEN: attention over (good, past, good - past, good x past), and a tower on (user,
    good, sum of pasts, good x sum, attended pasts). The batch norm there at the entry runs on its initial
    statistics, 0 and 1, in training and in use: what is left of it is the scale and the shift. Without
    categories g is 18, which leaves 44,023 dense parameters.
    """

    def __init__(
        self,
        users: int,
        items: int,
        categories: int | None,
        *,
        width: int = WIDTH,
        slopes: Literal["dice", "prelu"] = "dice",
        device: str | None = None,
    ) -> None:
        """``device`` is that of the tables; on ``meta`` they have a shape and no values."""
        super().__init__()
        self.user = nn.Embedding(users, width, device=device)
        self.item = nn.Embedding(items, width, device=device)
        self.category = nn.Embedding(categories, width, device=device) if categories else None
        good = 2 * width if categories else width
        self.attention = nn.Sequential(
            nn.Linear(4 * good, ATTENTION[0]),
            nn.Sigmoid(),
            nn.Linear(ATTENTION[0], ATTENTION[1]),
            nn.Sigmoid(),
            nn.Linear(ATTENTION[1], 1),
        )
        self.scale = nn.Parameter(torch.ones(width + 4 * good))
        self.shift = nn.Parameter(torch.zeros(width + 4 * good))
        self.tower = nn.Sequential(
            nn.Linear(width + 4 * good, TOWER[0]),
            activation(slopes, TOWER[0]),
            nn.Linear(TOWER[0], TOWER[1]),
            activation(slopes, TOWER[1]),
            nn.Linear(TOWER[1], 2),
        )

    def forward(self, batch: Batch) -> Tensor:
        """The logit of a click: the softmax over two outputs is the sigmoid of their difference."""
        good = self._goods(batch, "item")
        present = (batch["history"] >= 0).unsqueeze(-1)
        past = self._goods(batch, "history") * present
        relevance = self.attention[1:](self._compared(good, past))
        # A finite floor: a sample without a history attends to zeros, which softmax of -inf could not.
        share = torch.softmax(relevance.masked_fill(~present, -1e9), dim=-2)
        interest, total = (share * past).sum(dim=-2), past.sum(dim=-2)
        entry = torch.cat([self.user(batch["user"]), good, total, good * total, interest], dim=-1)
        pair: Tensor = self.tower(entry * self.scale + self.shift)
        return pair[..., 1] - pair[..., 0]

    def _compared(self, good: Tensor, past: Tensor) -> Tensor:
        """The first layer of the attention, on (good, past, good - past, good x past).

        What it does to a past is linear once the good is given, so the good goes into the weights: a
        quarter of the work of laying the four side by side.
        """
        layer = cast(nn.Linear, self.attention[0])
        alone, history, difference, product = layer.weight.chunk(4, dim=-1)
        weight = history - difference + product * good.unsqueeze(-2)
        own = good @ (alone + difference).mT + layer.bias
        return past @ weight.mT + own.unsqueeze(-2)

    def _goods(self, batch: Batch, name: str) -> Tensor:
        goods: Tensor = self.item(batch[name].clamp_min(0))
        if self.category is None:
            return goods
        return torch.cat([goods, self.category(batch[f"{name}_category"].clamp_min(0))], dim=-1)


def din(
    data: Interactions,
    *,
    seed: int,
    width: int = WIDTH,
    slopes: Literal["dice", "prelu"] = "dice",
    initial: float = INITIAL,
) -> Task:
    """DIN for these users, items and categories; the dense part begins as ``seed`` says."""
    categories = None if data.categories is None else len(data.categories)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = DIN(len(data.users), len(data.items), categories, width=width, slopes=slopes, device="meta")
    return click_task(module, data, user=width, item=width, initial=initial)
