"""A compiled step trains what the plain one trains, is compiled once, and where it cannot be, it is said."""

import warnings
from collections.abc import Callable
from itertools import chain
from shutil import which

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._dynamo.utils import counters

from sfsl.data import Interactions, Samples, SyntheticSettings, SyntheticTaobao
from sfsl.data.catalogue import Catalogue
from sfsl.errors import SlowerTraining
from sfsl.models import bst, din, logistic_regression
from sfsl.submodel import Table
from sfsl.training import ClientWork, LocalSettings, Task, train_client, train_cohort
from sfsl.training.places import PLACES, _changes, _deal
from sfsl.training.stack import timetable
from sfsl.training.task import Batch
from sfsl.training.work import draw_lot

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch warns itself
COMPILED = LocalSettings(compiled=True)
REBUILT = LocalSettings(compiled=True, rebuild=0.4, rebuild_rate=3.0)
CLIENTS = 3 * PLACES


MODELS: dict[str, Callable[[Interactions], Task]] = {
    "din": lambda data: din(Catalogue.of(data), seed=1, width=4),
    "bst": lambda data: bst(Catalogue.of(data), seed=1, width=4),
    "logistic": lambda data: logistic_regression(Catalogue.of(data)),
}


def recommenders(samples: int, seed: int, model: str = "din") -> tuple[Task, list[ClientWork]]:
    """Clients who differ in what they have; the last has nothing."""
    world = SyntheticSettings(users=CLIENTS, items=50, categories=8, samples=samples, spread=0.9, interests=3)
    data = SyntheticTaobao(world, seed=seed).interactions()
    task = MODELS[model](data)
    works = []
    for client in range(CLIENTS):
        own = data.client(client)
        own = own.keep({"item": own.rows()["item"] if client < CLIENTS - 1 else np.zeros(0, np.int64)})
        rows, _ = task.needed_rows(own)
        rng = np.random.default_rng(client)
        values = {
            one.name: 0.3 * rng.standard_normal((len(rows[one.name]), one.width)).astype(np.float32)
            for one in task.tables
        }
        works.append(ClientWork(rows, values, own, seed=client))
    return task, works


@pytest.mark.skipif(not (which("g++") or which("clang++")), reason="needs a C++ compiler")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "settings"), [*((model, COMPILED) for model in MODELS), ("din", REBUILT), ("logistic", REBUILT)]
)
def test_compiled_once_and_as_alone(model: str, settings: LocalSettings) -> None:
    task, works = recommenders(samples=9, seed=3, model=model)
    counters.clear()
    busy = [client for client, work in enumerate(works) if len(work.data)]
    steps = [len(draw_lot(task, works[client], settings).order) for client in busy]
    shared = [place for place in _deal(steps, 1)[0] if len(place) > 1]
    assert len(shared) > 3
    astray = busy[shared[0][0]]
    works[astray].values["item"][:] = np.inf  # another takes its place afterwards
    made = []
    for cohort, number in [(works, 0), (works[:4], 5)]:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            updates = train_cohort(task, task.initial_dense(), cohort, settings, round_number=number)
        made.append(counters["stats"]["unique_graphs"])
        for work, update in zip(cohort, updates, strict=True):
            alone = train_client(task, task.initial_dense(), work, settings, round_number=number)
            assert (update.samples, update.diverged) == (alone.samples, alone.diverged)
            np.testing.assert_allclose(update.loss, alone.loss, rtol=1e-4)
            np.testing.assert_allclose(update.dense, alone.dense, atol=2e-5)
            for table, rows in alone.rows.items():
                np.testing.assert_allclose(update.rows[table], rows, atol=2e-5)
                assert np.array_equal(update.counts[table], alone.counts[table])
            assert update.dense.any() == bool(update.samples)
    assert made[0] == made[1] > 0
    again = train_cohort(task, task.initial_dense(), works, settings)
    assert [client for client, update in enumerate(again) if update.diverged] == [astray]


class Dot(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.item = nn.Embedding(6, 3)
        self.last = nn.Linear(3, 1)

    def forward(self, batch: Batch) -> Tensor:
        logit: Tensor = self.last(self.item(batch["item"]))[..., 0]
        return logit


def simple(*looked_up: str) -> tuple[Task, list[ClientWork]]:
    works = []
    for seed, samples in enumerate([7, 2]):
        rng = np.random.default_rng(seed)
        columns = {"item": rng.integers(0, 6, samples), "label": np.ones(samples, np.float32)}
        data = Samples(columns, {"item": "item"})
        values = rng.standard_normal((len(data.rows()["item"]), 3)).astype(np.float32)
        works.append(ClientWork(data.rows(), {"item": values}, data, seed))
    return Task(Dot(), (Table(name="item", rows=6, width=3),), looked_up=looked_up), works


def test_without_a_compiler_it_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch._inductor.config.cpp.cxx", ("no-such-compiler",))
    task, works = simple("item")
    with pytest.warns(SlowerTraining, match="Dot cannot be compiled, and is trained without") as said:
        updates = train_cohort(task, task.initial_dense(), works, COMPILED)
    assert [one.category for one in said].count(SlowerTraining) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        again = train_cohort(task, task.initial_dense(), works, COMPILED)
        plain = train_cohort(task, task.initial_dense(), works, LocalSettings())
    for three in zip(updates, again, plain, strict=True):
        assert len({one.dense.tobytes() + one.rows["item"].tobytes() for one in three}) == 1


def test_a_step_that_takes_a_whole_table_is_not_compiled() -> None:
    task, works = simple()
    with pytest.warns(SlowerTraining, match="cannot be compiled, .* another shape in each round"):
        assert all(one.samples for one in train_cohort(task, task.initial_dense(), works, COMPILED))


@given(steps=st.lists(st.integers(1, 40), min_size=1, max_size=60), cores=st.integers(1, 3))
def test_everyone_has_a_place_and_no_place_waits(steps: list[int], cores: int) -> None:
    dealt = _deal(steps, cores)
    places = list(chain.from_iterable(dealt))
    assert sorted(chain.from_iterable(places)) == list(range(len(steps)))
    loads = sorted(sum(steps[client] for client in own) for own in places)
    # The longest first: whoever ends last began when no place was free.
    assert loads[-1] <= sum(steps) / (cores * PLACES) + max(steps)
    orders = [np.full((count, 2), client) for client, count in enumerate(steps)]
    for own in dealt:
        table = timetable(own, orders, dict.fromkeys(chain.from_iterable(own), 0))
        there: dict[int, int | None] = {}
        changes = _changes(own, orders)
        for step in range(table.shape[1]):
            there |= dict(changes.get(step, ()))
            for place in range(PLACES):
                client = there[place]
                assert (table[place, step] == (-1 if client is None else client)).all()
        assert all(client is None for _, client in changes[table.shape[1]])


def test_a_timetable_ends_with_whole_graphs_of_steps() -> None:
    """A GPU takes several steps at a time: there must be fillers for those beyond the last."""
    order = np.arange(6).reshape(3, 2)
    table = timetable([[0], [1]], [order, order[:1]], {0: 0, 1: 6}, multiple=8)
    assert table.shape == (2, 8, 2)
    assert table[0, :3].tolist() == order.tolist()
    assert table[1, 0].tolist() == [6, 7]
    assert (table[0, 3:] == -1).all()
    assert (table[1, 1:] == -1).all()
    assert timetable([[0]], [order], {0: 0}).shape == (1, 3, 2)
