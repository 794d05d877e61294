"""Deep Interest Network for click prediction (paper §V; Zhou et al., KDD 2018)."""

from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn

from sfsl.models.items import ItemModel
from sfsl.training.task import Batch

ATTENTION = (80, 40)


class DIN(ItemModel):
    """Columns: ``user``, ``item``, ``history``; with categories also ``item_category``, ``history_category``.

    With g = 36, the width of an item (embeddings of item and category side by side), the paper's 64,327
    dense parameters are::

        attention  Linear 4g -> 80, 80 -> 40, 40 -> 1     11,600 + 3,240 + 41 = 14,881
        entry      scale and shift per input, 18 + 4g            2 x 162      =    324
        tower      Linear 162 -> 200 -> 80 -> 2           32,600 + 16,080 + 162 = 48,842
        slopes     one per unit of PReLU or Dice                 200 + 80     =    280

    and (49,023 + 143,534 + 4,815) rows of 18 make 3,617,023 in all. The layout "paper" is that of the
    reference code of DIN and DIEN: attention over (item, past, item - past, item x past), and a tower on
    (user, item, sum of pasts, item x sum, attended pasts). The batch norm there at the entry runs on its
    initial statistics, 0 and 1, in training and in use: what is left of it is the scale and the shift.
    Without categories g is 18, which leaves 44,023 dense parameters.
    """

    def add_layers(self, size: int, inputs: int) -> None:
        layers: list[nn.Module] = []
        for before, units in pairwise((4 * size, *ATTENTION)):
            layers += [nn.Linear(before, units), nn.Sigmoid()]
        self.attention = nn.Sequential(*layers, nn.Linear(ATTENTION[-1], 1))
        self.scale = nn.Parameter(torch.ones(inputs))
        self.shift = nn.Parameter(torch.zeros(inputs))

    def forward(self, batch: Batch, apart: bool = False) -> Tensor:
        """The logit of a click, or its parts."""
        item = self.items(batch, "item")
        held = batch["history"] >= 0
        present = held.unsqueeze(-1)
        past = self.items(batch, "history") * present
        relevance = self.attention[1:](self._compared(item, past))
        # A finite floor: a sample without a history attends to zeros, which softmax of -inf could not.
        share = torch.softmax(relevance.masked_fill(~present, -1e9), dim=-2)
        interest, whole = (share * past).sum(dim=-2), self.pooled(past, held)
        user = self.user(batch["user"])
        entry = torch.cat([user, item, whole, item * whole, interest], dim=-1)
        return self.click_logit(entry * self.scale + self.shift, user, item, whole, apart=apart)

    def _compared(self, item: Tensor, past: Tensor) -> Tensor:
        """The first layer of the attention, on (item, past, item - past, item x past).

        What it does to a past is linear once the item is given, so the item goes into the weights: a
        quarter of the work of laying the four side by side.
        """
        layer = cast(nn.Linear, self.attention[0])
        alone, history, difference, product = layer.weight.chunk(4, dim=-1)
        weight = history - difference + product * item.unsqueeze(-2)
        own = item @ (alone + difference).mT + layer.bias
        return past @ weight.mT + own.unsqueeze(-2)
