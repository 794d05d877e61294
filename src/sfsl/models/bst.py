"""Behaviour Sequence Transformer for click prediction (Chen et al., 2019)."""

import torch
from torch import Tensor, nn

from sfsl.models.items import ItemModel
from sfsl.training.task import Batch

HEADS = 4
HEAD = 8
INNER = 64
# Places before the item at hand that have a vector of their own; all earlier ones share the last.
POSITIONS = 64


class Block(nn.Module):
    """One transformer block: self-attention, then a layer of its own for each place, each with what came
    in added and normalised. There is no dropout: batches of two are noise enough, and clients that train
    as one computation would have to draw alike.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.projected = nn.Linear(width, 3 * HEADS * HEAD)
        self.joined = nn.Linear(HEADS * HEAD, width)
        self.first_norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inner, self.outer = nn.Linear(width, INNER), nn.Linear(INNER, width)
        # About as small as rows begin: else what comes out drowns the tower's other inputs, and the tower
        # takes all of a clipped step.
        nn.init.constant_(self.second_norm.weight, 0.1)

    def forward(self, places: Tensor, present: Tensor) -> Tensor:
        """``places``: [..., places, width]. ``present``: [..., places]; nothing attends to the others."""
        query, key, value = (
            one.unflatten(-1, (HEADS, HEAD)).transpose(-3, -2)
            for one in self.projected(places).chunk(3, dim=-1)
        )
        fit = (query @ key.mT) / HEAD**0.5
        share = torch.softmax(fit.masked_fill(~present[..., None, None, :], -1e9), dim=-1)
        attended = (share @ value).transpose(-3, -2).flatten(-2)
        places = self.first_norm(places + self.joined(attended))
        changed: Tensor = self.outer(nn.functional.leaky_relu(self.inner(places)))
        after: Tensor = self.second_norm(places + changed)
        return after


class BST(ItemModel):
    """Columns and tables are those of DIN; the order of the history matters.

    One transformer block over the item at hand and its history. A place is known by how many clicks lie
    between it and the item at hand (the paper counts seconds, which samples do not have). What the block
    makes of the item, and the mean of what it makes of the history, go into the tower: the paper lays all
    places side by side there, which needs histories of one length and a tower as large. Its other features
    are DIN's: user, item, the history pooled, and item x that.
    """

    vectors = 5

    def add_layers(self, size: int, inputs: int) -> None:
        self.position = nn.Parameter(0.05 * torch.randn(POSITIONS, size))
        self.block = Block(size)

    def forward(self, batch: Batch, apart: bool = False) -> Tensor:
        """The logit of a click, or its parts."""
        item = self.items(batch, "item")
        held = batch["history"] >= 0
        # The item at hand comes last and is always there; the click before it has distance 1.
        present = torch.cat([held, torch.ones_like(held[..., :1])], dim=-1)
        distance = (held.sum(dim=-1, keepdim=True) - present.cumsum(dim=-1) + 1).clamp(0, POSITIONS - 1)
        past = self.items(batch, "history") * held.unsqueeze(-1)
        places = torch.cat([past, item.unsqueeze(-2)], dim=-2)
        after = self.block(places + self.position[distance], present)
        interest = (after[..., :-1, :] * held.unsqueeze(-1)).sum(dim=-2)
        interest = interest / held.sum(dim=-1, keepdim=True).clamp_min(1)
        user, whole = self.user(batch["user"]), self.pooled(past, held)
        entry = torch.cat([user, item, whole, item * whole, after[..., -1, :], interest], dim=-1)
        return self.click_logit(entry, user, item, whole, apart=apart)
