"""Your own model on submodels: matrix factorization of likes, in plain local rounds without any protocol.

Run it with `python examples/own_model.py` where sfsl is installed with torch.
"""

import numpy as np
import torch
from torch import Tensor, nn

from sfsl.data import Samples
from sfsl.submodel import Table
from sfsl.training import ClientWork, LocalSettings, Task, auc, score_samples, train_cohort
from sfsl.training.task import Batch

USERS, FILMS, WIDTH = 100, 300, 4
rng = np.random.default_rng(0)


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


# 2. Its tables: which films a client needs is private, and its own row never leaves it.
personal = Table(name="user", rows=USERS, width=WIDTH, kind="personal", initial=1.0)
task = Task(MatrixFactorization(), (personal, Table(name="film", rows=FILMS, width=WIDTH, initial=1.0)))


# 3. A client's data: columns, and which of them are row numbers of which table.
def client(user: int, films: np.ndarray) -> Samples:
    liked = rng.random(len(films)) < 1 / (1 + np.exp(-3 * taste[user] @ kind[films].T))
    columns = {"user": np.full(len(films), user), "film": films, "label": liked.astype(np.float32)}
    return Samples(columns, tables={"user": "user", "film": "film"})


taste, kind = rng.standard_normal((USERS, 2)), rng.standard_normal((FILMS, 2))
seen = [rng.choice(FILMS, 60, replace=False) for _ in range(USERS)]
clients = [client(user, films[:45]) for user, films in enumerate(seen)]
held_out = [client(user, films[45:]) for user, films in enumerate(seen)]

# That is all a user brings. The rest is one line of `sfsl run`; here, for once, by hand.
dense = task.initial_dense()
model = {t.name: rng.uniform(-1, 1, (t.rows, t.width)).astype(np.float32) for t in task.tables}
settings = LocalSettings(batch_size=2, learning_rate=1.0, clip=10.0)


def test_auc() -> float:
    scores = [score_samples(task, dense, {}, model, data) for data in held_out]
    return auc(np.concatenate(scores), np.concatenate([data.columns["label"] for data in held_out]))


def work(user: int, number: int) -> ClientWork:
    """What a client trains: here all it needs; under sfsl, what its perturbed set left of it."""
    rows, _ = task.needed_rows(clients[user])
    values = {name: model[name][some] for name, some in rows.items()}
    return ClientWork(rows, values, clients[user].keep(rows), seed=number)


def train_round(number: int, cohort: int = 50) -> None:
    global dense
    works = [work(user, number) for user in rng.choice(USERS, cohort, replace=False)]
    updates = train_cohort(task, dense, works, settings, round_number=number)
    moved, owners = np.zeros_like(model["film"]), np.zeros((FILMS, 1))
    for own, update in zip(works, updates, strict=True):
        model["user"][own.rows["user"]] += update.rows["user"]  # on the device
        moved[own.rows["film"]] += update.rows["film"]
        owners[own.rows["film"]] += 1
    model["film"] += (moved / np.maximum(owners, 1)).astype(np.float32)
    dense = dense + np.mean([update.dense for update in updates], axis=0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for number in range(21):
        if number % 5 == 0:
            print(f"round {number:2d}: held-out AUC {test_auc():.3f}")
        train_round(number)
