"""DIN and logistic regression: sizes, independence of samples, and use under torch.func."""

import numpy as np
import pytest
import torch
from torch.func import functional_call, grad, vmap

from sfsl.data import Interactions, SyntheticSettings, SyntheticTaobao
from sfsl.models import DIN, din, logistic_regression
from sfsl.models.activations import Dice
from sfsl.training import Task

torch.set_num_threads(1)  # steps this small only wait for each other


def size(module: torch.nn.Module) -> int:
    return sum(one.numel() for one in module.parameters())


@pytest.fixture(scope="module")
def data() -> Interactions:
    settings = SyntheticSettings(users=5, items=300, categories=20, samples=20, interests=5)
    return SyntheticTaobao(settings, seed=1).interactions()


def values(task: Task) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        table.name: rng.standard_normal((table.rows, table.width)).astype(np.float32) for table in task.tables
    }


def scored(task: Task, columns: dict[str, np.ndarray]) -> torch.Tensor:
    parameters = task.parameters(task.initial_dense(), values(task))
    batch = {name: torch.from_numpy(column) for name, column in columns.items()}
    return functional_call(task.module, parameters, (batch,))


@pytest.mark.parametrize("slopes", ["dice", "prelu"])
def test_din_has_the_papers_sizes(slopes: str) -> None:
    full = DIN(49_023, 143_534, 4_815, slopes=slopes, device="meta")  # type: ignore[arg-type]
    tables = size(full.user) + size(full.item) + size(full.category)  # type: ignore[arg-type]
    assert size(full) == 3_617_023
    assert size(full) - tables == 64_327
    assert size(DIN(1, 301, 117, slopes=slopes, device="meta")) == 71_869  # type: ignore[arg-type]


def test_din_task_declares_its_tables(data: Interactions) -> None:
    task = din(data, seed=0)
    assert task.spec.dense == 64_327
    assert [(table.name, table.rows, table.width, table.kind) for table in task.tables] == [
        ("user", 5, 18, "personal"),
        ("item", 300, 18, "shared"),
        ("category", 20, 18, "derived"),
    ]


def test_the_dense_part_follows_from_the_seed(data: Interactions) -> None:
    torch.manual_seed(5)
    ours = din(data, seed=3).initial_dense()
    torch.manual_seed(6)
    before = torch.rand(1)
    torch.manual_seed(6)
    assert np.array_equal(din(data, seed=3).initial_dense(), ours)
    assert torch.equal(torch.rand(1), before)  # the caller's generator is left alone
    assert not np.array_equal(din(data, seed=4).initial_dense(), ours)


@pytest.mark.parametrize("slopes", ["dice", "prelu", "logistic"])
def test_a_score_does_not_depend_on_the_rest_of_the_batch(data: Interactions, slopes: str) -> None:
    task = logistic_regression(data) if slopes == "logistic" else din(data, seed=0, slopes=slopes)  # type: ignore[arg-type]
    columns = dict(data.client(2).columns)
    together = scored(task, columns)
    alone = [
        scored(task, {name: one[place : place + 1] for name, one in columns.items()})
        for place in range(len(together))
    ]
    torch.testing.assert_close(together, torch.cat(alone))


@pytest.mark.parametrize("make", [lambda data: din(data, seed=0), logistic_regression])
def test_filled_up_histories_change_nothing(data: Interactions, make: object) -> None:
    task = make(data)  # type: ignore[operator]
    columns = dict(data.client(1).columns)
    longer = dict(columns)
    for name in ("history", "history_category"):
        longer[name] = np.pad(columns[name], ((0, 0), (0, 7)), constant_values=-1)
    torch.testing.assert_close(scored(task, columns), scored(task, longer))


def test_din_scores_samples_without_a_history(data: Interactions) -> None:
    columns = dict(data.client(1).columns)
    for name in ("history", "history_category"):
        columns[name] = np.full_like(columns[name], -1)
    assert torch.isfinite(scored(din(data, seed=0), columns)).all()


@pytest.mark.parametrize("column", ["user", "item", "history", "item_category", "history_category"])
@pytest.mark.parametrize("make", [lambda data: din(data, seed=0), logistic_regression])
def test_every_column_matters(data: Interactions, column: str, make: object) -> None:
    task = make(data)  # type: ignore[operator]
    columns = dict(data.client(1).columns)
    moved = dict(columns)
    moved[column] = np.where(columns[column] >= 0, (columns[column] + 1) % 5, -1)
    assert not torch.allclose(scored(task, columns), scored(task, moved))


@pytest.mark.parametrize("slopes", ["dice", "prelu"])
def test_gradients_per_client_under_vmap(data: Interactions, slopes: str) -> None:
    task = din(data, seed=0, slopes=slopes)  # type: ignore[arg-type]
    parameters = task.parameters(task.initial_dense(), values(task))
    batch = {name: torch.from_numpy(one[:4]) for name, one in data.client(1).columns.items()}

    def loss(own: dict[str, torch.Tensor], some: dict[str, torch.Tensor]) -> torch.Tensor:
        return task.loss(functional_call(task.module, own, (some,)), some).mean()

    stacked = {name: torch.stack([one, 2 * one]) for name, one in parameters.items()}
    both = vmap(grad(loss))(stacked, {name: torch.stack([one, one]) for name, one in batch.items()})
    alone = grad(loss)({name: 2 * one for name, one in parameters.items()}, batch)
    for name, one in alone.items():
        torch.testing.assert_close(both[name][1], one, msg=name)


def test_dice_is_a_soft_leak() -> None:
    dice = Dice(3)
    x = torch.tensor([-50.0, 0.0, 50.0])
    torch.testing.assert_close(dice(x), torch.tensor([0.0, 0.0, 50.0]))
    with torch.no_grad():
        dice.alpha.fill_(0.25)
    torch.testing.assert_close(dice(x), torch.tensor([-12.5, 0.0, 50.0]))
    assert not list(dice.buffers())


def test_logistic_regression_is_the_sum_it_says(data: Interactions) -> None:
    task = logistic_regression(data)
    rows, columns = values(task), data.client(1).columns
    expected = []
    for place in range(len(columns["item"])):
        past = columns["history"][place][columns["history"][place] >= 0]
        weights = [rows["item"][one, 1] + rows["category"][data.category_of[one], 1] for one in past]  # type: ignore[index]
        good = columns["item"][place]
        own = rows["item"][good, 0] + rows["category"][data.category_of[good], 0]  # type: ignore[index]
        expected.append(rows["user"][1, 0] + own + (np.mean(weights) if weights else 0))
    np.testing.assert_allclose(scored(task, dict(columns)).numpy(), expected, rtol=1e-5)
