"""Training from Python: your own torch module and data, a word in every round, the model at the end.

Run it with `python examples/train_from_python.py` where sfsl[train,store] is installed; ten seconds.
"""

import numpy as np
import torch
from torch import Tensor, nn

import sfsl

USERS, FILMS, WIDTH = 60, 200, 4


class MatrixFactorization(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.user = nn.Embedding(USERS, WIDTH, device="meta")  # rows live in a store, not in the module
        self.film = nn.Embedding(FILMS, WIDTH, device="meta")
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        logit: Tensor = (self.user(batch["user"]) * self.film(batch["film"])).sum(dim=-1) + self.bias
        return logit


def likes(user: int, films: np.ndarray, liked: np.ndarray) -> sfsl.Samples:
    columns = {"user": np.full(len(films), user), "film": films, "label": liked.astype(np.float32)}
    return sfsl.Samples(columns, tables={"user": "user", "film": "film"})


def main() -> None:
    own = sfsl.Table(name="user", rows=USERS, width=WIDTH, kind="personal", initial=1.0)  # never leaves
    film = sfsl.Table(name="film", rows=FILMS, width=WIDTH, initial=1.0)  # which ones is private
    rng = np.random.default_rng(0)
    taste, kind = rng.standard_normal((USERS, 2)), rng.standard_normal((FILMS, 2))
    train, held_out = {}, {}
    for user in range(USERS):
        seen = rng.choice(FILMS, 60, replace=False)
        liked = rng.random(60) < 1 / (1 + np.exp(-3 * kind[seen] @ taste[user]))
        train[f"user-{user}"] = likes(user, seen[:45], liked[:45])
        held_out[f"user-{user}"] = likes(user, seen[45:], liked[45:])

    def good_enough(line: sfsl.RoundRecord) -> bool:
        if line.auc is not None:
            print(f"round {line.round}: {line.survivors} clients, AUC {line.auc:.3f}")
        return line.auc is not None and line.auc > 0.75  # True stops the run

    run = sfsl.train(
        sfsl.Task(MatrixFactorization(), (own, film)),
        train,
        held_out,
        rounds=30,
        clients=40,
        on_round=good_enough,
        settings={"training.clip": 10, "round.min_contributors": 2, "run.evaluate_every": 5},
    )
    print(f"AUC {run.auc:.3f} after {len(run.records)} rounds; the model: {sorted(run.state_dict())}")


if __name__ == "__main__":
    main()
