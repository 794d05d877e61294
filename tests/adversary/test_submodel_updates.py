"""What a broken or malicious client would put into an update, and what it gets out of it."""

import math
from functools import reduce
from typing import Any

import numpy as np
import pytest

from cohort import Cohort
from sfsl.errors import InputError, NotFinite, UnknownRow
from sfsl.rounds.record import read_sums
from sfsl.submodel import (
    Averaging,
    Commit,
    DenseBlock,
    MemoryStore,
    ModelSpec,
    Quantization,
    RowBlock,
    RowSet,
    StoreSpec,
    Table,
    TrainedRows,
    UpdateParams,
    apply_sums,
    decode_sums,
    encode_update,
)
from sfsl.submodel.quantize import round_stochastic
from sfsl.testing import SeededRandomness

RANDOMNESS = SeededRandomness("submodel attacks")
CLIP = 0.1
COHORT = 10
MODEL = ModelSpec(tables=(Table(name="goods", rows=1000, width=2, initial=0),), dense=3)
PARAMS = UpdateParams(
    rows=Quantization.finest("z32", cohort=COHORT, clip=CLIP, max_weight=1),
    dense=Quantization.finest("z32", cohort=COHORT, clip=CLIP, max_weight=500),
)
UNION = RowSet([4, 8])


def update(**changed: Any) -> Any:
    """An honest client's update, but for what is changed."""
    honest: dict[str, Any] = {
        "dense": np.zeros(3),
        "samples": 5,
        "trained": {"goods": TrainedRows(RowSet([4]), np.full((1, 2), 0.05), [3])},
        "randomness": RANDOMNESS,
    }
    return encode_update(MODEL, PARAMS, **(honest | changed))


def trained(rows: list[int], deltas: Any, counts: Any) -> dict[str, Any]:
    return {"trained": {"goods": TrainedRows(RowSet(rows), deltas, counts)}}


# -- what never reaches the ring ---------------------------------------------------------------


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_nan_and_infinity_are_refused(bad: float, dtype: Any) -> None:
    deltas = np.array([[0.01, bad]], dtype)
    with pytest.raises(NotFinite, match="1 of 2 numbers"):
        update(**trained([4], deltas, [3]))
    with pytest.raises(NotFinite):
        update(**trained([4], deltas, [0]))  # a weight of zero does not make it a number
    with pytest.raises(NotFinite):
        update(dense=np.array([0, bad, 0], dtype))


@pytest.mark.parametrize("huge", [1e30, -1e30, 3.4e38])
def test_huge_updates_are_clipped(huge: float) -> None:
    words = update(dense=np.full(3, huge), **trained([4], np.full((1, 2), huge, np.float32), [3]))
    assert PARAMS.rows.decode(words.trained[0]).values[0] == pytest.approx([math.copysign(CLIP, huge)] * 2)
    assert PARAMS.dense.decode(words.dense[None]).values[0] == pytest.approx(
        [5 * math.copysign(CLIP, huge)] * 3
    )


@pytest.mark.parametrize("count", [501, 10**6, 2**62, 2**63 - 1])
def test_counts_over_the_cap_are_capped_in_weight_and_product_alike(count: int) -> None:
    words = update(samples=count, dense=np.full(3, 0.05))
    decoded = PARAMS.dense.decode(words.dense[None])
    assert decoded.weights.tolist() == [500]
    assert decoded.values[0] == pytest.approx([500 * 0.05] * 3)


@pytest.mark.parametrize(
    "changed",
    [
        trained([4], np.zeros((1, 3)), [1]),
        trained([4], np.zeros((2, 2)), [1, 1]),
        trained([4], np.zeros((1, 2)), [1, 1]),
        trained([4], np.zeros(2), [1]),
        trained([4], np.zeros((1, 2), np.int64), [1]),
        trained([4], np.zeros((1, 2), np.complex128), [1]),
        trained([4], [["a", "b"]], [1]),
        trained([4], [[1.0], [1.0, 2.0]], [1]),
        trained([4], np.zeros((1, 2)), [-1]),
        trained([4], np.zeros((1, 2)), [1.5]),
        trained([4], np.zeros((1, 2)), [2**63]),
        trained([4], np.zeros((1, 2)), [np.nan]),
        {"dense": np.zeros(2)},
        {"dense": np.zeros((1, 3))},
        {"samples": -1},
        {"samples": 1.5},
        {"samples": [1, 2]},
        {"trained": {}},
        {"trained": {name: TrainedRows(RowSet([]), np.zeros((0, 2)), []) for name in ("goods", "user")}},
    ],
    ids=range(19),
)
def test_updates_of_the_wrong_shape_or_kind_are_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        update(**changed)


def test_training_a_row_that_was_not_asked_for_is_refused() -> None:
    words = update(**trained([4, 9], np.zeros((2, 2)), [1, 1]))
    with pytest.raises(UnknownRow):
        words.over([UNION])


# -- what a client can do with words of its own choice -----------------------------------------


def decoded_and_applied(store: MemoryStore, params: UpdateParams, *, selection: bytes, **words: Any) -> Any:
    sums = decode_sums(store.spec.model, params, **words)
    return apply_sums(store, params, sums, selection=selection)


def applied(
    tables: Any, dense: Any, params: UpdateParams = PARAMS, contributors: Any = (COHORT, COHORT)
) -> tuple[MemoryStore, Any]:
    store = MemoryStore(StoreSpec(model=MODEL, seed=bytes(32)), np.zeros(3, np.float32))
    result = decoded_and_applied(
        store,
        params,
        unions={"goods": UNION},
        dense=dense,
        tables=[tables],
        contributors=[contributors],
        selection=b"",
    )
    store.commit(result.commit)
    return store, result


def forged(value: int, weight: int, width: int = 2) -> np.ndarray:
    return np.array([value % 2**32] * width + [weight % 2**32], np.uint32)


@pytest.mark.parametrize("value", [2**31 - 1, -(2**31), 2**31, 12345678])
@pytest.mark.parametrize("weight", [0, 1, COHORT, COHORT + 1, 2**31, 2**32 - 1])
def test_no_forged_words_move_a_row_further_than_an_honest_cohort_could(value: int, weight: int) -> None:
    store, result = applied(np.stack([forged(value, weight)] * 2), np.zeros(4, np.uint32))
    rows = store.read_rows("goods", UNION).values
    assert np.abs(rows).max() <= CLIP * min(weight, COHORT) / max(weight, 5) * (1 + 1e-6)
    assert result.refused["goods"] == (2 if weight > COHORT else 0)
    if weight in (0, 2**31):
        assert not rows.any()


def test_a_row_weighs_no_more_than_the_clients_that_sent_it() -> None:
    words = np.stack([forged(2**31 - 1, 3)] * 2)
    store, result = applied(words, np.zeros(4, np.uint32), contributors=[3, 2])
    assert store.read_rows("goods", UNION).values[0] == pytest.approx([3 / 5 * CLIP] * 2)
    assert store.touched("goods").rows.tolist() == [4]
    assert result.refused["goods"] == 1


@pytest.mark.parametrize("contributors", [[1], [1, 2, 3], [-1, 1], [0.5, 1]], ids=repr)
def test_contributors_that_do_not_fit_the_rows_are_refused(contributors: Any) -> None:
    with pytest.raises(InputError):
        applied(np.zeros((2, 3), np.uint32), np.zeros(4, np.uint32), contributors=contributors)


def test_a_lone_poisoner_moves_a_cold_row_by_a_fraction_of_the_clip() -> None:
    """With the paper's weights and no floor the same words move it by all of it."""
    words = np.stack([forged(2**31 - 1, 1), forged(0, 0)])
    floored, _ = applied(words, np.zeros(4, np.uint32))
    paper = UpdateParams(rows=PARAMS.rows, dense=PARAMS.dense, averaging=Averaging(kappa=1))
    bare, _ = applied(words, np.zeros(4, np.uint32), paper)
    assert floored.read_rows("goods", UNION).values[0] == pytest.approx([CLIP / 5] * 2)
    assert bare.read_rows("goods", UNION).values[0] == pytest.approx([CLIP] * 2)


def test_a_cap_bounds_what_a_whole_group_of_poisoners_does_to_a_row() -> None:
    capped = UpdateParams(rows=PARAMS.rows, dense=PARAMS.dense, averaging=Averaging(max_move=0.01))
    store, _ = applied(np.stack([forged(2**31 - 1, COHORT)] * 2), np.zeros(4, np.uint32), capped)
    assert np.linalg.norm(store.read_rows("goods", UNION).values, axis=1) == pytest.approx([0.01] * 2)


@pytest.mark.parametrize("weight", [COHORT * 500 + 1, 2**32 - 1])
def test_a_dense_sum_that_cannot_be_leaves_the_dense_part_alone(weight: int) -> None:
    store, result = applied(np.zeros((2, 3), np.uint32), forged(2**31 - 1, weight, 3))
    assert result.dense_refused
    assert not store.read_dense().values.any()


@pytest.mark.parametrize(
    ("tables", "dense"),
    [
        (np.zeros((2, 2), np.uint32), np.zeros(4, np.uint32)),
        (np.zeros((3, 3), np.uint32), np.zeros(4, np.uint32)),
        (np.zeros((2, 0), np.uint32), np.zeros(4, np.uint32)),
        (np.zeros(6, np.uint32), np.zeros(4, np.uint32)),
        (np.zeros((2, 3)), np.zeros(4, np.uint32)),
        (np.zeros((2, 3), np.uint32), np.array([1, 1, 1, 1, 1], np.uint32)),
        (np.full((2, 3), 2**40), np.zeros(4, np.uint32)),
        (np.zeros((2, 3), np.uint32), np.zeros((1, 4), np.uint32)),
    ],
    ids=range(8),
)
def test_sums_of_the_wrong_shape_are_refused(tables: Any, dense: Any) -> None:
    with pytest.raises(InputError, match="sum of"):
        applied(tables, dense)


# -- what a sum tells about a row's only owner -------------------------------------------------


def common_divisor(words: np.ndarray) -> int:
    return reduce(math.gcd, map(int, words))


def test_a_lone_owners_words_do_not_betray_the_update_before_weighting() -> None:
    """Rounding first, as in the paper, every word is a multiple of the count: the attack finds it."""
    count, deltas = 7, np.linspace(0.01, 0.09, 16)[None]
    quantization = Quantization.finest("z32", cohort=100, clip=CLIP, max_weight=100)
    ours = quantization.encode(deltas, [count], RANDOMNESS)[0, :-1]
    papers = count * round_stochastic(deltas / quantization.unit, RANDOMNESS)[0]
    assert common_divisor(papers) % count == 0
    assert common_divisor(ours) == 1


# -- nothing that is not a number reaches a store ----------------------------------------------


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("place", ["values", "state", "dense", "dense state"])
def test_a_store_does_not_take_nan_or_infinity(bad: float, place: str) -> None:
    store = MemoryStore(
        StoreSpec(model=MODEL, seed=bytes(32), row_slots=1, dense_slots=1), np.zeros(3, np.float32)
    )
    parts = {
        "values": np.zeros((1, 2), np.float32),
        "state": np.zeros((1, 1, 2), np.float32),
        "dense": np.zeros(3, np.float32),
        "dense state": np.zeros((1, 3), np.float32),
    }
    parts[place].flat[-1] = bad
    rows = RowBlock(RowSet([1]), parts["values"], parts["state"])
    commit = Commit(1, {"goods": rows}, DenseBlock(parts["dense"], parts["dense state"]))
    with pytest.raises(NotFinite):
        store.commit(commit)
    assert store.round == 0
    assert len(store.touched("goods")) == 0


@pytest.mark.parametrize(
    "commit",
    [
        Commit(0),
        Commit(2),
        Commit(
            1, {"goods": RowBlock(RowSet([1]), np.zeros((1, 3), np.float32), np.zeros((1, 0, 3), np.float32))}
        ),
        Commit(
            1, {"goods": RowBlock(RowSet([1]), np.zeros((2, 2), np.float32), np.zeros((2, 0, 2), np.float32))}
        ),
        Commit(1, {"goods": RowBlock(RowSet([1]), np.zeros((1, 2)), np.zeros((1, 0, 2), np.float32))}),  # type: ignore[arg-type]
        Commit(
            1, {"goods": RowBlock(RowSet([1]), np.zeros((1, 2), np.float32), np.zeros((1, 1, 2), np.float32))}
        ),
        Commit(1, {}, DenseBlock(np.zeros(2, np.float32), np.zeros((0, 2), np.float32))),
    ],
    ids=["old round", "skipped round", "width", "rows", "float64", "slots", "dense"],
)
def test_a_commit_that_does_not_fit_changes_nothing(commit: Commit) -> None:
    store = MemoryStore(StoreSpec(model=MODEL, seed=bytes(32)), np.zeros(3, np.float32))
    with pytest.raises(InputError):
        store.commit(commit)
    assert store.round == 0
    assert len(store.touched("goods")) == 0


@pytest.mark.parametrize(("word", "there"), [(7, True), (2**39, True), (2**64 - 1, False), (2**50, False)])
def test_a_liar_who_counts_below_nothing_costs_the_round_its_auc_only(word: int, there: bool) -> None:
    """In a ring of 64 bits minus one is 2**64 - 1, and the next round's bins follow from what was counted."""
    params = Cohort(3).params
    dense = np.zeros(params.model.dense_words + 2 * params.bins, np.uint64)
    dense[-1] = word
    empty = {table.name: RowSet.of([]) for table in params.model.summed}
    words = [np.zeros((0, table.words), np.uint64) for table in params.model.summed]
    none = [np.zeros(0, np.int64) for _ in words]
    opened = read_sums(params, empty, dense, words, none, ("a", "b", "c"))
    assert (opened.scores is not None) == there
    honest = read_sums(params, empty, np.ones_like(dense), words, none, ("d", "e", "f"))
    both = (opened + honest).scores
    assert both is not None  # another cohort's still count
    assert both[1][-1] == 1 + word * there
