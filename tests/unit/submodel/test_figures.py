"""Sums, moves and steps by hand, where they are small enough to follow; every parameter is named. And what a
store, a set of rows or a quantization does at its edges."""

import math
from typing import Any

import msgspec
import numpy as np
import pytest

from sfsl.errors import InputError, NotFinite, ParameterError, StoreError, WrongModel
from sfsl.submodel import (
    ADDITION,
    PAPER,
    Averaging,
    Commit,
    DenseBlock,
    MemoryStore,
    ModelSpec,
    ModelSums,
    Quantization,
    RowBlock,
    RowSet,
    ServerStep,
    StoreSpec,
    Table,
    UpdateParams,
    WeightedSums,
    apply_sums,
    decode_sums,
)
from sfsl.submodel import store as kept
from sfsl.submodel.quantize import round_stochastic
from sfsl.submodel.update import evidence, row_trust
from sfsl.testing import SeededRandomness

changed = msgspec.structs.replace
MODEL = ModelSpec(tables=(Table(name="goods", rows=10, width=2, initial=0),), dense=1)
SPEC = StoreSpec(model=MODEL, seed=bytes(32))
ONE = Quantization(ring="z32", cohort=4, clip=1.0, levels=8, max_weight=1)
PLAIN = UpdateParams(
    rows=ONE,
    dense=ONE,
    averaging=Averaging(weights="samples", kappa=1, max_move=None),
    row_step=ADDITION,
    dense_step=ADDITION,
)


def sums(values: Any, weights: Any, refused: int = 0, **fields: Any) -> WeightedSums:
    return WeightedSums(np.array(values, np.float64), np.array(weights), refused, **fields)


def model_sums(rows: WeightedSums, numbers: list[int], dense: WeightedSums) -> ModelSums:
    return ModelSums({"goods": RowSet(numbers)}, {"goods": rows}, dense)


NO_DENSE = sums([[0.0]], [0])


# -- what is to be believed ----------------------------------------------------------------------------


def test_the_unit_of_evidence_is_one_owners_move() -> None:
    """Of one owner, of two, of five: the root of the mean square of what one of them says."""
    for owners in (1, 2, 5):
        found = evidence(sums([[3.0, 1.0]], [owners]))
        unit = math.sqrt((9 + 1) / owners / 2)
        np.testing.assert_allclose(found, [[3 / unit, 1 / unit]])
    # Rows without weight count neither as owners nor in what was said.
    found = evidence(sums([[3.0, 1.0], [50.0, 50.0]], [1, 0]))
    np.testing.assert_allclose(found, [[3 / math.sqrt(5), 1 / math.sqrt(5)], [0, 0]])


def test_evidence_without_noise_is_not_shrunk_and_with_noise_it_is() -> None:
    said = np.array([4.0, 9.0])
    quiet = evidence(sums([[2.0, 3.0]], [3], said=said))
    np.testing.assert_allclose(quiet, np.array([[2.0, 3.0]]) / math.sqrt(6.5))
    noisy = evidence(sums([[2.0, 3.0]], [3], said=said, noise=2.0))
    np.testing.assert_allclose(noisy, quiet * [[12 / 16, 27 / 31]])


def test_nothing_is_believed_of_rows_that_nobody_has() -> None:
    np.testing.assert_array_equal(row_trust(sums([[5.0], [5.0]], [0, 2], noise=3.0)), [[0], [2 / 11]])
    np.testing.assert_array_equal(row_trust(sums([[5.0]], [0])), [[0]])  # also where there is no noise
    np.testing.assert_array_equal(row_trust(sums([[5.0]], [7])), [[1]])


def test_a_sum_says_nothing_of_noise_unless_it_is_told() -> None:
    bare = sums([[1.0]], [1])
    assert (bare.noise, bare.said) == (0.0, None)
    both = sums([[1.0]], [1], 2, noise=3.0, said=np.array([1.0])) + sums([[1.0]], [1], 3, noise=4.0)
    assert (both.refused, both.noise, both.said) == (5, 5.0, None)
    wider = sums([[1.0]], [1], 2).over(RowSet([4]), RowSet([4, 6]))
    assert (wider.refused, wider.noise, wider.weights.tolist()) == (2, 0.0, [1, 0])


# -- moves ---------------------------------------------------------------------------------------------


def test_moves_are_divided_by_their_weight_or_the_floor_whichever_is_more() -> None:
    some = sums([[6.0, -3.0]] * 4, [2, 3, 4, 0])
    moves = Averaging(weights="owners", kappa=3, max_move=None).moves(some)
    assert moves.tolist() == [[2, -1], [2, -1], [1.5, -0.75], [0, 0]]
    cut = Averaging(weights="owners", kappa=3, max_move=math.sqrt(5) / 2).moves(some)
    np.testing.assert_allclose(cut, [[1, -0.5], [1, -0.5], [1, -0.5], [0, 0]])
    just = Averaging(weights="owners", kappa=3, max_move=math.sqrt(5)).moves(some)
    np.testing.assert_allclose(just, moves)
    assert Averaging(weights="samples", kappa=1, max_move=None).limited(moves) is moves


def test_a_step_of_adam_believes_its_moves_and_scales_by_all_of_them() -> None:
    step = ServerStep(kind="adam", rate=0.5, beta1=0.8, beta2=0.75, tau=0.25)
    old, state = np.ones((1, 2), np.float32), np.array([[[1.0, -2.0], [4.0, 0.0]]], np.float32)
    values, new = step.apply(old, state, np.array([[2.0, 4.0]]), np.array([[0.5, 0.25]]))
    first = [0.8 * 1 + 0.2 * 0.5 * 2, 0.8 * -2 + 0.2 * 0.25 * 4]
    second = [0.75 * 4 + 0.25 * 4, 0.25 * 16]
    np.testing.assert_allclose(new, [[first, second]], rtol=1e-6)
    size = [math.sqrt(one) + 0.25 * math.sqrt(sum(second) / 2) for one in second]
    np.testing.assert_allclose(values, [[1 + 0.5 * first[at] / size[at] for at in (0, 1)]], rtol=1e-6)


def test_a_step_by_heat_believes_its_moves_and_scales_by_all_of_them() -> None:
    step = ServerStep(kind="heat", rate=2.0, tau=3.0)
    old, state = np.zeros((1, 1), np.float32), np.array([[[7.0]]], np.float32)
    values, new = step.apply(old, state, np.array([[3.0]]), 0.5)
    np.testing.assert_allclose(new, [[[16]]])
    np.testing.assert_allclose(values, [[2 * 1.5 / 5]])


def test_where_nothing_ever_moved_nothing_is_divided_by_zero() -> None:
    for kind, slots in (("adagrad", 1), ("adam", 2), ("heat", 1)):
        step = ServerStep(kind=kind, rate=1.0, beta1=0.5, beta2=0.5, tau=0.1)  # type: ignore[arg-type]
        values, state = step.apply(
            np.ones((1, 2), np.float32), np.zeros((1, slots, 2), np.float32), np.zeros((1, 2))
        )
        assert values.tolist() == [[1, 1]]
        assert not state.any()


def test_heat_under_noise_is_shrunk_once() -> None:
    """Its evidence is shrunk already; other steps take what is believed of their moves."""
    noisy = sums([[4.0, 0.0], [0.0, 2.0]], [2, 1], noise=1.0, said=np.array([1.0, 3.0]))
    trust = np.array([[2 / 3, 6 / 7], [1 / 2, 3 / 4]])
    heat = UpdateParams(
        rows=ONE,
        dense=ONE,
        averaging=Averaging(weights="owners", kappa=1, max_move=None),
        row_step=ServerStep(kind="heat", rate=0.5, tau=2.0),
        dense_step=ADDITION,
    )
    store = MemoryStore(changed(SPEC, row_slots=1), np.zeros(1, np.float32))
    moved = apply_sums(store, heat, model_sums(noisy, [3, 5], NO_DENSE), selection=b"").commit
    evident = np.array([[4.0, 0.0], [0.0, 2.0]]) / math.sqrt(2) * trust
    np.testing.assert_allclose(
        moved.tables["goods"].values, 0.5 * evident / np.sqrt(evident**2 + 4), rtol=1e-6
    )
    plain = MemoryStore(SPEC, np.zeros(1, np.float32))
    applied = apply_sums(plain, PLAIN, model_sums(noisy, [3, 5], NO_DENSE), selection=b"")
    np.testing.assert_allclose(
        applied.commit.tables["goods"].values, np.array([[2.0, 0.0], [0.0, 2.0]]) * trust, rtol=1e-6
    )


def test_a_row_moves_where_any_of_its_numbers_does() -> None:
    store = MemoryStore(SPEC, np.zeros(1, np.float32))
    some = sums([[0.0, 3.0], [0.0, 0.0], [2.0, 0.0]], [1, 1, 1])
    applied = apply_sums(store, PLAIN, model_sums(some, [1, 2, 8], NO_DENSE), selection=b"next")
    assert applied.commit.tables["goods"].rows.rows.tolist() == [1, 8]
    assert applied.commit.tables["goods"].values.tolist() == [[0, 3], [2, 0]]
    assert (applied.moved, applied.commit.dense, applied.samples) == ({"goods": 2}, None, 0)
    assert (applied.commit.round, applied.commit.selection) == (1, b"next")


def test_what_was_refused_of_rows_and_of_the_dense_part_is_told() -> None:
    store = MemoryStore(SPEC, np.zeros(1, np.float32))
    for refused in (0, 1):
        given = model_sums(sums([[1.0, 1.0]], [1], 3), [1], sums([[2.0]], [1], refused))
        applied = apply_sums(store, PLAIN, given, selection=b"")
        assert (applied.refused, applied.dense_refused) == ({"goods": 3}, bool(refused))
    with pytest.raises(InputError, match="a dense sum of 2 parameters; the model has 1"):
        apply_sums(
            store, PLAIN, model_sums(sums([[1.0, 1.0]], [1]), [1], sums([[1.0, 1.0]], [1])), selection=b""
        )
    assert store.round == 0


def test_sums_of_two_cohorts_are_those_of_all_their_clients() -> None:
    one = model_sums(sums([[1.0, 2.0], [3.0, 4.0]], [1, 2], 1), [2, 5], sums([[1.0]], [3]))
    two = model_sums(sums([[10.0, 20.0], [30.0, 40.0]], [4, 8], 2), [5, 9], sums([[2.0]], [4], 1))
    both = one + two
    assert both.unions["goods"].rows.tolist() == [2, 5, 9]
    assert both.rows["goods"].values.tolist() == [[1, 2], [13, 24], [30, 40]]
    assert (both.rows["goods"].weights.tolist(), both.rows["goods"].refused) == ([1, 6, 8], 3)
    assert (both.dense.values.tolist(), both.dense.weights.tolist(), both.dense.refused) == ([[3]], [7], 1)


def test_contributors_are_given_for_each_table_and_bound_its_weights() -> None:
    given: dict[str, Any] = {
        "unions": {"goods": RowSet([1, 2])},
        "dense": np.zeros(2, np.uint32),
        "tables": [np.array([[1, 1, 2], [1, 1, 1]], np.uint32)],
    }
    found = decode_sums(MODEL, PLAIN, **given, contributors=[[1, 1]])
    assert (found.rows["goods"].weights.tolist(), found.rows["goods"].refused) == ([0, 1], 1)
    assert decode_sums(MODEL, PLAIN, **given).rows["goods"].refused == 0
    for wrong in ([], [[1, 1], [1, 1]]):
        with pytest.raises(InputError, match="sums of 1 tables; 1 tables"):
            decode_sums(MODEL, PLAIN, **given, contributors=wrong)


def test_the_papers_average_holds_back_nothing() -> None:
    assert PAPER.moves(sums([[2.0]], [1])).tolist() == [[2.0]]
    assert PAPER.limited(np.array([[1e9]])).tolist() == [[1e9]]


# -- numbers of the ring -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ring", "cohort", "weight", "most"),
    [
        ("z32", 1, 1, 2**31 - 1),  # a sum of 2^31 would be taken for a negative one
        ("z32", 2, 1, 2**30 - 1),
        ("z32", 4, 2**16, 2**13 - 1),
        ("z64", 2**12, 2, 2**50 - 1),
        ("z64", 2**11, 1, 2**52 - 1),
        ("z64", 3, 1, 2**52),
    ],
)
def test_the_most_levels_that_a_sum_has_room_for(ring: Any, cohort: int, weight: int, most: int) -> None:
    finest = Quantization.finest(ring, cohort=cohort, clip=0.5, max_weight=weight)
    assert (finest.levels, finest.cohort, finest.max_weight, finest.clip) == (most, cohort, weight, 0.5)
    assert finest.unit == 0.5 / most
    with pytest.raises(ParameterError):
        changed(finest, levels=most + 1)


@pytest.mark.parametrize("wrong", [{"cohort": 0}, {"max_weight": 0}, {"clip": 0.0}])
def test_the_finest_of_what_cannot_be_is_refused_as_any_other(wrong: dict[str, Any]) -> None:
    with pytest.raises(ParameterError):
        Quantization.finest("z32", **{"cohort": 3, "clip": 1.0, "max_weight": 2} | wrong)


def test_weights_below_zero_are_no_weights() -> None:
    wide = Quantization(ring="z64", cohort=4, clip=1.0, levels=8, max_weight=5)
    found = wide.decode(np.array([[9, 2**64 - 1], [9, 2**63], [9, 20], [9, 0]], np.uint64))
    assert (found.weights.tolist(), found.refused) == ([0, 0, 20, 0], 2)
    np.testing.assert_array_equal(found.values, [[0], [0], [9 / 8], [0]])
    narrow = changed(wide, ring="z32").decode(np.array([[2**32 - 9, 20]], np.uint32), [4])
    np.testing.assert_array_equal(narrow.values, [[-9 / 8]])
    nobody = wide.decode(np.array([[9, 1], [9, 0]], np.uint64), [0, 0])
    assert (nobody.weights.tolist(), nobody.refused) == ([0, 0], 1)


def test_values_are_cut_at_what_their_weights_allow() -> None:
    found = ONE.decode(np.array([[16, 2], [17, 2], [2**32 - 16, 2], [2**32 - 17, 2]], np.uint32))
    np.testing.assert_array_equal(found.values, [[2], [2], [-2], [-2]])


def test_what_is_no_update_is_said() -> None:
    chance = SeededRandomness("figures")
    with pytest.raises(InputError, match="not an array of numbers"):
        ONE.encode([[0.5], [0.5, 0.5]], [1, 1], chance)  # type: ignore[list-item]
    with pytest.raises(NotFinite, match="2 of 3 numbers"):
        ONE.encode([[0.5, math.nan, -math.inf]], [1], chance)
    with pytest.raises(InputError, match=r"a dense part of shape \(\); it is one flat vector"):
        ONE.encode_dense(0.5, 1, chance)
    assert ONE.encode(np.array([[0.5]], np.float32), [1], chance).tolist() == [[4, 1]]
    assert ONE.encode(np.zeros((0, 2)), [], chance).shape == (0, 3)
    assert ONE.encode(np.array([[9.0, -9.0]]), [1], chance).tolist() == [[8, 2**32 - 8, 1]]
    assert ONE.encode_dense(np.zeros(0), 3, chance).tolist() == [1]
    assert round_stochastic(np.zeros((2, 3)), chance).shape == (2, 3)


# -- what a store keeps for itself ---------------------------------------------------------------------


def block(rows: list[int], value: float) -> RowBlock:
    return RowBlock(
        RowSet(rows), np.full((len(rows), 2), value, np.float32), np.zeros((len(rows), 1, 2), np.float32)
    )


def test_what_was_given_to_a_store_may_change_afterwards() -> None:
    dense = np.array([5.0], np.float32)
    store = MemoryStore(changed(SPEC, row_slots=1, dense_slots=1), dense)
    dense[:] = 77
    assert store.read_dense().values.tolist() == [5]
    rows = block([1], 2.0)
    given = DenseBlock(np.array([6.0], np.float32), np.array([[7.0]], np.float32))
    store.commit(Commit(1, {"goods": rows}, given))
    for array in (rows.values, rows.state, given.values, given.state):
        array[:] = 77
    for array in (store.read_dense().state, store.read_rows("goods", RowSet([1])).state):
        array[:] = 77
    assert store.read_rows("goods", RowSet([1])).values.tolist() == [[2, 2]]
    assert store.read_rows("goods", RowSet([1])).state.tolist() == [[[0, 0]]]
    assert (store.read_dense().values.tolist(), store.read_dense().state.tolist()) == ([6], [[7]])


def test_room_doubles_or_is_as_much_as_is_needed() -> None:
    store = MemoryStore(changed(SPEC, row_slots=1), np.zeros(1, np.float32))
    table = store._tables["goods"]
    sizes = []
    for number, rows in enumerate(([4, 6, 8], [5], [4, 5], [0, 1, 2, 3, 7, 9]), 1):
        store.commit(Commit(number, {"goods": block(rows, float(number))}))
        sizes.append(len(table._cells))
    assert sizes == [3, 6, 6, 12]
    read = store.read_rows("goods", RowSet(range(10)))
    assert read.values[:, 0].tolist() == [4, 4, 4, 4, 3, 3, 1, 4, 1, 4]


def test_what_a_store_was_made_for_is_compared_by_name() -> None:
    more = changed(SPEC, model=changed(MODEL, tables=(*MODEL.tables, changed(MODEL.tables[0], name="kind"))))
    with pytest.raises(WrongModel, match=r"model\.tables\.1\.name is None there and 'kind' here \(5 diff"):
        kept.require_same(SPEC, more, "x")
    with pytest.raises(WrongModel, match=r"model\.tables\.1\.name is 'kind' there and None here \(5 diff"):
        kept.require_same(more, SPEC, "x")
    with pytest.raises(WrongModel, match=r"row_slots is 0 there and 2 here \(2 differences"):
        kept.require_same(SPEC, changed(SPEC, row_slots=2, dense_slots=1), "x")
    with pytest.raises(StoreError, match=f"has the format b'{'x' * 40}'; this version"):
        kept.require_format(b"x" * 50, "here")


def test_a_store_grows_in_any_of_its_tables_and_in_no_other_way() -> None:
    two = changed(MODEL, tables=(*MODEL.tables, Table(name="user", rows=3, width=1, kind="personal")))

    def rows(goods: int, user: int) -> StoreSpec:
        tables = tuple(changed(table, rows=n) for table, n in zip(two.tables, (goods, user), strict=True))
        return changed(SPEC, model=changed(two, tables=tables))

    assert kept.require_grown(rows(10, 3), rows(10, 4), "x")
    assert kept.require_grown(rows(10, 3), rows(11, 3), "x")
    assert not kept.require_grown(rows(10, 3), rows(10, 3), "x")
    with pytest.raises(WrongModel, match=r"tables\.1\.rows is 3 there and 2 here \(1 diff"):
        kept.require_grown(rows(10, 3), rows(11, 2), "x")
    with pytest.raises(WrongModel, match="dense_slots"):
        kept.require_grown(rows(10, 3), changed(rows(11, 3), dense_slots=1), "x")
