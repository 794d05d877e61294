"""One client's samples: the rows they need, the paper's two rules, counts, and local row numbers."""

import numpy as np
import pytest

from sfsl.data import NO_ROW, Samples
from sfsl.errors import InputError

CATEGORY_OF = np.array([0, 0, 1, 1, 2, 2, 2, 3])


def rows(**tables: list[int]) -> dict[str, np.ndarray]:
    return {name: np.array(some, dtype=np.int64) for name, some in tables.items()}


@pytest.fixture
def samples() -> Samples:
    item = np.array([0, 2, 4, 6])
    history = np.array([[NO_ROW, NO_ROW, NO_ROW], [0, NO_ROW, NO_ROW], [0, 2, 0], [5, 3, 2]])
    columns = {
        "user": np.full(4, 9),
        "item": item,
        "history": history,
        "item_category": CATEGORY_OF[item],
        "history_category": np.where(history >= 0, CATEGORY_OF[history], NO_ROW),
        "label": np.array([1, 0, 1, 0], dtype=np.float32),
    }
    tables = {"user": "user", "item": "item", "history": "item"}
    tables |= {"item_category": "category", "history_category": "category"}
    return Samples(columns, tables, {"item_category": "item", "history_category": "history"})


def test_rows_are_all_that_samples_touch(samples: Samples) -> None:
    needed = samples.rows()
    assert needed["item"].tolist() == [0, 2, 3, 4, 5, 6]
    assert needed["category"].tolist() == [0, 1, 2]
    assert needed["user"].tolist() == [9]


def test_first_rule_a_sample_goes_with_its_item(samples: Samples) -> None:
    kept = samples.keep(rows(item=[0, 2, 3, 5, 6], user=[9]))
    assert kept.columns["item"].tolist() == [2, 6]


def test_second_rule_a_history_is_thinned_and_an_empty_one_goes(samples: Samples) -> None:
    kept = samples.keep(rows(item=[2, 3, 4, 6]))
    assert kept.columns["item"].tolist() == [4, 6]  # of sample 1 nothing is left in the history
    assert kept.columns["history"].tolist() == [[2, NO_ROW], [3, 2]]


def test_samples_that_never_had_a_history_go_too(samples: Samples) -> None:
    assert samples.keep(samples.rows()).columns["item"].tolist() == [2, 4, 6]


def test_categories_stay_in_step_with_their_goods(samples: Samples) -> None:
    # Category 1 is kept through item 2; the 3 that also belongs to it is gone, and its place with it.
    kept = samples.keep(rows(item=[2, 5, 6], category=[1, 2]))
    assert kept.columns["history"].tolist() == [[5, 2]]
    assert kept.columns["history_category"].tolist() == [[2, 1]]


def test_keep_with_nothing_leaves_an_empty_client(samples: Samples) -> None:
    kept = samples.keep(rows(item=[]))
    assert len(kept) == 0
    assert kept.counts(rows(item=[1, 2]))["item"].tolist() == [0, 0]
    assert {name: len(column) for name, column in kept.local_columns(rows(item=[])).items()} == dict.fromkeys(
        samples.columns, 0
    )


def test_a_sample_counts_once_for_a_row_it_has_twice(samples: Samples) -> None:
    counts = samples.counts(samples.rows())
    assert dict(zip(samples.rows()["item"].tolist(), counts["item"].tolist(), strict=True)) == {
        0: 3,
        2: 3,
        3: 1,
        4: 1,
        5: 1,
        6: 1,
    }
    assert counts["category"].tolist() == [3, 3, 2]
    assert counts["user"].tolist() == [4]


def test_local_columns_hold_positions(samples: Samples) -> None:
    local = samples.local_columns(samples.rows())
    assert local["item"].tolist() == [0, 1, 3, 5]
    assert local["history"][2].tolist() == [0, 1, 0]
    assert local["history"][0].tolist() == [NO_ROW] * 3
    assert local["user"].tolist() == [0] * 4
    assert local["label"].tolist() == [1, 0, 1, 0]


def test_rows_not_at_hand_are_an_error(samples: Samples) -> None:
    with pytest.raises(InputError, match="not at hand"):
        samples.local_columns(rows(item=[0, 2]))


def test_private_data_stays_out_of_messages(samples: Samples) -> None:
    assert repr(samples) == "Samples(<4 samples>)"


def test_columns_must_agree() -> None:
    with pytest.raises(InputError, match="differ in length"):
        Samples({"item": np.arange(3), "label": np.arange(2)}, {"item": "item"})
    with pytest.raises(InputError, match="no column 'film'"):
        Samples({"item": np.arange(3)}, {"film": "item"})
