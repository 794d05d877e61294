"""Tables, index maps and derived rows on models small enough to follow by hand, and on huge ones."""

import tracemalloc
from typing import Any

import numpy as np
import pytest

from sfsl.errors import InputError, ParameterError, UnknownRow
from sfsl.submodel import ModelSpec, RowMaps, RowSet, Table

GOODS = Table(name="goods", rows=6, width=2)
CATEGORY = Table(name="category", rows=3, width=2, kind="derived", source="goods")
USER = Table(name="user", rows=100, width=4, kind="personal")
MODEL = ModelSpec(tables=(GOODS, USER, CATEGORY), dense=5)
CATEGORY_OF = np.array([0, 0, 1, 1, 2, 2])


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "goods", "rows": 0, "width": 2},
        {"name": "goods", "rows": 2**63 + 1, "width": 2},
        {"name": "goods", "rows": 2**64, "width": 2},
        {"name": "goods", "rows": 5, "width": 0},
        {"name": "goods", "rows": 5.0, "width": 2},
        {"name": "", "rows": 5, "width": 2},
        {"name": "two words", "rows": 5, "width": 2},
        {"name": "goods", "rows": 5, "width": 2, "kind": "secret"},
        {"name": "goods", "rows": 5, "width": 2, "kind": "derived"},
        {"name": "goods", "rows": 5, "width": 2, "source": "user"},
        {"name": "goods", "rows": 5, "width": 2, "initial": -0.1},
        {"name": "goods", "rows": 5, "width": 2, "initial": float("nan")},
        {"name": "goods", "rows": 5, "width": 2, "initial": float("inf")},
    ],
    ids=repr,
)
def test_impossible_tables_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ParameterError):
        Table(**wrong)


def test_the_largest_table_has_2_to_the_63_rows() -> None:
    assert Table(name="all", rows=2**63, width=1).rows == 2**63


@pytest.mark.parametrize(
    "tables",
    [(GOODS, GOODS), (CATEGORY,), (USER, Table(name="c", rows=3, width=2, kind="derived", source="user"))],
    ids=["same name", "source missing", "source personal"],
)
def test_contradictory_models_are_refused(tables: tuple[Table, ...]) -> None:
    with pytest.raises(ParameterError):
        ModelSpec(tables=tables, dense=0)


def test_personal_tables_are_not_summed_and_declared_order_is_kept() -> None:
    assert [table.name for table in MODEL.summed] == ["goods", "category"]
    assert (MODEL.dense_words, GOODS.words) == (6, 3)


def test_any_difference_between_models_shows_in_the_fingerprint() -> None:
    others = [
        ModelSpec(tables=(GOODS, CATEGORY, USER), dense=5),
        ModelSpec(tables=(GOODS, USER, CATEGORY), dense=6),
        ModelSpec(tables=(Table(name="goods", rows=7, width=2), USER, CATEGORY), dense=5),
        ModelSpec(tables=(Table(name="goods", rows=6, width=2, initial=0.1), USER, CATEGORY), dense=5),
    ]
    assert len({MODEL.fingerprint(), *(other.fingerprint() for other in others)}) == 5
    whole, broken = (Table(name="t", rows=1, width=1, initial=one) for one in (1, 1.0))
    assert (
        ModelSpec(tables=(whole,), dense=0).fingerprint()
        == ModelSpec(tables=(broken,), dense=0).fingerprint()
    )


def test_global_row_union_position_and_local_row() -> None:
    union = RowSet([3, 7, 20, 2**63 - 1])
    mine = union.at(np.array([False, True, True, False]))
    assert mine.rows.tolist() == [7, 20]
    assert union.positions_of(mine.rows).tolist() == [1, 2]
    assert mine.positions_of([[20, 7], [7, 7]]).tolist() == [[1, 0], [0, 0]]
    assert union.holds([2, 3, 2**63 - 1]).tolist() == [False, True, True]
    assert union.common(RowSet.of([20, 5, 3])).rows.tolist() == [3, 20]
    assert union.at(np.array([0, 3])).rows.tolist() == [3, 2**63 - 1]


def test_unknown_rows_are_named() -> None:
    with pytest.raises(UnknownRow, match=r"2 rows are not in this set of 2, the first of them \[4, 9\]"):
        RowSet([3, 7]).positions_of([3, 4, 9])
    with pytest.raises(UnknownRow):
        RowSet([]).positions_of([0])
    assert RowSet([]).positions_of([]).tolist() == []


@pytest.mark.parametrize(
    "rows", [[2, 1], [1, 1], [[1, 2]], [-1], [2**63], [0.5], ["1"], [None], [True]], ids=repr
)
def test_what_is_no_set_of_rows_is_refused(rows: Any) -> None:
    with pytest.raises(InputError):
        RowSet(rows)


@pytest.mark.parametrize(
    "chosen", [np.array([True]), np.array([-1]), np.array([2]), np.array([1, 0])], ids=repr
)
def test_positions_outside_a_set_are_refused(chosen: Any) -> None:
    with pytest.raises(InputError):
        RowSet([3, 7]).at(chosen)


def test_a_set_does_not_change_with_the_array_it_was_made_of_nor_show_its_rows() -> None:
    source = np.array([1, 2, 3])
    rows = RowSet(source)
    source[0] = 99
    assert rows.rows.tolist() == [1, 2, 3]
    with pytest.raises(ValueError, match="read-only"):
        rows.rows[0] = 5
    assert repr(rows) == "RowSet(<3 rows>)"


@pytest.mark.parametrize("given", [CATEGORY_OF, lambda goods: goods // 2], ids=["array", "callable"])
def test_derived_rows_follow_from_the_source(given: Any) -> None:
    maps = RowMaps(MODEL, {"category": given})
    assert maps.rows_of("category", [[5, 0], [2, 2]]).tolist() == [[2, 0], [1, 1]]
    sets = maps.with_derived({"goods": RowSet([0, 1, 4])})
    assert {name: rows.rows.tolist() for name, rows in sets.items()} == {
        "goods": [0, 1, 4],
        "category": [0, 2],
    }
    assert list(sets) == ["goods", "category"]
    assert maps.with_derived({"goods": RowSet([])})["category"].rows.tolist() == []


@pytest.mark.parametrize(
    "maps",
    [
        {},
        {"category": CATEGORY_OF, "goods": CATEGORY_OF},
        {"category": CATEGORY_OF[:5]},
        {"category": np.array([0, 0, 1, 1, 2, 3])},
        {"category": np.array([0, 0, 1, 1, 2, -1])},
        {"category": np.zeros(6)},
    ],
    ids=["missing", "too many", "too short", "beyond the table", "negative", "not whole"],
)
def test_maps_that_do_not_fit_the_model_are_refused(maps: Any) -> None:
    with pytest.raises((ParameterError, InputError)):
        RowMaps(MODEL, maps)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda goods: goods,
        lambda goods: goods[:1] * 0,
        lambda goods: goods * 0.5,
        lambda goods: goods * 0 - 1,
    ],
    ids=["beyond the table", "shape", "not whole", "negative"],
)
def test_what_a_callable_returns_is_checked(wrong: Any) -> None:
    maps = RowMaps(MODEL, {"category": wrong})
    with pytest.raises(InputError):
        maps.with_derived({"goods": RowSet([3, 4, 5])})


@pytest.mark.parametrize(
    "shared", [{}, {"goods": RowSet([1]), "category": RowSet([1])}, {"user": RowSet([1])}]
)
def test_rows_are_given_for_the_shared_tables_and_no_others(shared: Any) -> None:
    with pytest.raises(InputError):
        RowMaps(MODEL, {"category": CATEGORY_OF}).with_derived(shared)


def test_only_derived_tables_have_a_map_and_only_rows_of_the_source_are_mapped() -> None:
    maps = RowMaps(MODEL, {"category": CATEGORY_OF})
    with pytest.raises(InputError):
        maps.rows_of("goods", [1])
    with pytest.raises(UnknownRow):
        maps.rows_of("category", [6])
    with pytest.raises(InputError):
        maps.rows_of("nothing", [1])


def test_a_huge_table_costs_what_is_asked_of_it() -> None:
    huge = ModelSpec(
        tables=(
            Table(name="goods", rows=2**63, width=18),
            Table(name="category", rows=2**40, width=18, kind="derived", source="goods"),
        ),
        dense=0,
    )
    maps = RowMaps(huge, {"category": lambda goods: goods >> 23})
    union = RowSet.of(np.random.default_rng(0).integers(0, 2**63, 10_000))
    tracemalloc.start()
    maps.with_derived({"goods": union})["category"].positions_of(maps.rows_of("category", union.rows))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3e6
