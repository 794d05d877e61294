"""Local training: alone and as a cohort, what is reported, and what happens to NaN."""

import numpy as np
import pytest
import torch

from sfsl.data import Interactions, Samples, SyntheticSettings, SyntheticTaobao
from sfsl.data.catalogue import Catalogue
from sfsl.errors import ParameterError
from sfsl.models import din, logistic_regression
from sfsl.training import ClientWork, LocalSettings, LocalUpdate, Task, train_client, train_cohort
from sfsl.training.work import _order, draw_lot

SETTINGS = LocalSettings()
torch.set_num_threads(1)  # steps this small only wait for each other


@pytest.fixture(scope="module")
def data() -> Interactions:
    settings = SyntheticSettings(
        users=8, items=400, categories=20, samples=15, spread=0.5, interests=5, before=0.0
    )
    return SyntheticTaobao(settings, seed=1).interactions()


@pytest.fixture(scope="module", params=["din", "prelu", "logistic"])
def task(request: pytest.FixtureRequest, data: Interactions) -> Task:
    if request.param == "logistic":
        return logistic_regression(Catalogue.of(data))
    return din(Catalogue.of(data), seed=0, slopes="prelu" if request.param == "prelu" else "dice")


def full_model(task: Task) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(2)
    return {
        table.name: 0.1 * rng.standard_normal((table.rows, table.width)).astype(np.float32)
        for table in task.tables
    }


def work(task: Task, data: Interactions, user: int, share: float = 0.8, seed: int = 0) -> ClientWork:
    """A client whose perturbed set lost some of its items."""
    real, _ = task.needed_rows(data.client(user))
    held = np.random.default_rng(user).random(len(real["item"])) < share
    rows = task.with_derived(dict(real, item=real["item"][held]))
    model = full_model(task)
    values = {name: model[name][some] for name, some in rows.items()}
    return ClientWork(rows, values, data.client(user).keep(rows), seed=seed)


def same(one: LocalUpdate, other: LocalUpdate, tolerance: float = 0.0) -> None:
    np.testing.assert_allclose(one.dense, other.dense, atol=tolerance)
    for name, block in one.rows.items():
        np.testing.assert_allclose(block, other.rows[name], atol=tolerance)
        assert np.array_equal(one.counts[name], other.counts[name])
    assert (one.samples, one.diverged) == (other.samples, other.diverged)
    np.testing.assert_allclose(one.loss, other.loss, rtol=1e-5)


def by_hand(task: Task, one: ClientWork, settings: LocalSettings, rate: float) -> dict[str, torch.Tensor]:
    """The same training in the plainest torch."""
    parameters = task.parameters(task.initial_dense(), one.values)
    columns = {name: torch.from_numpy(column) for name, column in one.data.local_columns(one.rows).items()}
    for order in draw_lot(task, one, settings).order:
        chosen = order[order >= 0]
        leaves = {name: value.clone().requires_grad_() for name, value in parameters.items()}
        batch = {name: column[chosen] for name, column in columns.items()}
        logit = torch.func.functional_call(task.module, leaves, (batch,))
        label = batch["label"]
        loss = -(label * logit.sigmoid().log() + (1 - label) * (1 - logit.sigmoid()).log()).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(leaves.values(), settings.clip)
        parameters = {name: (leaf - rate * leaf.grad).detach() for name, leaf in leaves.items()}
    return parameters


@pytest.mark.parametrize(("clip", "rate"), [(0.1, 1.0), (100.0, 0.1)])
def test_training_is_sgd_with_a_clipped_norm_and_a_decayed_rate(
    task: Task, data: Interactions, clip: float, rate: float
) -> None:
    settings = LocalSettings(batch_size=3, epochs=2, learning_rate=rate, decay=0.9, clip=clip)
    one = work(task, data, 3)
    update = train_client(task, task.initial_dense(), one, settings, round_number=2)
    after = by_hand(task, one, settings, rate=0.81 * rate)
    np.testing.assert_allclose(update.dense, task.dense_vector(after) - task.initial_dense(), atol=2e-5)
    for table in task.tables:
        moved = after[f"{table.name}.weight"].numpy() - one.values[table.name]
        np.testing.assert_allclose(update.rows[table.name], moved, atol=2e-5)
        assert np.abs(moved).max() > 1e-4


def test_a_cohort_trains_as_each_client_alone(task: Task, data: Interactions) -> None:
    dense = task.initial_dense()
    cohort = [work(task, data, user, seed=user) for user in range(8)]
    assert len({len(one.data) for one in cohort}) > 4
    updates = train_cohort(task, dense, cohort, SETTINGS, round_number=3, together=3)
    for one, update in zip(cohort, updates, strict=True):
        same(update, train_client(task, dense, one, SETTINGS, round_number=3), tolerance=1e-5)


def test_the_same_seed_gives_the_same_update(task: Task, data: Interactions) -> None:
    dense = task.initial_dense()
    first = train_client(task, dense, work(task, data, 3, seed=7), SETTINGS)
    torch.rand(3)
    same(first, train_client(task, dense, work(task, data, 3, seed=7), SETTINGS))
    other = train_client(task, dense, work(task, data, 3, seed=8), SETTINGS)
    assert not np.array_equal(first.dense, other.dense)


def test_inputs_are_left_as_they_were(task: Task, data: Interactions) -> None:
    dense, one = task.initial_dense(), work(task, data, 3)
    before = dense.copy(), {name: block.copy() for name, block in one.values.items()}
    train_client(task, dense, one, SETTINGS)
    train_cohort(task, dense, [one, one], SETTINGS)
    assert np.array_equal(dense, before[0])
    assert all(np.array_equal(block, before[1][name]) for name, block in one.values.items())


def test_rows_that_no_sample_touches_do_not_move(task: Task, data: Interactions) -> None:
    cohort = [work(task, data, user) for user in range(8)]
    updates = train_cohort(task, task.initial_dense(), cohort, SETTINGS)
    for one, update in zip(cohort, updates, strict=True):
        assert update.samples == len(one.data)
        for name, counts in update.counts.items():
            moved = np.abs(update.rows[name]).sum(axis=1) > 0
            assert np.array_equal(moved, counts > 0)
    # The case occurs: an item whose only sample had no history left.
    assert any((update.counts["item"] == 0).any() for update in updates)


def test_every_sample_is_seen_once_per_epoch(task: Task, data: Interactions) -> None:
    one = work(task, data, 3)
    order = draw_lot(task, one, LocalSettings(batch_size=4, epochs=3)).order
    per_epoch = order.reshape(3, -1)
    for epoch in per_epoch:
        assert sorted(epoch[epoch >= 0]) == list(range(len(one.data)))
    assert not np.array_equal(per_epoch[0], per_epoch[1])


@pytest.mark.parametrize(
    ("samples", "size", "batches"),
    [
        (0, 16, []),
        (1, 16, [1]),
        (16, 16, [16]),
        (17, 16, [9, 8]),  # and not one that has as much to say as sixteen
        (33, 16, [11, 11, 11]),
        (50, 16, [13, 13, 12, 12]),
        (5, 2, [2, 2, 1]),  # the paper's batches are what they were
        (6, 2, [2, 2, 2]),
        (3, 1, [1, 1, 1]),
    ],
)
def test_batches_of_an_epoch_are_alike(samples: int, size: int, batches: list[int]) -> None:
    rng, again = np.random.default_rng(1), np.random.default_rng(1)
    order = _order(rng, np.arange(samples), 2, size)
    assert order.shape == (2 * len(batches), size)
    assert (order >= 0).sum(axis=1).tolist() == batches * 2
    assert order[order >= 0].tolist() == [*again.permutation(samples), *again.permutation(samples)]
    assert ((order >= 0)[:, :-1] >= (order >= 0)[:, 1:]).all(), "fillers are behind"


def test_a_client_without_samples_reports_zeros(task: Task, data: Interactions) -> None:
    empty = work(task, data, 3, share=0.0)
    assert len(empty.data) == 0
    alone = train_client(task, task.initial_dense(), empty, SETTINGS)
    cohort = train_cohort(task, task.initial_dense(), [empty, work(task, data, 6), empty], SETTINGS)
    for update in (alone, cohort[0], cohort[2]):
        assert update.samples == 0
        assert not update.diverged
        assert not update.dense.any()
        assert update.rows["item"].shape == (0, task.tables[1].width)
    assert cohort[1].samples > 0
    assert all(one.samples == 0 for one in train_cohort(task, task.initial_dense(), [empty], SETTINGS))


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_nan_is_reported_and_kept_out_of_the_sum(task: Task, data: Interactions, poison: float) -> None:
    bad = work(task, data, 3)
    bad.values["item"][0] = poison
    alone = train_client(task, task.initial_dense(), bad, SETTINGS)
    together = train_cohort(task, task.initial_dense(), [bad, work(task, data, 6)], SETTINGS)
    for update in (alone, together[0]):
        assert update.diverged
        assert update.samples == 0
        assert not update.dense.any()
        assert not any(block.any() for block in [*update.rows.values(), *update.counts.values()])
    # Its neighbours in the batch are not touched by it.
    same(together[1], train_client(task, task.initial_dense(), work(task, data, 6), SETTINGS), 1e-5)


def test_a_nan_in_one_sample_is_found_too(task: Task, data: Interactions) -> None:
    one = work(task, data, 3)
    assert isinstance(one.data, Samples)
    one.data.columns["label"][0] = np.nan
    assert train_client(task, task.initial_dense(), one, SETTINGS).diverged


@pytest.mark.parametrize(
    "bad",
    [
        {"batch_size": 0},
        {"epochs": 0},
        {"learning_rate": 0.0},
        {"learning_rate": float("nan")},
        {"decay": 1.1},
        {"clip": 0.0},
        {"rebuild": 1.0},
        {"rebuild": -0.1},
        {"rebuild": float("nan")},
        {"rebuild_rate": float("nan")},
        {"rebuild_rate": 0.0},
        {"rebuild_epochs": 0},
        {"max_samples": -1},
    ],
)
def test_settings_that_cannot_be_meant_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ParameterError):
        LocalSettings(**bad)  # type: ignore[arg-type]
