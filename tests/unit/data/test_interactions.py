"""The columnar container: order, histories, hold-out, negatives."""

import numpy as np
import pytest

from sfsl.data import NO_ROW, Interactions, assemble, hold_out_last, with_negatives
from sfsl.errors import InputError


def made() -> Interactions:
    return assemble(
        user=[7, 3, 7, 7, 3, 7],
        item=[50, 10, 20, 10, 30, 30],
        label=[1, 1, 0, 1, 0, 1],
        time=[4.0, 1.0, 2.0, 1.0, 2.0, 4.0],
        category=[5, 1, 2, 1, 3, 3],
    )


def test_samples_stand_by_user_and_time() -> None:
    data = made()
    assert data.users.tolist() == [3, 7]
    assert data.items.tolist() == [10, 20, 30, 50]
    assert data.offsets.tolist() == [0, 2, 6]
    assert data.items[data.item].tolist() == [10, 30, 10, 20, 50, 30]
    assert data.user.tolist() == [0, 0, 1, 1, 1, 1]
    assert data.categories is not None
    assert data.category_of is not None
    assert data.categories[data.category_of].tolist() == [1, 2, 3, 5]


def test_histories_are_strictly_earlier_clicks() -> None:
    # The two clicks of user 7 at time 4 do not see each other: one would give the other's label away.
    history = made().client(1).columns["history"]
    assert history.tolist() == [[NO_ROW], [0], [0], [0]]
    assert made().client(1).columns["history_category"].tolist() == [[NO_ROW], [0], [0], [0]]


def test_max_history_keeps_the_latest() -> None:
    data = assemble(user=[1] * 5, item=[10, 11, 12, 13, 14], label=[1] * 5, time=np.arange(5))
    assert data.client(0, max_history=2).columns["history"].tolist() == [
        [NO_ROW, NO_ROW],
        [0, NO_ROW],
        [0, 1],
        [1, 2],
        [2, 3],
    ]


@pytest.mark.parametrize(
    "bad", [{"label": [1, 2]}, {"time": [0.0, np.nan]}, {"item": [1]}, {"label": [1]}, {"user": []}]
)
def test_columns_that_cannot_be_used_are_refused(bad: dict[str, list[float]]) -> None:
    good = {"user": [1, 1], "item": [1, 2], "label": [0, 1], "time": [1.0, 2.0]}
    assemble(**good)
    with pytest.raises(InputError):
        assemble(**(good | bad))


def test_hold_out_takes_each_users_last_fifth() -> None:
    user = np.repeat([1, 2, 3], [10, 4, 5])
    time = np.concatenate([np.arange(10)[::-1], np.arange(4), np.arange(5)])
    data = assemble(user, np.arange(len(user)), np.ones(len(user)), time)
    train, test = hold_out_last(data)
    assert np.diff(train.offsets).tolist() == [8, 4, 4]
    assert np.diff(test.offsets).tolist() == [2, 0, 1]
    assert test.time.tolist() == [8, 9, 4]
    assert data.items[test.item].tolist() == [1, 0, 18]
    # A held-out sample keeps the history that was known at its time.
    assert (test.client(0).columns["history"] >= 0).sum(axis=1).tolist() == [8, 9]
    assert test.clients.tolist() == [0, 2]


@pytest.mark.parametrize("share", [0.0, 1.0, -0.2, float("nan")])
def test_hold_out_refuses_a_share_that_is_none(share: float) -> None:
    with pytest.raises(InputError):
        hold_out_last(made(), share)


def clicks_only(users: int = 30, per_user: int = 20, items: int = 500) -> Interactions:
    rng = np.random.default_rng(4)
    count = users * per_user
    return assemble(
        np.repeat(np.arange(users), per_user),
        rng.integers(0, items, count),
        np.ones(count),
        rng.random(count),
    )


def test_negatives_stand_beside_their_click_and_are_new_to_the_user() -> None:
    data = clicks_only()
    full = with_negatives(data, per_click=2, seed=1)
    assert len(full) == 3 * len(data)
    assert full.label.reshape(-1, 3).tolist() == [[1, 0, 0]] * len(data)
    assert np.array_equal(full.item[::3], data.item)
    assert np.array_equal(full.offsets, 3 * data.offsets)
    for column in ("time", "history_stop"):
        assert np.array_equal(getattr(full, column)[1::3], getattr(data, column))
    for user in range(len(data.users)):
        own = full.client(user).columns
        assert not set(own["item"][own["label"] == 0]) & set(own["item"][own["label"] == 1])


def test_negatives_follow_from_the_seed() -> None:
    data = clicks_only()
    assert np.array_equal(with_negatives(data, seed=1).item, with_negatives(data, seed=1).item)
    assert not np.array_equal(with_negatives(data, seed=1).item, with_negatives(data, seed=2).item)


def test_negatives_end_even_where_everything_was_clicked() -> None:
    data = assemble(user=[1, 1], item=[1, 2], label=[1, 1], time=[1, 2])
    assert len(with_negatives(data, seed=1)) == 4
    with pytest.raises(InputError, match="at least 1"):
        with_negatives(data, per_click=0, seed=1)


@pytest.mark.parametrize("per_click", [1, 3])
def test_items_that_were_drawn_beside_clicks_are_seen(per_click: int) -> None:
    data = clicks_only()
    assert not data.drawn_beside, "there is nothing but clicks"
    full = with_negatives(data, per_click=per_click, seed=1)
    assert full.drawn_beside
    assert full.at(np.arange(0), np.zeros(31, np.int64)).drawn_beside is False


def test_ratings_are_not_taken_for_items_that_were_drawn() -> None:
    rng, user = np.random.default_rng(5), np.repeat(np.arange(200), 40)
    liked = rng.random(len(user)) < 0.5
    rated = assemble(user, rng.integers(0, 500, len(user)), liked, rng.random(len(user)))
    assert not rated.drawn_beside
    full = with_negatives(clicks_only(users=100), seed=1)
    first = np.flatnonzero(full.label == 0)[:1]
    full.label[first] = 1
    assert full.drawn_beside, "one user of a hundred may be an exception"
    full.label[np.flatnonzero((full.label == 0) & (full.user == 7))[0]] = 1
    assert not full.drawn_beside


def test_chunks_cover_everything_once() -> None:
    data = clicks_only()
    items = np.concatenate([chunk.columns["item"] for chunk in data.chunks(size=101)])
    assert np.array_equal(items, data.item)


def test_an_unknown_user_is_an_error() -> None:
    with pytest.raises(InputError, match="no user 2"):
        made().client(2)
