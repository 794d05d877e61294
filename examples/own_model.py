"""Your own model and your own clients: matrix factorization of film likes.

    sfsl run --data python:examples/own_model.py --clients 50 --rounds 30 --set round.min_contributors=2

`sfsl run` does the rest: private rows, secure sums, dropouts, resume, summary, `sfsl report`.
"""

import numpy as np
import torch
from torch import Tensor, nn

from sfsl.data import Samples
from sfsl.run.fleet import Fleet
from sfsl.submodel import Table
from sfsl.training import Task
from sfsl.training.task import Batch

USERS, FILMS, WIDTH = 100, 300, 4


# 1. A module. Its embeddings are the tables; `meta` says that their rows live elsewhere.
class MatrixFactorization(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.user = nn.Embedding(USERS, WIDTH, device="meta")
        self.film = nn.Embedding(FILMS, WIDTH, device="meta")
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, batch: Batch) -> Tensor:
        logit: Tensor = (self.user(batch["user"]) * self.film(batch["film"])).sum(dim=-1) + self.bias
        return logit


# 2. A client's data: columns, and which of them are row numbers of which table.
def samples(user: int, films: np.ndarray, liked: np.ndarray) -> Samples:
    columns = {"user": np.full(len(films), user), "film": films, "label": liked.astype(np.float32)}
    return Samples(columns, tables={"user": "user", "film": "film"})


# 3. The fleet. Which films a client has seen is private, and its own row never leaves it.
def fleet(seed: int) -> Fleet:
    own = Table(name="user", rows=USERS, width=WIDTH, kind="personal", initial=1.0)
    films = Table(name="film", rows=FILMS, width=WIDTH, initial=1.0)
    train, held_out = {}, {}
    for user, (seen, liked) in enumerate(simulated_likes(seed)):
        train[f"user-{user}"] = samples(user, seen[:45], liked[:45])
        held_out[f"user-{user}"] = samples(user, seen[45:], liked[45:])
    return Fleet.of(Task(MatrixFactorization(), (own, films)), train, held_out)


# That is all you bring, with data of yours in place of these.
def simulated_likes(seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(seed)
    taste, kind = rng.standard_normal((USERS, 2)), rng.standard_normal((FILMS, 2))
    likes = []
    for user in range(USERS):
        seen = rng.choice(FILMS, 60, replace=False)
        likes.append((seen, rng.random(60) < 1 / (1 + np.exp(-3 * taste[user] @ kind[seen].T))))
    return likes
