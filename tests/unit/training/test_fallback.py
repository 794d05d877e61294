"""Models that cannot be vectorised are trained one by one, and it is said once."""

import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sfsl.data import Samples
from sfsl.errors import SlowerTraining
from sfsl.submodel import Table
from sfsl.training import ClientWork, LocalSettings, Task, train_client, train_cohort
from sfsl.training.task import Batch

torch.set_num_threads(1)
SETTINGS = LocalSettings()


class Odd(nn.Module):
    def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.item = nn.Embedding(6, 3)
        self.last = nn.Linear(3, 1)
        self.change = change

    def forward(self, batch: Batch) -> Tensor:
        logit: Tensor = self.last(self.change(self.item(batch["item"])))[..., 0]
        return logit


def looks_at_values(x: Tensor) -> Tensor:
    return x if float(x.detach().sum()) > 0 else -x


def task_of(change: Callable[[Tensor], Tensor]) -> Task:
    return Task(Odd(change), (Table(name="item", rows=6, width=3),))


def cohort() -> list[ClientWork]:
    works = []
    for seed, samples in enumerate([7, 2, 0]):
        rng = np.random.default_rng(seed)
        columns = {"item": rng.integers(0, 6, samples), "label": np.ones(samples, np.float32)}
        data = Samples(columns, {"item": "item"})
        values = rng.standard_normal((len(data.rows()["item"]), 3)).astype(np.float32)
        works.append(ClientWork(data.rows(), {"item": values}, data, seed))
    return works


@pytest.mark.parametrize("change", [nn.Dropout(0.5), looks_at_values], ids=["dropout", "values"])
def test_it_is_said_once_and_clients_train_alone(change: Callable[[Tensor], Tensor]) -> None:
    task = task_of(change)
    dense = task.initial_dense()
    with pytest.warns(SlowerTraining, match="Odd cannot be vectorised; its clients train one by one") as said:
        updates = train_cohort(task, dense, cohort(), SETTINGS)
    assert len(said) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = train_cohort(task, dense, cohort(), SETTINGS)
    for work, *both in zip(cohort(), updates, again, strict=True):
        alone = train_client(task, dense, work, SETTINGS)
        for update in both:
            assert np.array_equal(update.dense, alone.dense)
            assert np.array_equal(update.rows["item"], alone.rows["item"])


def no_room(x: Tensor) -> Tensor:
    torch.empty(10**15)
    return x


def no_room_on_a_gpu(x: Tensor) -> Tensor:
    raise torch.OutOfMemoryError("CUDA out of memory")


def wrong(x: Tensor) -> Tensor:
    return x[..., :2]


@pytest.mark.parametrize(
    ("change", "message"),
    [(no_room, "allocate memory"), (no_room_on_a_gpu, "CUDA out of memory"), (wrong, "mat1 and mat2")],
)
def test_other_failures_are_not_hidden(change: Callable[[Tensor], Tensor], message: str) -> None:
    task = task_of(change)
    for _ in range(2):  # and not remembered
        with pytest.raises(RuntimeError, match=message):
            train_cohort(task, task.initial_dense(), cohort(), SETTINGS)
