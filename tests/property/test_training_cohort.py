"""A cohort in one pass learns what its clients learn one by one, whatever each of them has."""

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sfsl.data import Interactions, Speech, SyntheticSettings, SyntheticTaobao
from sfsl.data.catalogue import Catalogue
from sfsl.models import bst, dien, din, logistic_regression, next_word_lstm
from sfsl.training import ClientWork, LocalSettings, Task, train_client, train_cohort
from sfsl.training.task import ClientData

torch.set_num_threads(1)

WORDS = 30
CLIENTS = 6


def clicks(categories: bool) -> Interactions:
    world = SyntheticSettings(users=CLIENTS, items=40, categories=8, samples=6, spread=0.9, interests=3)
    data = SyntheticTaobao(world, seed=3).interactions()
    if categories:
        return data
    known = {name: getattr(data, name) for name in data.__dataclass_fields__}
    return Interactions(**(known | {"category_of": None, "categories": None}))


def speech() -> Speech:
    rng = np.random.default_rng(4)
    lengths = rng.integers(3, 25, CLIENTS)
    spoken = rng.integers(0, WORDS, lengths.sum()).astype(np.int32)
    return Speech([f"w{one}" for one in range(WORDS)], np.cumsum([0, *lengths]), spoken)


DATA = {True: clicks(True), False: clicks(False)}
SPOKEN = speech().windows(0.2, context=4)[0]
TASKS: dict[tuple[str, bool], Task] = {
    (name, categories): make(DATA[categories])
    for categories in (True, False)
    for name, make in {
        "din": lambda data: din(Catalogue.of(data), seed=1, width=4),
        "dien": lambda data: dien(Catalogue.of(data), seed=1, width=4),
        "bst": lambda data: bst(Catalogue.of(data), seed=1, width=4),
        "logistic": lambda data: logistic_regression(Catalogue.of(data)),
    }.items()
}
LSTM = next_word_lstm(Catalogue.sized(word=WORDS), seed=1, width=4, units=6)


def work(task: Task, data: ClientData, share: float, seed: int) -> ClientWork:
    """A client whose perturbed set lost some of its rows."""
    rng, table = np.random.default_rng(seed), next(one for one in task.tables if one.kind == "shared")
    real, _ = task.needed_rows(data)
    held = rng.random(len(real[table.name])) < share
    data = data.keep({table.name: real[table.name][held]})
    rows, _ = task.needed_rows(data)
    values = {
        one.name: 0.3 * rng.standard_normal((len(rows[one.name]), one.width)).astype(np.float32)
        for one in task.tables
    }
    return ClientWork(rows, values, data, seed=seed)


@pytest.mark.parametrize("name", ["din", "dien", "bst", "lstm", "logistic"])
@settings(max_examples=12, deadline=None)
@given(
    clients=st.lists(
        st.tuples(st.integers(0, CLIENTS - 1), st.sampled_from([0.0, 0.3, 0.8, 1.0]), st.integers(0, 99)),
        min_size=1,
        max_size=5,
    ),
    categories=st.booleans(),
    batch_size=st.integers(1, 5),
    epochs=st.integers(1, 2),
    clip=st.sampled_from([0.05, 100.0]),
    together=st.integers(1, 5),
    rebuild=st.sampled_from([0.0, 0.3, 0.5]),
    max_samples=st.sampled_from([0, 1, 4]),
)
def test_together_as_alone(
    name: str,
    clients: list[tuple[int, float, int]],
    categories: bool,
    batch_size: int,
    epochs: int,
    clip: float,
    together: int,
    rebuild: float,
    max_samples: int,
) -> None:
    task = LSTM if name == "lstm" else TASKS[name, categories]
    local = LocalSettings(
        batch_size,
        epochs,
        learning_rate=0.1,
        clip=clip,
        rebuild=rebuild,
        rebuild_rate=0.3,
        rebuild_epochs=3 - epochs,
        max_samples=max_samples,
    )
    cohort = [
        work(task, SPOKEN.client(one) if name == "lstm" else DATA[categories].client(one), share, seed)
        for one, share, seed in clients
    ]
    dense = task.initial_dense()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a model that is looped over would prove nothing
        updates = train_cohort(task, dense, cohort, local, round_number=2, together=together)
    for one, update in zip(cohort, updates, strict=True):
        alone = train_client(task, dense, one, local, round_number=2)
        assert (update.samples, update.diverged) == (alone.samples, alone.diverged)
        np.testing.assert_allclose(update.loss, alone.loss, rtol=1e-4)
        np.testing.assert_allclose(update.dense, alone.dense, atol=2e-5)
        for table, rows in alone.rows.items():
            np.testing.assert_allclose(update.rows[table], rows, atol=2e-5)
            assert np.array_equal(update.counts[table], alone.counts[table])
        # Whoever knows a single word guesses it, and learns nothing.
        assert not update.samples or update.dense.any() or update.loss == 0
