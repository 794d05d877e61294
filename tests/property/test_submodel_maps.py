"""Index maps between global row, union position and local row are inverse to each other."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sfsl.submodel import ModelSpec, RowMaps, RowSet, Table

ROWS = st.integers(0, 2**63 - 1) | st.integers(0, 30) | st.integers(2**63 - 30, 2**63 - 1)
SETS = st.lists(ROWS, max_size=40)
MANY = settings(deadline=None, derandomize=True, max_examples=200)


@MANY
@given(SETS, st.randoms(use_true_random=False))
def test_the_three_numbers_of_a_row_lead_to_each_other(rows: list[int], random: object) -> None:
    union = RowSet.of(rows)
    bits = np.array([random.random() < 0.5 for _ in range(len(union))], np.bool_)  # type: ignore[attr-defined]
    mine = union.at(bits)
    local = np.arange(len(mine))
    positions = union.positions_of(mine.rows)
    assert positions.tolist() == np.flatnonzero(bits).tolist()
    assert mine.positions_of(union.rows[positions]).tolist() == local.tolist()
    assert union.rows[union.positions_of(union.rows)].tolist() == union.rows.tolist()
    assert union.at(positions).rows.tolist() == mine.rows.tolist()


@MANY
@given(SETS, SETS)
def test_a_row_set_behaves_as_a_set(first: list[int], second: list[int]) -> None:
    one, other = RowSet.of(first), RowSet.of(second)
    assert one.rows.tolist() == sorted(set(first))
    assert one.common(other).rows.tolist() == sorted(set(first) & set(second))
    assert one.holds(second).tolist() == [row in set(first) for row in second]


@MANY
@given(SETS, st.integers(0, 62))
def test_derived_rows_are_those_of_the_source_rows(rows: list[int], shift: int) -> None:
    derived = Table(name="category", rows=2**63, width=1, kind="derived", source="goods")
    model = ModelSpec(tables=(Table(name="goods", rows=2**63, width=1), derived), dense=0)
    maps = RowMaps(model, {"category": lambda goods: goods >> shift})
    sets = maps.with_derived({"goods": RowSet.of(rows)})
    assert sets["category"].rows.tolist() == sorted({row >> shift for row in rows})
    assert sets["category"].holds(maps.rows_of("category", sets["goods"].rows)).all()
