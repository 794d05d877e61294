"""Your model: a module, and which of its embeddings are tables of the protocol."""

import torch
from torch import Tensor, nn

from sfsl.submodel import Table
from sfsl.training import Task
from sfsl.training.task import Batch

FILMS, WIDTH = 300, 4


# `meta` says that the rows live elsewhere: the server keeps those of films, each node its own taste.
class MatrixFactorization(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.taste = nn.Embedding(1, WIDTH, device="meta")
        self.film = nn.Embedding(FILMS, WIDTH, device="meta")
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, batch: Batch) -> Tensor:
        logit: Tensor = (self.taste(batch["taste"]) * self.film(batch["film"])).sum(dim=-1) + self.bias
        return logit


def task() -> Task:
    """Which films a node has seen is private; its own row never leaves it."""
    torch.set_num_threads(1)
    taste = Table(name="taste", rows=1, width=WIDTH, kind="personal", initial=1.0)
    films = Table(name="film", rows=FILMS, width=WIDTH, initial=1.0)
    return Task(MatrixFactorization(), (taste, films))
