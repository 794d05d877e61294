"""The synthetic data have the paper's statistics, its heterogeneity, and a signal of known strength."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest

from sfsl.data import Interactions, SyntheticSettings, SyntheticTaobao, bayes_auc, describe
from sfsl.data.interactions import hold_out_last
from sfsl.data.synthetic import WORLDS
from sfsl.errors import InputError, ParameterError
from sfsl.training import auc

PAPER = SyntheticSettings()
SMALL = PAPER.scaled(0.1, users=2000)


@pytest.fixture(scope="module")
def paper() -> Interactions:
    """A sample of the paper's 49,023 clients; the others are never made."""
    users = np.random.default_rng(0).choice(PAPER.users, 1500, replace=False)
    return SyntheticTaobao(seed=0).interactions(users)


def test_the_papers_table(paper: Interactions) -> None:
    assert (PAPER.users, len(paper.items)) == (49_023, 143_534)
    assert paper.categories is not None
    assert len(paper.categories) == len(np.unique(paper.category_of)) == 4_815
    found = describe(paper)
    assert found.categories is not None
    # Clients differ by a factor of several, so a mean over 1,500 is good to 2 %; ratios are better.
    assert found.samples == pytest.approx(323, rel=0.06)
    assert found.items == pytest.approx(301, rel=0.06)
    assert found.categories == pytest.approx(117, rel=0.06)
    assert found.items / found.samples == pytest.approx(301 / 323.4, rel=0.015)
    assert found.categories / found.items == pytest.approx(117 / 301, rel=0.04)


def test_the_papers_heterogeneity(paper: Interactions) -> None:
    found = describe(paper)
    assert found.single == pytest.approx(0.867, abs=0.008)
    assert found.owners == pytest.approx(1.17, abs=0.015)


def test_the_papers_world_is_the_one_that_its_figures_were_made_of() -> None:
    data = SyntheticTaobao(WORLDS["paper"].scaled(0.05, users=40), seed=2).interactions()
    found = hashlib.sha256()
    assert data.category_of is not None
    for column in (data.item, data.label, data.clicks, data.history_stop, data.category_of):
        found.update(column.tobytes())
    assert found.hexdigest() == "b9070efec8c04bb7adaf005020230b66cd4cd00ae48bba3f199264b0874b7d8c"


def test_items_carry_more_than_their_category_where_there_are_tastes() -> None:
    def learned(world: str) -> tuple[float, float, float]:
        """AUCs on what is held out: by means of items, by means of categories, and the best there is."""
        train, test = hold_out_last(
            SyntheticTaobao(WORLDS[world].scaled(0.1, users=1000), seed=0).interactions()
        )
        assert train.category_of is not None
        assert test.probability is not None

        def by(groups: np.ndarray, of: np.ndarray, count: int) -> float:
            clicks = np.bincount(groups, weights=train.label, minlength=count)
            mean = (clicks + 2) / (np.bincount(groups, minlength=count) + 4)
            return auc(mean[of], test.label)

        category = train.category_of
        return (
            by(train.item, test.item, len(train.items)),
            by(category[train.item], category[test.item], len(category)),
            bayes_auc(test.probability),
        )

    item, category, best = learned("tastes")
    assert best - 0.05 > item > category + 0.03
    item, category, best = learned("paper")
    assert item < category


def test_statistics_count_what_samples_touch(paper: Interactions) -> None:
    some = paper.select(paper.user < 3)
    rows = [some.client(user, max_history=10**6).rows() for user in range(3)]
    found = describe(some, cohort=3, cohorts=1)
    assert found.items == pytest.approx(np.mean([len(one["item"]) for one in rows]))
    assert found.categories == pytest.approx(np.mean([len(one["category"]) for one in rows]))
    _, owners = np.unique(np.concatenate([one["item"] for one in rows]), return_counts=True)
    assert (found.union, found.single) == (len(owners), np.mean(owners == 1))
    assert found.owners == pytest.approx(owners.mean())


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_small_world_overlaps_as_the_large_one(seed: int) -> None:
    found = describe(SyntheticTaobao(SMALL, seed=seed).interactions(range(600)))
    assert found.single == pytest.approx(0.867, abs=0.015)
    assert found.owners == pytest.approx(1.17, abs=0.02)


def test_a_user_follows_from_seed_and_number_alone() -> None:
    world = SyntheticTaobao(SMALL, seed=3)
    both, again = world.interactions([7, 1999]), SyntheticTaobao(SMALL, seed=3).interactions([1999])
    for name, column in again.client(0).columns.items():
        if name != "user":
            assert np.array_equal(both.client(1).columns[name], column)
    other = SyntheticTaobao(SMALL, seed=4).interactions([1999])
    assert not np.array_equal(other.item, again.item)
    assert not np.array_equal(other.time, again.time)  # neither the world nor the user is the same
    assert not np.array_equal(world.interactions([1998]).item, again.item)


def test_users_are_made_only_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    original = SyntheticTaobao._user
    monkeypatch.setattr(
        SyntheticTaobao, "_user", lambda world, user: (made.append(user), original(world, user))[1]
    )
    SyntheticTaobao(seed=0).interactions([5, 40_000])
    assert made == [5, 40_000]


def test_histories_hold_earlier_clicks_only(paper: Interactions) -> None:
    own = paper.client(3, max_history=10**6).columns
    clicks: list[int] = []
    first = (own["history"][0] >= 0).sum()
    for item, label, history in zip(own["item"], own["label"], own["history"], strict=True):
        seen = history[history >= 0].tolist()
        assert seen[first:] == clicks
        clicks += [int(item)] if label else []
    assert first > 0


def test_labels_are_drawn_with_their_probabilities(paper: Interactions) -> None:
    assert paper.probability is not None
    order = np.argsort(paper.probability)
    for part in np.array_split(order, 20):
        expected = paper.probability[part].mean()
        error = np.sqrt(expected * (1 - expected) / len(part))
        assert abs(paper.label[part].mean() - expected) < 4 * error


def test_bayes_auc_is_the_expected_auc() -> None:
    rng = np.random.default_rng(0)
    probability = rng.choice([0.1, 0.3, 0.3001, 0.8], 7)
    pairs = wins = 0.0
    for one, p in enumerate(probability):
        for other, q in enumerate(probability):
            if one != other:
                pairs += p * (1 - q)
                wins += p * (1 - q) * (1.0 if p > q else 0.5 if p == q else 0.0)
    assert bayes_auc(probability) == pytest.approx(wins / pairs, abs=1e-12)
    many = rng.random(200_000)
    assert bayes_auc(many) == pytest.approx(5 / 6, abs=0.002)  # for uniform probabilities


def test_no_score_beats_the_true_probabilities(paper: Interactions) -> None:
    assert paper.probability is not None
    best = bayes_auc(paper.probability)
    assert best == pytest.approx(0.753, abs=0.01)
    assert auc(paper.probability, paper.label) == pytest.approx(best, abs=0.003)
    assert auc(paper.probability**3, paper.label) == pytest.approx(best, abs=0.003)
    # What everyone's clicks can teach, without the user's own liking.
    appeal = SyntheticTaobao(seed=0)._appeal[paper.item]
    assert 0.66 < auc(appeal, paper.label) < best - 0.03
    assert auc(np.random.default_rng(0).random(len(paper)), paper.label) == pytest.approx(0.5, abs=0.003)


def test_a_stronger_signal_has_a_higher_ceiling() -> None:
    def ceiling(strength: float) -> float:
        settings = replace(SMALL, category_appeal=strength, item_appeal=strength, liking=strength)
        data = SyntheticTaobao(settings, seed=0).interactions(range(300))
        assert data.probability is not None
        return bayes_auc(data.probability)

    assert ceiling(0.0) == pytest.approx(0.5)
    assert ceiling(0.0) < ceiling(0.5) - 0.1 < ceiling(1.5) - 0.2


@pytest.mark.parametrize(
    "bad", [{"items": 10}, {"users": 0}, {"samples": 0}, {"popularity": float("nan")}, {"stray": 1.5}]
)
def test_impossible_worlds_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ParameterError):
        replace(PAPER, **bad)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="numbered 0 to 1999"):
        SyntheticTaobao(SMALL, seed=0).interactions([2000])
