"""The recommenders: sizes, independence of samples, and use under torch.func."""

import numpy as np
import pytest
import torch
from torch.func import functional_call, grad, vmap

from sfsl.data import Interactions, SyntheticSettings, SyntheticTaobao
from sfsl.data.catalogue import Catalogue
from sfsl.models import BST, DIEN, DIN, bst, dien, din, logistic_regression
from sfsl.models.dien import GatedUnit
from sfsl.models.items import Dice
from sfsl.training import Task

torch.set_num_threads(1)  # steps this small only wait for each other

MODELS = {
    "dice": lambda data: din(Catalogue.of(data), seed=0),
    "prelu": lambda data: din(Catalogue.of(data), seed=0, slopes="prelu"),
    "dien": lambda data: dien(Catalogue.of(data), seed=0),
    "bst": lambda data: bst(Catalogue.of(data), seed=0),
    "logistic": lambda data: logistic_regression(Catalogue.of(data)),
}


@pytest.fixture(params=MODELS)
def task(request: pytest.FixtureRequest, data: Interactions) -> Task:
    made: Task = MODELS[request.param](data)
    return made


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


def scored(task: Task, columns: dict[str, np.ndarray], scale: float = 1.0) -> torch.Tensor:
    rows = {name: np.float32(scale) * block for name, block in values(task).items()}
    parameters = task.parameters(task.initial_dense(), rows)
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
    task = din(Catalogue.of(data), seed=0)
    assert task.spec.dense == 64_327
    assert [(table.name, table.rows, table.width, table.kind) for table in task.tables] == [
        ("user", 5, 18, "personal"),
        ("item", 300, 18, "shared"),
        ("category", 20, 18, "derived"),
    ]


def test_the_dense_part_follows_from_the_seed(data: Interactions) -> None:
    torch.manual_seed(5)
    ours = din(Catalogue.of(data), seed=3).initial_dense()
    torch.manual_seed(6)
    before = torch.rand(1)
    torch.manual_seed(6)
    assert np.array_equal(din(Catalogue.of(data), seed=3).initial_dense(), ours)
    assert torch.equal(torch.rand(1), before)  # the caller's generator is left alone
    assert not np.array_equal(din(Catalogue.of(data), seed=4).initial_dense(), ours)


def test_a_score_does_not_depend_on_the_rest_of_the_batch(data: Interactions, task: Task) -> None:
    columns = dict(data.client(2).columns)
    together = scored(task, columns)
    alone = [
        scored(task, {name: one[place : place + 1] for name, one in columns.items()})
        for place in range(len(together))
    ]
    torch.testing.assert_close(together, torch.cat(alone))


def test_filled_up_histories_change_nothing(data: Interactions, task: Task) -> None:
    columns = dict(data.client(1).columns)
    longer = dict(columns)
    for name in ("history", "history_category"):
        longer[name] = np.pad(columns[name], ((0, 0), (0, 7)), constant_values=-1)
    torch.testing.assert_close(scored(task, columns), scored(task, longer))


def test_samples_without_a_history_have_a_score(data: Interactions, task: Task) -> None:
    """One, whatever the room for a history."""
    columns = dict(data.client(1).columns)
    found = []
    for room in (1, 6):
        for name in ("history", "history_category"):
            columns[name] = np.full((len(columns["item"]), room), -1)
        found.append(scored(task, columns))
    assert torch.isfinite(found[0]).all()
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("column", ["user", "item", "history", "item_category", "history_category"])
def test_every_column_matters(data: Interactions, column: str, task: Task) -> None:
    columns = dict(data.client(1).columns)
    moved = dict(columns)
    moved[column] = np.where(columns[column] >= 0, (columns[column] + 1) % 5, -1)
    assert not torch.allclose(scored(task, columns), scored(task, moved))


@pytest.mark.parametrize("name", MODELS)
def test_order_matters_to_models_of_sequences_only(data: Interactions, name: str) -> None:
    task = MODELS[name](data)
    columns = dict(data.client(1).columns)
    full = (columns["history"] >= 0).all(axis=1)
    assert full.any()
    columns = {key: one[full] for key, one in columns.items()}
    turned = {key: one[:, ::-1].copy() if one.ndim == 2 else one for key, one in columns.items()}
    # Rows as small as they begin, beside which the vectors of positions show.
    moved = (scored(task, columns, 0.05) - scored(task, turned, 0.05)).abs().max()
    assert moved > 1e-5 if name in ("dien", "bst") else moved < 1e-6


def test_gradients_per_client_under_vmap(data: Interactions, task: Task) -> None:
    parameters = task.parameters(task.initial_dense(), values(task))
    batch = {name: torch.from_numpy(one[:4]) for name, one in data.client(1).columns.items()}

    def loss(own: dict[str, torch.Tensor], some: dict[str, torch.Tensor]) -> torch.Tensor:
        return task.loss(functional_call(task.module, own, (some,)), some).mean()

    stacked = {name: torch.stack([one, 2 * one]) for name, one in parameters.items()}
    both = vmap(grad(loss))(stacked, {name: torch.stack([one, one]) for name, one in batch.items()})
    alone = grad(loss)({name: 2 * one for name, one in parameters.items()}, batch)
    for name, one in alone.items():
        torch.testing.assert_close(both[name][1], one, msg=name, atol=1e-5, rtol=1e-4)


def test_a_gated_unit_is_a_gru(data: Interactions) -> None:
    """With full attention it is torch's; with none the state stays."""
    ours, theirs = GatedUnit(3, 4), torch.nn.GRU(3, 4, batch_first=True)
    update, reset, fresh = range(3)
    with torch.no_grad():
        given, bias = ours.given.weight.chunk(3), ours.given.bias.chunk(3)
        kept, remembered = ours.gates.weight.chunk(2)
        # Torch has the reset gate first, and lets it act on the product rather than on the state.
        theirs.weight_ih_l0.copy_(torch.cat([given[reset], given[update], given[fresh]]))
        theirs.bias_ih_l0.copy_(torch.cat([bias[reset], -bias[update], bias[fresh]]))
        theirs.weight_ih_l0[4:8] *= -1  # and its update gate says what to keep
        ours.candidate.weight.copy_(torch.diag(torch.tensor([0.5, -1.0, 2.0, 0.1])))  # so that both agree
        theirs.weight_hh_l0.copy_(torch.cat([remembered, -kept, ours.candidate.weight]))
        theirs.bias_hh_l0.zero_()
    steps = torch.randn(2, 6, 3)
    torch.testing.assert_close(ours(steps, torch.ones(2, 6, 1)), theirs(steps)[0])
    assert not ours(steps, torch.zeros(2, 6, 1)).any()


@pytest.mark.parametrize("kind", [DIEN, BST])
def test_models_without_categories(kind: type[DIEN] | type[BST]) -> None:
    module = kind(3, 5, None, width=4)
    batch = {"user": torch.tensor([2]), "item": torch.tensor([4]), "history": torch.tensor([[0, 3, -1]])}
    assert torch.isfinite(module(batch)).all()


def test_dice_is_a_soft_leak() -> None:
    dice = Dice(3)
    x = torch.tensor([-50.0, 0.0, 50.0])
    torch.testing.assert_close(dice(x), torch.tensor([0.0, 0.0, 50.0]))
    with torch.no_grad():
        dice.alpha.fill_(0.25)
    torch.testing.assert_close(dice(x), torch.tensor([-12.5, 0.0, 50.0]))
    assert not list(dice.buffers())


def test_logistic_regression_is_the_sum_it_says(data: Interactions) -> None:
    task = logistic_regression(Catalogue.of(data))
    rows, columns = values(task), data.client(1).columns
    expected = []
    for place in range(len(columns["item"])):
        past = columns["history"][place][columns["history"][place] >= 0]
        weights = [rows["item"][one, 1] + rows["category"][data.category_of[one], 1] for one in past]  # type: ignore[index]
        good = columns["item"][place]
        own = rows["item"][good, 0] + rows["category"][data.category_of[good], 0]  # type: ignore[index]
        expected.append(rows["user"][1, 0] + own + (np.mean(weights) if weights else 0))
    np.testing.assert_allclose(scored(task, dict(columns)).numpy(), expected, rtol=1e-5)
