"""What the recommenders share: tables of users, items and categories, embedded items, a tower on top."""

import torch
from torch import Tensor, nn

from sfsl.models.activations import activation
from sfsl.training.task import Batch

WIDTH = 18
TOWER = (200, 80)


class ItemModel(nn.Module):
    """An item is the embeddings of its row and of its category's side by side, ``size`` numbers in all.

    ``device`` is that of the tables; on ``meta`` they have a shape and no values.
    """

    def __init__(
        self, users: int, items: int, categories: int | None, width: int, device: str | None
    ) -> None:
        super().__init__()
        self.user = nn.Embedding(users, width, device=device)
        self.item = nn.Embedding(items, width, device=device)
        self.category = nn.Embedding(categories, width, device=device) if categories else None
        self.size = 2 * width if categories else width

    def items(self, batch: Batch, name: str) -> Tensor:
        """The items of a column. Fillers are some item or other: whoever asks masks them."""
        items: Tensor = self.item(batch[name].clamp_min(0))
        if self.category is None:
            return items
        return torch.cat([items, self.category(batch[f"{name}_category"].clamp_min(0))], dim=-1)


def tower(inputs: int, slopes: str) -> nn.Sequential:
    """Two hidden layers, and two outputs whose softmax is the chance of no click and of a click."""
    return nn.Sequential(
        nn.Linear(inputs, TOWER[0]),
        activation(slopes, TOWER[0]),
        nn.Linear(TOWER[0], TOWER[1]),
        activation(slopes, TOWER[1]),
        nn.Linear(TOWER[1], 2),
    )


def click_logit(pair: Tensor) -> Tensor:
    """The softmax over two outputs is the sigmoid of their difference."""
    return pair[..., 1] - pair[..., 0]
