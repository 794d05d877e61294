"""Pools are scored by one function, and baselines come from what clients train on."""

import math

import numpy as np
import pytest
import torch

from sfsl.data import Samples, SyntheticSettings, SyntheticTaobao, speech_of
from sfsl.data.catalogue import Catalogue
from sfsl.data.words import Role
from sfsl.models import logistic_regression, next_word_lstm
from sfsl.run.fleet import Collected, Fleet, Interacted
from sfsl.scores import evaluate
from sfsl.simulate.engine import baselines_of, item_column, score_pool
from sfsl.submodel import MemoryStore, StoreSpec, Table
from sfsl.training.task import Task


class Rating(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.film = torch.nn.Embedding(3, 1, device="meta")

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.film(batch["film"]).sum(dim=-1)


FILM = Table(name="film", rows=3, width=1, initial=0.0)


def films(rows: list[int], labels: list[int]) -> Samples:
    return Samples({"film": np.array(rows), "label": np.array(labels, np.float32)}, {"film": "film"})


def store_of(task: Task) -> MemoryStore:
    return MemoryStore(StoreSpec(model=task.spec, seed=bytes(32), devices=True), task.initial_dense())


def test_a_task_of_ones_own_is_judged_beside_the_rows_of_its_shared_table() -> None:
    task = Task(Rating(), (FILM,))
    train = {"ann": films([0, 0, 1, 1], [1, 1, 1, 0]), "bob": films([2], [0])}
    fleet = Fleet.of(task, train, {"ann": films([0, 2], [1, 0])})
    assert item_column(task, fleet.train) == "film"
    baselines = baselines_of(task, fleet.train)
    assert baselines is not None
    found = evaluate(score_pool(task, fleet.test, store_of(task)), baselines)
    assert (found.samples, found.auc, found.log_loss) == (2, 0.5, pytest.approx(math.log(2)))
    assert found.base_rate == pytest.approx(0.6)
    assert found.popularity_auc == 1
    popular = (2 + 6) / (2 + 10), (0 + 6) / (1 + 10)
    assert found.popularity_log_loss == pytest.approx(-(math.log(popular[0]) + math.log(1 - popular[1])) / 2)
    assert (found.ndcg, found.users_ranked) == (None, 0)  # whose samples they are is in no column


def test_samples_of_rows_that_the_model_lacks_are_left_out_with_all_they_have() -> None:
    task = Task(Rating(), (FILM,))
    scored = score_pool(task, Collected(films([2, 7, 1], [1, 1, 0]), {"ann": 3}), store_of(task))
    assert scored.items is not None
    assert (len(scored.scores), scored.labels.tolist(), scored.items.tolist()) == (2, [1, 0], [2, 1])


def test_scores_of_another_loss_are_no_chances() -> None:
    def squared(output: torch.Tensor, batch: object) -> torch.Tensor:
        return output**2

    task = Task(Rating(), (FILM,), loss=squared)
    fleet = Fleet.of(task, {"ann": films([0, 1], [1, 0])}, {"ann": films([0, 1], [1, 0])})
    assert baselines_of(task, fleet.train) is None
    found = evaluate(score_pool(task, fleet.test, store_of(task)), None)
    assert (found.auc, found.log_loss, found.calibration) == (0.5, None, ())


def test_words_that_may_come_next_have_an_auc_and_no_log_loss() -> None:
    """A score says how much likelier a word is than a blind guess, and what did not come next is drawn
    from words as common: no chance of anything that a log loss could be about."""
    said = ("the quick brown fox jumps over the lazy dog and then the dog sleeps all day long",) * 3
    speech = speech_of([Role("play", name, said) for name in ("a", "b")])
    train, test = speech.windows(0.3)
    task = next_word_lstm(Catalogue.of_words(speech.vocabulary), seed=0)
    assert baselines_of(task, train) is None
    found = evaluate(score_pool(task, test, store_of(task)), None)
    assert found.samples == len(test) > 10
    assert found.auc is not None
    assert (found.log_loss, found.ndcg, found.base_log_loss, found.popularity_auc) == (None,) * 4


def test_clicks_are_ranked_by_user_and_popularity_is_that_of_training() -> None:
    data = SyntheticTaobao(SyntheticSettings().scaled(0.02, users=30), seed=1).interactions()
    pool = Interacted(data, 20)
    task = logistic_regression(Catalogue.of(data))
    scored = score_pool(task, pool, store_of(task))
    assert scored.users is not None
    assert scored.items is not None
    np.testing.assert_array_equal(scored.users, data.user)
    np.testing.assert_array_equal(scored.items, data.item)
    baselines = baselines_of(task, pool)
    assert baselines is not None
    assert baselines.base == pytest.approx(data.label.mean())
    found = evaluate(scored, baselines)
    assert found.users_ranked > 10
    assert (found.popularity_auc or 0) > 0.6  # it has seen these very samples
    assert (found.popularity_log_loss or 9) < (found.base_log_loss or 0)
