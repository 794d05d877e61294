"""Quantization, averaging and server steps by hand, and one update told from training to commit."""

import math
from typing import Any

import numpy as np
import pytest

from sfsl.crypto.ring import Words
from sfsl.errors import InputError, ParameterError, UnknownRow
from sfsl.submodel import (
    ADDITION,
    PAPER,
    Averaging,
    MemoryStore,
    ModelSpec,
    Quantization,
    RowBlock,
    RowSet,
    ServerStep,
    StoreSpec,
    Table,
    TrainedRows,
    UpdateParams,
    UpdateWords,
    WeightedSums,
    apply_sums,
    decode_sums,
    encode_update,
)
from sfsl.submodel.quantize import round_stochastic
from sfsl.submodel.update import ModelSums, evidence
from sfsl.testing import SeededRandomness

RANDOMNESS = SeededRandomness("submodel update")


def decoded_and_applied(store: MemoryStore, params: UpdateParams, *, selection: bytes, **words: Any) -> Any:
    sums = decode_sums(store.spec.model, params, **words)
    return apply_sums(store, params, sums, selection=selection)


def sums(values: list[list[float]], weights: list[int]) -> WeightedSums:
    return WeightedSums(np.array(values, np.float64), np.array(weights), 0)


# -- quantization ------------------------------------------------------------------------------


@pytest.mark.parametrize("ring", ["z32", "z64"])
def test_words_are_weight_times_delta_in_units_and_then_the_weight(ring: str) -> None:
    quantization = Quantization(ring=ring, cohort=4, clip=2.0, levels=8, max_weight=10)  # type: ignore[arg-type]
    words = quantization.encode([[0.25, -0.5], [2.0, 9.0]], [3, 20], RANDOMNESS)
    modulus = 2 ** int(ring[1:])
    # A unit is 1/4. The second row is clipped to 2 and its weight capped at 10: 10 x 2 / (1/4).
    assert words.tolist() == [[3, modulus - 6, 3], [80, 80, 10]]
    decoded = quantization.decode(words)
    assert decoded.values.tolist() == [[0.75, -1.5], [20, 20]]
    assert decoded.weights.tolist() == [3, 10]
    assert decoded.refused == 0


def test_zero_stays_exactly_zero() -> None:
    quantization = Quantization.finest("z32", cohort=100, clip=0.3, max_weight=7)
    words = quantization.encode(np.zeros((50, 18), np.float32), np.zeros(50, np.int64), RANDOMNESS)
    assert not words.any()


def test_whole_numbers_are_not_rounded_and_others_go_to_a_neighbour() -> None:
    values = np.array([-3.0, 0.0, 7.0, -(2.0**51), 2.0**51])
    assert round_stochastic(values, RANDOMNESS).tolist() == values.tolist()
    assert set(round_stochastic(np.full(200, -1.5), RANDOMNESS).tolist()) == {-2, -1}


@pytest.mark.parametrize("value", [0.3, -0.3, 1e-9, 12345.75, -7 - 2.0**-30])
def test_of_all_words_that_may_be_drawn_the_right_share_rounds_up(
    value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Words below a border round up, the others down; the border is the fraction, to one word in 2^32."""
    border = math.ceil((value - math.floor(value)) * 2**32)
    words = np.array([0, border - 1, border, 2**32 - 1], np.uint32)
    monkeypatch.setattr("sfsl.submodel.quantize.uniform", lambda ring, count, randomness: words)
    rounded = round_stochastic(np.full(4, value), RANDOMNESS) - math.floor(value)
    assert rounded.tolist() == [1, 1, 0, 0]


@pytest.mark.parametrize("ring", ["z32", "z64"])
@pytest.mark.parametrize("cohort", [1, 2, 100, 65_536])
@pytest.mark.parametrize("max_weight", [1, 5000])
def test_the_finest_levels_fit_and_one_more_does_not(ring: str, cohort: int, max_weight: int) -> None:
    finest = Quantization.finest(ring, cohort=cohort, clip=0.1, max_weight=max_weight)  # type: ignore[arg-type]
    with pytest.raises(ParameterError):
        Quantization(
            ring=ring,  # type: ignore[arg-type]
            cohort=cohort,
            clip=0.1,
            levels=finest.levels + 1,
            max_weight=max_weight,
        )


@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_honest_sum_does_not_wrap(sign: int) -> None:
    quantization = Quantization.finest("z32", cohort=100, clip=0.1, max_weight=7)
    total: Words = np.zeros((1, 3), np.uint32)
    for _ in range(100):
        total += quantization.encode([[sign * 0.1, sign * 1e30]], [10**6], RANDOMNESS)
    decoded = quantization.decode(total)
    assert decoded.values == pytest.approx(np.full((1, 2), sign * 100 * 7 * 0.1))
    assert decoded.weights.tolist() == [700]


def test_too_large_a_cohort_is_refused_even_at_the_coarsest() -> None:
    with pytest.raises(ParameterError):
        Quantization.finest("z32", cohort=2**16, clip=0.1, max_weight=2**16)
    assert Quantization.finest("z64", cohort=2**16, clip=0.1, max_weight=2**16).levels == 2**31 - 1


# -- averaging ---------------------------------------------------------------------------------


def test_the_papers_average_divides_by_the_samples() -> None:
    moves = PAPER.moves(sums([[6, -3], [1, 1], [0, 0]], [3, 1, 0]))
    assert moves.tolist() == [[2, -1], [1, 1], [0, 0]]


def test_the_floor_holds_back_rows_with_few_owners_only() -> None:
    moves = Averaging().moves(sums([[6, -3], [20, 10]], [3, 10]))
    assert moves.tolist() == [[6 / 5, -3 / 5], [2, 1]]


def test_a_row_without_weight_does_not_move_whatever_its_sum() -> None:
    assert Averaging().moves(sums([[1e6, -5]], [0])).tolist() == [[0, 0]]


def test_a_move_is_shortened_in_its_own_direction() -> None:
    moves = Averaging(weights="samples", kappa=1, max_move=1).moves(
        sums([[3, 4], [0.3, 0.4], [0, 0]], [1, 1, 1])
    )
    assert moves == pytest.approx(np.array([[0.6, 0.8], [0.3, 0.4], [0, 0]]))


def test_what_a_row_weighs_trained_and_idle() -> None:
    fedavg = Averaging(weights="dataset")
    assert Averaging().row_weights([0, 1, 7], 30).tolist() == [0, 1, 1]
    assert PAPER.row_weights([0, 1, 7], 30).tolist() == [0, 1, 7]
    assert fedavg.row_weights([0, 1, 7], 30).tolist() == [30, 30, 30]
    assert [one.idle_weight(30) for one in (Averaging(), PAPER, fedavg)] == [0, 0, 30]
    assert [one.largest_weight(50) for one in (Averaging(), PAPER, fedavg)] == [1, 50, 50]


@pytest.mark.parametrize(
    "wrong",
    [
        {"kappa": 0.5},
        {"kappa": float("inf")},
        {"max_move": 0},
        {"max_move": float("inf")},
        {"weights": "rows"},
    ],
    ids=repr,
)
def test_impossible_averaging_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ParameterError):
        Averaging(**wrong)  # type: ignore[arg-type]


# -- server steps ------------------------------------------------------------------------------

OLD = np.array([[1, -1], [0.5, 2]], np.float32)
MOVES = np.array([[0.1, 0.2], [-0.3, 0]])


def test_plain_addition() -> None:
    values, state = ADDITION.apply(OLD, np.zeros((2, 0, 2), np.float32), MOVES)
    assert values.dtype == state.dtype == np.float32
    assert values.tolist() == (OLD + MOVES).astype(np.float32).tolist()
    assert state.shape == (2, 0, 2)


def test_adagrad_by_hand() -> None:
    step = ServerStep(kind="adagrad", rate=0.5, tau=0.01)
    state = np.array([[[0.09, 0]], [[0, 1]]], np.float32)
    values, new = step.apply(OLD, state, MOVES)
    second = state[:, 0].astype(np.float64) + MOVES**2
    assert new[:, 0].tolist() == second.astype(np.float32).tolist()
    floor = 0.01 * np.sqrt(second.mean(axis=1, keepdims=True))
    assert values.tolist() == (OLD + 0.5 * MOVES / (np.sqrt(second) + floor)).astype(np.float32).tolist()


def test_adam_by_hand_over_two_rounds() -> None:
    step = ServerStep(kind="adam", rate=0.1, beta1=0.5, beta2=0.75, tau=0.01)
    values, state = step.apply(OLD, np.zeros((2, 2, 2), np.float32), MOVES)
    assert state[0].tolist() == pytest.approx(np.array([[0.05, 0.1], [0.0025, 0.01]]))
    values, state = step.apply(values, state, MOVES)
    assert state[0] == pytest.approx(np.array([[0.075, 0.15], [0.004375, 0.0175]]))
    # The first row moves by 0.1 and 0.2, whose squares have the mean 0.025; so much of it was let in.
    first = 1 + 0.1 * 0.05 / (0.05 + 0.01 * np.sqrt(0.25 * 0.025))
    assert values[0, 0] == pytest.approx(
        first + 0.1 * 0.075 / (np.sqrt(0.004375) + 0.01 * np.sqrt(0.4375 * 0.025))
    )


@pytest.mark.parametrize("kind", ["adagrad", "adam"])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e4])
def test_steps_do_not_depend_on_how_small_moves_are(kind: Any, scale: float) -> None:
    step = ServerStep(kind=kind, rate=0.1)
    none = np.zeros((2, step.slots, 2), np.float32)
    as_given, scaled = (step.apply(OLD, none, factor * MOVES)[0] for factor in (1.0, scale))
    assert scaled == pytest.approx(as_given, rel=1e-5)


def test_a_model_without_a_dense_part_steps_all_the_same() -> None:
    none = np.zeros((1, 0), np.float32)
    values, _ = ServerStep(kind="adam", rate=0.1).apply(
        none, np.zeros((1, 2, 0), np.float32), none.astype(float)
    )
    assert values.shape == (1, 0)


def test_a_step_by_heat_by_hand_over_two_rounds() -> None:
    """Rows of nine owners, of one, and of one that nobody trained; one owner's move is 0.1 in size."""
    given = sums([[0.9, 0.9], [0.1, -0.1], [0, 0]], [9, 1, 0])
    one = np.sqrt((2 * 0.81 + 2 * 0.01) / 10 / 2)
    found = evidence(given)
    assert found == pytest.approx(given.values / one)
    step = ServerStep(kind="heat", rate=0.3, tau=10)
    old = np.ones((3, 2), np.float32)
    values, state = step.apply(old, np.zeros((3, 1, 2), np.float32), found)
    assert values[0, 0] == pytest.approx(1 + 0.3 * found[0, 0] / np.sqrt(found[0, 0] ** 2 + 100))
    assert values[2].tolist() == [1, 1]
    values, state = step.apply(values, state, found)
    assert state[:, 0] == pytest.approx(2 * found**2)


def test_evidence_has_no_unit_and_no_row_moves_farther_than_the_rate() -> None:
    given = [[0.9, 0.9], [1e-3, -0.1]]
    tiny = sums((1e-7 * np.array(given)).tolist(), [9, 1])
    assert evidence(tiny) == pytest.approx(evidence(sums(given, [9, 1])))
    far, _ = ServerStep(kind="heat", rate=0.3, tau=10).apply(
        OLD, np.zeros((2, 1, 2), np.float32), 1e9 * MOVES
    )
    assert abs(far - OLD).max() <= 0.3 + 1e-6
    assert not evidence(sums([[0, 0, 0], [0, 0, 0]], [1, 0])).any()


def test_a_row_that_moves_is_drawn_back_by_the_share_of_what_is_said_now() -> None:
    step = ServerStep(kind="heat", rate=0.3, tau=10, pull=2)
    old = np.array([[0.5, -1.0], [0.5, -1.0], [0.5, -1.0]], np.float32)
    found = np.array([[1.0, -2.0], [3.0, 4.0], [0.0, 0.0]])
    # What was said before, over the row's numbers: 15, 75 and 1.
    said = np.array([[[5.0, 10.0]], [[75.0, 0.0]], [[1.0, 0.0]]], np.float32)
    values, state = step.apply(old, said, found)
    # 2 x 5 / (5 + 15), 2 x 25 / (25 + 75) and nothing.
    left = found - np.array([[0.5], [0.5], [0.0]]) * old
    assert values == pytest.approx(old + 0.3 * left / np.sqrt(said[:, 0] + left**2 + 100))
    assert state[:, 0] == pytest.approx(said[:, 0] + left**2)


@pytest.mark.parametrize("pull", [1.0, 2.0, 1e6])
def test_a_row_is_drawn_back_by_one_owner_in_a_round_at_the_most(pull: float) -> None:
    """Of a row that comes for the first time all is said now. Evidence may be nothing at all."""
    step = ServerStep(kind="heat", rate=0.3, tau=10, pull=pull)
    old = np.array([[0.5, -1.0], [0.5, -1.0]], np.float32)
    found = np.array([[0.5, -1.0], [0.0, 0.0]])  # the first says just what draws back
    values, state = step.apply(old, np.zeros((2, 1, 2), np.float32), found)
    assert values.tolist() == old.tolist()
    assert state.tolist() == [[[0.0, 0.0]], [[0.0, 0.0]]]


@pytest.mark.parametrize("kind", ["add", "adagrad", "adam"])
def test_steps_by_averages_draw_nothing_back(kind: str) -> None:
    with pytest.raises(ParameterError, match=f"a step by {kind} draws nothing back"):
        ServerStep(kind=kind, rate=1.0, pull=0.1)  # type: ignore[arg-type]
    assert ServerStep(kind=kind, rate=1.0).pull == 0  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match=r"pull"):
        ServerStep(kind="heat", rate=1.0, pull=-0.1)


def test_a_step_by_heat_is_for_rows_and_keeps_to_the_longest_move() -> None:
    how = Quantization(ring="z32", cohort=4, clip=1, max_weight=1, levels=8)
    with pytest.raises(ParameterError, match="heat is for rows"):
        UpdateParams(rows=how, dense=how, dense_step=ServerStep(kind="heat", rate=1))
    store = MemoryStore(
        StoreSpec(model=MODEL, seed=bytes(32), row_slots=1), np.zeros(MODEL.dense, np.float32)
    )
    params = UpdateParams(
        rows=how,
        dense=how,
        averaging=Averaging(max_move=0.1),
        row_step=ServerStep(kind="heat", rate=0.3, tau=0.1),
    )
    unions = {"goods": RowSet(np.array([7])), "category": RowSet(np.array([3]))}
    rows = {"goods": sums([[0.5, 0.5]], [2]), "category": sums([[0]], [0])}
    given = ModelSums(unions, rows, sums([[0.0] * MODEL.dense], [0]))
    block = apply_sums(store, params, given, selection=b"").commit.tables["goods"]
    assert np.linalg.norm(block.values) == pytest.approx(0.1, rel=1e-5)


@pytest.mark.parametrize(
    ("state", "moves"),
    [((2, 1, 2), (2, 2)), ((2, 2, 2), (2, 3)), ((2, 2, 3), (2, 2)), ((1, 2, 2), (2, 2))],
)
def test_a_step_on_the_wrong_shapes_is_refused(state: tuple[int, ...], moves: tuple[int, ...]) -> None:
    with pytest.raises(InputError):
        ServerStep(kind="adam", rate=0.1).apply(OLD, np.zeros(state, np.float32), np.zeros(moves))


# -- the whole update --------------------------------------------------------------------------

MODEL = ModelSpec(
    tables=(
        Table(name="user", rows=50, width=2, kind="personal"),
        Table(name="goods", rows=2 * 10**9, width=2, initial=0),
        Table(name="category", rows=10, width=1, kind="derived", source="goods", initial=0),
    ),
    dense=2,
)


def owners() -> UpdateParams:
    rows = Quantization(ring="z32", cohort=3, clip=1.0, levels=1000, max_weight=1)
    dense = Quantization(ring="z32", cohort=3, clip=1.0, levels=1000, max_weight=100)
    return UpdateParams(rows=rows, dense=dense, averaging=Averaging(kappa=2))


def test_one_update_from_training_to_commit() -> None:
    """Two clients, three goods in the union; one of the goods is asked for and trained by nobody."""
    params = owners()
    store = MemoryStore(StoreSpec(model=MODEL, seed=bytes(32)), np.ones(2, np.float32))
    unions = {"goods": RowSet([5, 7, 2 * 10**9 - 1]), "category": RowSet([0, 3])}

    # Ada really has good 5; she also asked for good 7, as randomized response told her to.
    ada = encode_update(
        MODEL,
        params,
        dense=np.array([0.5, 0.0]),
        samples=10,
        trained={
            "goods": TrainedRows(RowSet([5]), np.array([[0.2, -0.2]]), [6]),
            "category": TrainedRows(RowSet([3]), np.array([[0.1]]), [6]),
        },
        randomness=RANDOMNESS,
    )
    # Bob has goods 5 and the last one, and fewer samples.
    bob = encode_update(
        MODEL,
        params,
        dense=np.array([0.0, 1.0]),
        samples=30,
        trained={
            "goods": TrainedRows(RowSet([5, 2 * 10**9 - 1]), np.array([[0.4, 0.0], [1.0, 1.0]]), [1, 2]),
            "category": TrainedRows(RowSet([]), np.zeros((0, 1)), []),
        },
        randomness=RANDOMNESS,
    )
    assert [words.shape for words in (ada.dense, *ada.trained)] == [(3,), (1, 3), (1, 2)]
    padded = ada.over([RowSet([5, 7]), RowSet([0, 3])])
    assert [words.shape for words in padded] == [(2, 3), (2, 2)]
    assert padded[0][0].tolist() == ada.trained[0][0].tolist()
    assert not padded[0][1].any()  # the row she did not train

    applied = decoded_and_applied(store, params, unions=unions, selection=b"next", **plain_sum(ada, bob))
    assert store.round == 0
    assert applied.moved == {"goods": 2, "category": 1}
    assert applied.refused == {"goods": 0, "category": 0}
    store.commit(applied.commit)

    # Good 5 had two owners: the mean of their moves. The others had one: kappa of 2 halves their move.
    goods = store.read_rows("goods", unions["goods"]).values
    assert goods == pytest.approx(np.array([[0.3, -0.1], [0, 0], [0.5, 0.5]]), abs=1e-6)
    assert store.read_rows("category", unions["category"]).values == pytest.approx(np.array([[0], [0.05]]))
    # The dense part is weighted by samples: 10 of Ada's, 30 of Bob's.
    assert store.read_dense().values == pytest.approx(np.array([1 + 0.125, 1 + 0.75]))
    assert store.touched("goods").rows.tolist() == [5, 2 * 10**9 - 1]
    assert (store.round, store.selection) == (1, b"next")


def plain_sum(ada: UpdateWords, bob: UpdateWords) -> dict[str, Any]:
    """What secure aggregation gives, without the masks."""
    goods, category = np.zeros((3, 3), np.uint32), np.zeros((2, 2), np.uint32)
    of_ada = ada.over([RowSet([5, 7]), RowSet([0, 3])])
    of_bob = bob.over([RowSet([5, 2 * 10**9 - 1]), RowSet([0])])
    goods[[0, 1]] += of_ada[0]
    goods[[0, 2]] += of_bob[0]
    category += of_ada[1]
    category[[0]] += of_bob[1]
    return {
        "dense": ada.dense + bob.dense,
        "tables": [goods, category],
        "contributors": [[2, 1, 1], [2, 1]],
    }


def test_a_round_in_which_nobody_trained_changes_nothing() -> None:
    params = owners()
    store = MemoryStore(StoreSpec(model=MODEL, seed=bytes(32)), np.ones(2, np.float32))
    applied = decoded_and_applied(
        store,
        params,
        unions={"goods": RowSet([1, 2]), "category": RowSet([0])},
        dense=np.zeros(3, np.uint32),
        tables=[np.zeros((2, 3), np.uint32), np.zeros((1, 2), np.uint32)],
        contributors=[[2, 2], [0]],
        selection=b"",
    )
    store.commit(applied.commit)
    assert applied.commit.dense is None
    assert store.round == 1
    assert len(store.touched("goods")) == 0
    assert store.read_dense().values.tolist() == [1, 1]


# -- weights by training-set size --------------------------------------------------------------

GOODS = ModelSpec(tables=(Table(name="goods", rows=9, width=2, initial=0),), dense=1)
EVERYTHING = RowSet(np.arange(9))
# Of three clients: the samples, and how far which rows moved. The third trained none of them.
SAMPLES = [10, 30, 60]
MOVED: list[dict[int, list[float]]] = [{1: [0.5, -0.25], 4: [0.1, 0.2]}, {4: [-0.4, 0.8]}, {}]


def fedavg(max_weight: int) -> UpdateParams:
    one = Quantization.finest("z64", cohort=3, clip=1.0, max_weight=max_weight)
    return UpdateParams(rows=one, dense=one, averaging=Averaging(weights="dataset", kappa=1))


def full_models(params: UpdateParams) -> list[UpdateWords]:
    return [
        encode_update(
            GOODS,
            params,
            dense=np.zeros(1),
            samples=samples,
            trained={
                "goods": TrainedRows(
                    RowSet(list(moved)), np.array(list(moved.values())).reshape(-1, 2), [1] * len(moved)
                )
            },
            randomness=RANDOMNESS,
        )
        for samples, moved in zip(SAMPLES, MOVED, strict=True)
    ]


@pytest.mark.parametrize("max_weight", [1000, 20], ids=["not capped", "capped at 20"])
def test_dataset_weights_give_federated_averaging(max_weight: int) -> None:
    """Everyone who asked counts with its samples up to the cap, also on rows that it did not train."""
    params = fedavg(max_weight)
    store = MemoryStore(StoreSpec(model=GOODS, seed=bytes(32)), np.zeros(1, np.float32))
    words = [one.over([EVERYTHING])[0] for one in full_models(params)]
    capped = [min(samples, max_weight) for samples in SAMPLES]
    assert [one[:, -1].tolist() for one in words] == [[weight] * 9 for weight in capped]
    applied = decoded_and_applied(
        store,
        params,
        unions={"goods": EVERYTHING},
        dense=np.zeros(2, np.uint64),
        tables=[words[0] + words[1] + words[2]],
        contributors=[[3] * 9],
        selection=b"",
    )
    store.commit(applied.commit)
    expected = np.zeros((9, 2))
    for weight, moved in zip(capped, MOVED, strict=True):
        for row, delta in moved.items():
            expected[row] += weight * np.array(delta) / sum(capped)
    assert store.read_rows("goods", EVERYTHING).values == pytest.approx(expected, abs=1e-6)
    assert applied.refused == {"goods": 0}
    # All nine rows have a weight; those that nobody moved are not stored.
    assert applied.moved == {"goods": 2}
    assert store.touched("goods").rows.tolist() == [1, 4]


def test_rows_that_nobody_moved_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    params = fedavg(max_weight=1000)
    store = MemoryStore(StoreSpec(model=GOODS, seed=bytes(32)), np.zeros(1, np.float32))
    read: list[list[int]] = []
    whole = store.read_rows

    def watched(table: str, rows: RowSet) -> RowBlock:
        read.append(rows.rows.tolist())
        return whole(table, rows)

    monkeypatch.setattr(store, "read_rows", watched)
    decoded_and_applied(
        store,
        params,
        unions={"goods": EVERYTHING},
        dense=np.zeros(2, np.uint64),
        tables=[full_models(params)[1].over([EVERYTHING])[0]],
        selection=b"",
    )
    assert read == [[4]]


def test_an_update_over_other_rows_than_it_trained_is_refused() -> None:
    ada = full_models(fedavg(max_weight=1000))[0]
    with pytest.raises(UnknownRow, match="1 rows are not in this set of 2"):
        ada.over([RowSet([4, 5])])
    with pytest.raises(ValueError, match="argument"):
        ada.over([])


def test_parts_of_one_update_must_fit_each_other() -> None:
    rows = Quantization(ring="z32", cohort=3, clip=1.0, levels=1000, max_weight=1)
    dense = Quantization(ring="z64", cohort=3, clip=1.0, levels=1000, max_weight=100)
    with pytest.raises(ParameterError, match="one ring"):
        UpdateParams(rows=rows, dense=dense)
    many = Quantization(ring="z32", cohort=3, clip=1.0, levels=1000, max_weight=9)
    with pytest.raises(ParameterError, match="owner weights"):
        UpdateParams(rows=many, dense=many)
    UpdateParams(rows=many, dense=many, averaging=PAPER)


def test_sums_of_two_cohorts_add_up_with_what_was_refused() -> None:
    one = WeightedSums(np.ones((2, 3)), np.array([1, 0]), 1, 3.0)
    two = WeightedSums(np.ones((2, 3)), np.array([2, 2]), 2, 4.0)
    both = one + two
    assert (both.values == 2).all()
    assert both.weights.tolist() == [3, 2]
    assert (both.refused, both.noise) == (3, 5.0)


def test_sums_are_decoded_for_the_tables_that_are_summed_and_no_others() -> None:
    words = {
        "dense": np.zeros(3, np.uint32),
        "tables": [np.zeros((0, 3), np.uint32), np.zeros((0, 2), np.uint32)],
    }
    unions = {"goods": RowSet([]), "category": RowSet([])}
    assert decode_sums(MODEL, owners(), unions=unions, **words).unions == unions
    with pytest.raises(InputError, match="unions are given for"):
        decode_sums(MODEL, owners(), unions=unions | {"user": RowSet([])}, **words)
