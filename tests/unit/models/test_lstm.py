"""The LSTM that guesses the next word."""

import numpy as np
import pytest
import torch
from torch.func import functional_call

from sfsl.data import Role, Speech, speech_of
from sfsl.data.catalogue import Catalogue
from sfsl.data.words import NextWords
from sfsl.models import next_word_lstm
from sfsl.training import (
    ClientWork,
    LocalSettings,
    Task,
    reference_score,
    score_samples,
    train_client,
)

torch.set_num_threads(1)


@pytest.fixture
def speech() -> Speech:
    return speech_of(
        [
            Role("p", "a", ("To be, or not to be:", "that is the question.")),
            Role("p", "b", ("Words, words, words.",)),
            Role("p", "c", ("O!",)),
        ]
    )


def work(task: Task, data: NextWords, seed: int = 0) -> ClientWork:
    rows, _ = task.needed_rows(data)
    rng = np.random.default_rng(seed)
    values = {"word": rng.standard_normal((len(rows["word"]), task.tables[0].width)).astype(np.float32)}
    return ClientWork(rows, values, data, seed)


def scores(task: Task, one: ClientWork, columns: dict[str, np.ndarray], fillers: int = 0) -> torch.Tensor:
    filled = {"word": np.pad(one.values["word"], ((0, fillers), (0, 0)), constant_values=9)}
    parameters = task.parameters(task.initial_dense(), filled)
    batch = {name: torch.from_numpy(column) for name, column in columns.items()}
    return functional_call(task.module, parameters, (batch,))


@pytest.fixture
def task(speech: Speech) -> Task:
    return next_word_lstm(Catalogue.of_words(speech.vocabulary), seed=0, width=4, units=5)


def test_chances_of_all_own_words_sum_to_one(speech: Speech, task: Task) -> None:
    one = work(task, speech.windows(0.2)[0].client(0))
    columns = one.data.local_columns(one.rows)
    known = len(one.rows["word"])
    assert set(columns["known"]) == {known}
    every = {name: np.repeat(column[3:4], known, axis=0) for name, column in columns.items()}
    every["target"] = np.arange(known)
    for fillers in (0, 3):
        chances = scores(task, one, every, fillers).exp() / known
        torch.testing.assert_close(chances.sum(), torch.tensor(1.0))


def test_fillers_and_the_order_of_words(speech: Speech, task: Task) -> None:
    one = work(task, speech.windows(0.2)[0].client(0))
    columns = dict(one.data.local_columns(one.rows))
    longer = columns | {"context": np.pad(columns["context"], ((0, 0), (0, 2)), constant_values=-1)}
    plain = scores(task, one, columns)
    torch.testing.assert_close(plain, scores(task, one, longer))
    turned = columns | {"context": columns["context"][:, ::-1].copy()}
    assert not torch.allclose(plain[-1], scores(task, one, turned)[-1])


def test_it_is_the_coupled_lstm_that_it_says(speech: Speech, task: Task) -> None:
    one = work(task, speech.windows(0.2)[0].client(0))
    columns, rows = one.data.local_columns(one.rows), one.values["word"]
    dense = {
        name: value.detach().numpy() for name, value in task.module.named_parameters() if "word" not in name
    }

    def sigmoid(x: np.ndarray) -> np.ndarray:
        return np.asarray(1 / (1 + np.exp(-x)))

    for place, score in enumerate(scores(task, one, dict(columns)).tolist()):
        state, cell = np.zeros(5), np.zeros(5)
        for word in columns["context"][place]:
            if word >= 0:
                given = dense["given.weight"] @ rows[word, :-1] + dense["given.bias"]
                entry, leave, fresh = np.split(given + dense["before.weight"] @ state, 3)
                cell = (1 - sigmoid(entry)) * cell + sigmoid(entry) * np.tanh(fresh)
                state = sigmoid(leave) * np.tanh(cell)
        fit = rows[:, :-1] @ (dense["meant.weight"] @ state + dense["meant.bias"]) + rows[:, -1]
        chance = np.exp(fit)[columns["target"][place]] / np.exp(fit).sum()
        np.testing.assert_allclose(score, np.log(chance * len(rows)), rtol=1e-3, atol=1e-4)


def test_it_learns_and_scores_the_next_word(speech: Speech, task: Task) -> None:
    data = speech.windows(0.2)[0].client(0)
    one = work(task, data)
    local = LocalSettings(batch_size=2, epochs=60, learning_rate=0.5, clip=1.0)
    dense = task.initial_dense()
    update = train_client(task, dense, one, local)
    assert (update.counts["word"] == len(data)).all()
    before = score_samples(task, dense, one.rows, one.values, data)
    after = score_samples(
        task, dense + update.dense, one.rows, {"word": one.values["word"] + update.rows["word"]}, data
    )
    assert after.mean() > before.mean()
    # A right guess beats a blind one as far as it can: a chance of 1 among the words known.
    known = len(one.rows["word"])
    np.testing.assert_allclose(after, known / (known + 1), atol=0.02)
    assert reference_score(task, dense, data) == 0.5


def test_what_did_not_come_next_teaches_nothing(speech: Speech, task: Task) -> None:
    test = speech.windows(0.5)[1].client(0)
    wrong = NextWords(test.samples.at(np.flatnonzero(test.samples.columns["label"] == 0)))
    update = train_client(task, task.initial_dense(), work(task, wrong), LocalSettings())
    assert update.samples == 4
    assert not update.dense.any()
