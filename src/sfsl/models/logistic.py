"""Logistic regression on who, what, and what before: the smallest model with all three kinds of table."""

import torch
from torch import Tensor, nn

from sfsl.data.catalogue import Catalogue
from sfsl.models.click_task import click_rows, click_task
from sfsl.training.task import Batch, Task


class LogisticRegression(nn.Module):
    """A row of an item or category holds two weights: for itself, and for it in the history."""

    def __init__(self, users: int, items: int, categories: int | None, device: str | None = None) -> None:
        super().__init__()
        self.user = nn.Embedding(users, 1, device=device)
        self.item = nn.Embedding(items, 2, device=device)
        self.category = nn.Embedding(categories, 2, device=device) if categories else None
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, batch: Batch) -> Tensor:
        own: Tensor = self.bias + self.user(batch["user"])[..., 0] + self._weights(batch, "item")[..., 0]
        present = batch["history"] >= 0
        past = self._weights(batch, "history")[..., 1] * present
        return own + past.sum(dim=-1) / present.sum(dim=-1).clamp_min(1)

    def _weights(self, batch: Batch, name: str) -> Tensor:
        weights: Tensor = self.item(batch[name].clamp_min(0))
        if self.category is not None:
            weights = weights + self.category(batch[f"{name}_category"].clamp_min(0))
        return weights


def logistic_regression(catalogue: Catalogue) -> Task:
    """Weights begin at zero: the loss has one lowest point, and nothing needs to break a symmetry."""
    module = LogisticRegression(*click_rows(catalogue), device="meta")
    return click_task(module, catalogue, user=1, item=2, initial=0.0)
