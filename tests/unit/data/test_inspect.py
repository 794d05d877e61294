"""A first look at data: what columns hold, which is which, what would be left out."""

from pathlib import Path

import pytest

from sfsl.data import inspect_table, load_table
from sfsl.plan.data import count_data


@pytest.fixture
def ratings(tmp_path: Path) -> Path:
    path = tmp_path / "ratings.csv"
    rows = (f"{n % 20},m{n % 7},{n % 5 + 1},{1_500_000_000 + n},x\n" for n in range(400))
    path.write_text("userId,movie_id,rating,timestamp,note\n" + "".join(rows) + "1,m1,5,never,y\n")
    return path


def test_columns_and_guesses_with_reasons(ratings: Path) -> None:
    found = inspect_table(ratings)
    assert {one.name: one.kind for one in found.columns} == {
        "userId": "whole numbers", "movie_id": "text", "rating": "whole numbers",
        "timestamp": "whole numbers", "note": "text",
    }  # fmt: skip
    assert {one.field: one.column for one in found.guesses} == {
        "user": "userId", "item": "movie_id", "label": "rating", "time": "timestamp",
    }  # fmt: skip
    reasons = {one.field: one.reason for one in found.guesses}
    assert reasons["time"] == "its name, and it holds seconds since 1970, 2017-07-14 to 2017-07-14"
    assert reasons["label"] == "its name, and it holds 5 different whole numbers from 1 to 5"
    assert found.rule == "rating>=4"
    assert found.flags == '--columns user=userId,item=movie_id,time=timestamp --label "rating>=4"'
    assert found.report is not None
    assert found.report.problems == {"time is neither a number nor a date": 1}
    assert found.refused == ""


def test_what_is_said_is_not_guessed(ratings: Path) -> None:
    found = inspect_table(ratings, columns={"item": "note"}, label="rating>=5")
    assert {one.field: one.column for one in found.guesses}["item"] == "note"
    assert found.rule == "rating>=5"
    assert found.data is not None
    assert found.data.label.mean() == pytest.approx(0.2)


def test_what_would_be_refused(tmp_path: Path, ratings: Path) -> None:
    assert "cannot be used" in inspect_table(ratings, unusable=0.001).refused
    assert "no column named" in inspect_table(ratings, columns={"item": "film"}).refused
    path = tmp_path / "c.csv"
    path.write_text("a,b\n1,2\n")
    found = inspect_table(path)
    assert found.missing == ("user", "item", "time")
    assert "--columns user=COLUMN" in found.refused


def test_dates_are_found_without_a_name(tmp_path: Path) -> None:
    path = tmp_path / "c.csv"
    path.write_text("customer,sku,x\n" + "".join(f"{n},{n},2026-05-{n % 28 + 1:02}\n" for n in range(50)))
    found = inspect_table(path)
    assert {one.field: one.column for one in found.guesses} == {
        "user": "customer",
        "item": "sku",
        "time": "x",
    }
    assert found.flags == "--columns user=customer,item=sku,time=x"


def test_a_mapping_of_arrays_is_looked_at_too() -> None:
    found = inspect_table(
        {"user": [1, 1, 2], "item": [1, 2, 2], "liked": [True, False, True], "ts": [1, 2, 3]}
    )
    assert found.rule == "liked"
    assert found.data is not None
    assert found.data.label.tolist() == [1, 0, 1]


def test_figures(ratings: Path) -> None:
    columns = {"user": "userId", "item": "movie_id", "time": "timestamp"}
    figures = count_data(load_table(ratings, columns=columns, label="rating>=4")[0])
    assert (figures.samples, figures.users, figures.items) == (400, 20, 7)
    assert (figures.clicks, figures.learning, figures.tested) == (pytest.approx(0.4), 8, 20)
    assert (figures.per_user.low, figures.per_user.most, figures.owners.middle) == (20, 20, 20)
    assert figures.lonely == 0
