"""Personal rows that are rebuilt first: what learns from which samples, what is uploaded, what is kept."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from sfsl.data import Interactions, Samples, SyntheticSettings, SyntheticTaobao
from sfsl.data.catalogue import Catalogue
from sfsl.models import din, logistic_regression, next_word_lstm
from sfsl.training import (
    ClientWork,
    LocalSettings,
    LocalUpdate,
    Task,
    rebuild_client,
    rebuild_cohort,
    train_client,
    train_cohort,
)
from sfsl.training.work import draw_lot

torch.set_num_threads(1)

USERS = 8
SETTINGS = LocalSettings(
    batch_size=4, learning_rate=0.3, clip=1.0, rebuild=0.4, rebuild_rate=0.5, rebuild_epochs=3
)
Train = Callable[[Task, ClientWork, LocalSettings], LocalUpdate]


def _alone(task: Task, work: ClientWork, settings: LocalSettings) -> LocalUpdate:
    return train_client(task, task.initial_dense(), work, settings)


def _together(task: Task, work: ClientWork, settings: LocalSettings) -> LocalUpdate:
    return train_cohort(task, task.initial_dense(), [work, work], settings)[1]


@pytest.fixture(params=[_alone, _together])
def train(request: pytest.FixtureRequest) -> Train:
    made: Train = request.param
    return made


@pytest.fixture(scope="module")
def data() -> Interactions:
    world = SyntheticSettings(users=USERS, items=400, categories=20, samples=15, spread=0.5, interests=5)
    return SyntheticTaobao(world, seed=1).interactions()


@pytest.fixture(scope="module", params=["din", "logistic"])
def task(request: pytest.FixtureRequest, data: Interactions) -> Task:
    catalogue = Catalogue.of(data)
    return din(catalogue, seed=0) if request.param == "din" else logistic_regression(catalogue)


def work(task: Task, data: Interactions, user: int, seed: int = 0) -> ClientWork:
    own, rng = data.client(user), np.random.default_rng(user)
    own = own.keep({"item": own.rows()["item"]})
    rows, _ = task.needed_rows(own)
    values = {
        one.name: 0.1 * rng.standard_normal((len(rows[one.name]), one.width)).astype(np.float32)
        for one in task.tables
    }
    return ClientWork(rows, values, own, seed)


def at(one: ClientWork, samples: np.ndarray) -> ClientWork:
    """The same rows, with some of the samples only."""
    assert isinstance(one.data, Samples)
    return replace(one, data=one.data.at(samples))


@pytest.mark.parametrize(
    ("samples", "most", "parts"),
    [(0, 0, (0, 0)), (1, 0, (1, 1)), (2, 0, (1, 2)), (10, 0, (4, 6)), (10, 5, (2, 4)), (10, 1, (1, 1))],
)
def test_each_part_has_a_sample_and_those_that_are_learned_from_fill_a_batch(
    task: Task, data: Interactions, samples: int, most: int, parts: tuple[int, int]
) -> None:
    settings = replace(SETTINGS, max_samples=most, rebuild_epochs=1)
    one = at(work(task, data, 3), np.arange(samples))
    lot = draw_lot(task, one, settings)
    assert lot.rebuild is not None
    first, then = (order[order >= 0].tolist() for order in (lot.rebuild, lot.order))
    assert (len(first), len(then)) == parts
    assert sorted(lot.learned) == sorted(then)
    assert len({*first, *then}) == min(samples, most or samples)


def test_a_greedy_share_leaves_a_batch_to_learn_from() -> None:
    rebuild, learned = LocalSettings(rebuild=0.99, batch_size=3).parts(np.array([0, 1, 2, 3, 4, 400]))
    assert rebuild.tolist() == [0, 1, 1, 2, 3, 396]
    assert learned.tolist() == [0, 1, 2, 3, 3, 4]


def _by_all(task: Task, leaves: dict[str, torch.Tensor], batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return task.loss(torch.func.functional_call(task.module, leaves, (batch,)), batch)


def _by_biases(task: Task, leaves: dict[str, torch.Tensor], batch: dict[str, torch.Tensor]) -> torch.Tensor:
    apart = torch.func.functional_call(task.module, leaves, (batch,), {"apart": True})
    tower, user, item, match = apart.unbind(dim=-1)
    return (task.loss(user + item, batch) + task.loss(tower + user + item + match, batch)) / 2


def test_other_samples_are_taken_in_another_round(task: Task, data: Interactions) -> None:
    settings = replace(SETTINGS, max_samples=4)
    lots = [draw_lot(task, work(task, data, 3, seed), settings) for seed in (1, 1, 2)]
    assert np.array_equal(lots[0].learned, lots[1].learned)
    assert not np.array_equal(np.sort(lots[0].learned), np.sort(lots[2].learned))


def test_rebuilding_comes_first_and_moves_personal_rows_only(
    task: Task, data: Interactions, train: Train
) -> None:
    """By hand: rows from zero on one part with a frozen model, then the rest on the other, these held. What
    is rebuilt explains labels by its biases alone, and by everything, alike."""
    one = work(task, data, 3, seed=5)
    lot = draw_lot(task, one, SETTINGS)
    assert lot.rebuild is not None
    parameters = task.parameters(task.initial_dense(), one.values)
    parameters["user.weight"] = torch.zeros_like(parameters["user.weight"])
    columns = {name: torch.from_numpy(column) for name, column in one.columns.items()}
    total = 0.0
    for orders, rate, personal in ((lot.rebuild, 0.5, True), (lot.order, 0.3, False)):
        total = 0.0
        for order in orders:
            chosen = order[order >= 0]
            leaves = {name: value.clone().requires_grad_() for name, value in parameters.items()}
            batch = {name: column[chosen] for name, column in columns.items()}
            loss = _by_biases if personal and task.biases else _by_all
            mean = loss(task, leaves, batch).mean()
            mean.backward()
            total += mean.item() * len(chosen)
            moving = [leaf for name, leaf in leaves.items() if (name == "user.weight") == personal]
            torch.nn.utils.clip_grad_norm_(moving, SETTINGS.clip)
            parameters = {
                name: (leaf - rate * leaf.grad).detach()  # type: ignore[operator]
                if (name == "user.weight") == personal
                else leaf.detach()
                for name, leaf in leaves.items()
            }
    update = train(task, one, SETTINGS)
    moved = task.dense_vector(parameters) - task.initial_dense()
    np.testing.assert_allclose(update.dense, moved, atol=2e-5)
    for table in task.tables:
        own = parameters[f"{table.name}.weight"].numpy() - one.values[table.name]
        np.testing.assert_allclose(update.rows[table.name], own, atol=2e-5)
        assert np.abs(own).max() > 1e-4
    assert update.samples == len(lot.learned)
    assert update.loss == pytest.approx(total / len(lot.learned), rel=1e-4)


def test_what_a_personal_row_was_before_has_no_influence_on_what_is_uploaded(
    task: Task, data: Interactions, train: Train
) -> None:
    one = work(task, data, 3)
    other = replace(one, values={**one.values, "user": one.values["user"] + 2})
    updates = [train(task, own, SETTINGS) for own in (one, other)]
    assert updates[0].dense.any()
    assert np.array_equal(updates[0].dense, updates[1].dense)
    for name in ("item", "category"):
        assert np.array_equal(updates[0].rows[name], updates[1].rows[name])
    kept = [
        own.values["user"] + update.rows["user"] for own, update in zip((one, other), updates, strict=True)
    ]
    np.testing.assert_allclose(*kept, atol=1e-6)
    before = [train(task, own, replace(SETTINGS, rebuild=0.0)).dense for own in (one, other)]
    assert not np.array_equal(*before)


def test_what_is_shared_does_not_see_the_samples_that_rebuild(
    task: Task, data: Interactions, train: Train
) -> None:
    one = work(task, data, 3)
    update, lot = train(task, one, SETTINGS), draw_lot(task, one, SETTINGS)
    expected = at(one, lot.learned).data.counts(one.rows)
    unseen = 0
    for name in ("item", "category"):
        assert np.array_equal(update.counts[name], expected[name])
        moved = np.abs(update.rows[name]).sum(axis=1) > 0
        assert np.array_equal(moved, expected[name] > 0)
        unseen += int((~moved).sum())
    assert unseen
    assert update.samples == len(lot.learned) < len(one.data)


def test_a_cohort_is_rebuilt_as_each_client_alone(task: Task, data: Interactions) -> None:
    works = [work(task, data, user, seed=user) for user in range(USERS)]
    works.append(at(works[0], np.zeros(0, np.int64)))
    dense = task.initial_dense()
    for one, rows in zip(works, rebuild_cohort(task, dense, works, SETTINGS, together=3), strict=True):
        alone = rebuild_client(task, dense, one, SETTINGS)
        assert rows.keys() == {"user"}
        np.testing.assert_allclose(rows["user"], alone["user"], atol=1e-5)
        assert rows["user"].any() == bool(len(one.data))


def test_rebuilt_rows_fit_the_samples_they_were_rebuilt_on(task: Task, data: Interactions) -> None:
    one = work(task, data, 3)
    settings = replace(SETTINGS, batch_size=64, rebuild_epochs=20)  # all samples in each step
    rows = rebuild_client(task, task.initial_dense(), one, settings)
    columns = {name: torch.from_numpy(column) for name, column in one.columns.items()}

    def loss(user: np.ndarray) -> float:
        parameters = task.parameters(task.initial_dense(), {**one.values, "user": user})
        return float((_by_biases if task.biases else _by_all)(task, parameters, columns).mean())

    assert loss(rows["user"]) < loss(np.zeros_like(rows["user"]))


def test_what_a_model_knows_by_heart_leaves_a_user_half_its_bias(data: Interactions) -> None:
    """Rows of items that know this user's labels by heart, through the product with the history: from their
    scores there is nothing left to learn, and beside items' biases alone as much as there ever was."""
    task = din(Catalogue.of(data), seed=0)
    one = work(task, data, 3)
    one.columns["label"][:] = 1
    biases = []
    for size in (0.0, 3.0):
        values = {name: np.zeros_like(block) for name, block in one.values.items()}
        values["item"][:, 1] = size  # not the bias: the products with the history are large
        rows = rebuild_client(task, task.initial_dense(), replace(one, values=values), SETTINGS)
        biases.append(float(rows["user"][0, 0]))
    assert biases[0] > 0.3
    assert 0.4 < biases[1] / biases[0] < 0.7


@pytest.mark.parametrize("where", ["item", "label"])
def test_nan_while_rebuilding_moves_nothing(task: Task, data: Interactions, train: Train, where: str) -> None:
    one = work(task, data, 3)
    lot = draw_lot(task, one, SETTINGS)
    assert lot.rebuild is not None
    astray = lot.rebuild[0, 0]
    if where == "label":
        one.columns["label"][astray] = np.nan
    else:
        one.values["item"][one.columns["item"][astray]] = np.inf
    update = train(task, one, SETTINGS)
    assert update.diverged
    assert update.samples == 0
    assert not update.dense.any()
    assert not any(block.any() for block in [*update.rows.values(), *update.counts.values()])
    assert not rebuild_client(task, task.initial_dense(), one, SETTINGS)["user"].any()
    assert not rebuild_cohort(task, task.initial_dense(), [one], SETTINGS)[0]["user"].any()


def test_a_model_without_personal_rows_learns_from_all_samples() -> None:
    task = next_word_lstm(Catalogue.sized(word=5), seed=1, width=4, units=6)
    one = ClientWork({}, {}, Samples({"label": np.zeros(7, np.float32)}, {}), seed=3)
    lots = [draw_lot(task, one, LocalSettings(rebuild=share)) for share in (0.5, 0.0)]
    assert lots[0].rebuild is None
    assert np.array_equal(lots[0].order, lots[1].order)
