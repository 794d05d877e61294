"""What a client that lies can do to a sum over hot rows: no more than owners could have said together."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from sfsl.rounds import Trained, hot_bounds
from sfsl.rounds.hot import SAMPLE_SHARE, SCORES_SHARE, UPDATE_SHARE, HotSet, HotState
from sfsl.rounds.hot_bounds import Bounds, Part
from sfsl.rounds.hot_client import update_vector, with_noise
from sfsl.rounds.hot_server import HotRound, HotSums, plan_hot
from sfsl.rounds.params import ScoreBins
from sfsl.settings.rounds import round_rules
from sfsl.settings.run import RunConfig
from sfsl.submodel import MemoryStore, ModelSpec, RowMaps, RowSet, StoreSpec, Table, TrainedRows, update
from sfsl.testing import SeededRandomness

ROWS, WIDTH, DENSE, CLIENTS, BINS = 200, 19, 40, 80, 8
MODEL = ModelSpec(tables=(Table(name="item", rows=ROWS, width=WIDTH),), dense=DENSE)
MAPS = RowMaps(MODEL, {})
SETS = {"item": RowSet(np.arange(ROWS))}
CLIP = 0.3
RARE, COMMON = ROWS - 1, 0


def owned() -> list[Any]:
    """Which rows each client has: a few that many have, many that few have."""
    rng = np.random.default_rng(1)
    chance = 1 / (1 + np.arange(ROWS))
    return [np.sort(rng.choice(ROWS, 12, replace=False, p=chance / chance.sum())) for _ in range(CLIENTS)]


OWNED = owned()
OWNERS = np.bincount(np.concatenate(OWNED), minlength=ROWS)


def planned(epsilon: float = math.inf, said: Any = None, **server: Any) -> HotRound:
    """A round of these clients, with the settings of a server as they come."""
    config = msgspec.convert(
        {
            "server": server,
            "round": {"clients": CLIENTS, "scheme": "hot"},
            "hot": {"bins": BINS, "surveys": 1, "clip": CLIP, "precision": "float32"},
            "privacy": {"participations": 2, "epsilon": epsilon},
        },
        RunConfig,
    )
    rules = round_rules(config)
    hot = HotSet.of(1, CLIENTS, {"item": np.arange(ROWS)}, {"item": OWNERS.astype(np.float64)})
    state = HotState(surveys=1, surveyed=CLIENTS, hot=hot.encode(), said=said or {})
    return plan_hot(rules, MODEL, store(rules), clients=CLIENTS, state=state, scores=ScoreBins(bins=BINS))


def store(rules: Any) -> MemoryStore:
    slots = {"row_slots": rules.update.row_step.slots, "dense_slots": rules.update.dense_step.slots}
    return MemoryStore(StoreSpec(model=MODEL, seed=bytes(32), **slots), np.zeros(DENSE, np.float32))


def vector(one: HotRound, number: int, scale: float = 0.2, agree: bool = False) -> Any:
    """What an honest client sends, before noise."""
    rng, own = np.random.default_rng(0 if agree else number), OWNED[number]
    moves = np.broadcast_to(rng.normal(0, scale, WIDTH), (len(own), WIDTH))
    if not agree:
        moves = rng.normal(0, scale, (len(own), WIDTH))
    rows = {"item": TrainedRows(RowSet(own), moves, np.ones(len(own), int))}
    scores = (np.ones(BINS, int), np.ones(BINS, int))
    trained = Trained(rng.normal(0, scale, DENSE), 12, rows, scores)
    return update_vector(one.params, SETS, trained, SeededRandomness(str(number)))


def total(one: HotRound, lies: Sequence[Any] = (), **more: Any) -> Any:
    """The opened sum of honest clients, the last ones of whom lie instead, each in its own way."""
    honest = range(CLIENTS - len(lies))
    words = sum(
        with_noise(one.params, vector(one, number, **more), SeededRandomness(f"noise {number}")).astype(
            np.int64
        )
        for number in honest
    )
    whole = words + sum(lies, np.zeros(one.params.length, np.int64))
    return HotSums(whole.astype(np.uint32).view(np.int32).astype(np.int64), tuple(map(str, range(CLIENTS))))


def lie(one: HotRound, row: int, clips: float) -> Any:
    """So many clips in one direction of one row, and nothing else."""
    words, start = np.zeros(one.params.length, np.int64), DENSE + row * WIDTH
    words[start : start + WIDTH] = round(clips * one.params.levels / math.sqrt(WIDTH))
    return words


def concluded(one: HotRound, sums: HotSums) -> Any:
    return one.conclude(store(one.rules), MAPS, sums)


def moved(one: HotRound, sums: HotSums) -> Any:
    """How far each row moves."""
    before = store(one.rules).read_rows("item", SETS["item"]).values
    block, moves = concluded(one, sums).applied.commit.tables["item"], np.zeros(ROWS)
    moves[block.rows.rows] = np.linalg.norm(block.values - before[block.rows.rows], axis=1)
    return moves


def unbounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bounds, "model", lambda self, parts: [one.sums for one in parts])
    monkeypatch.setattr(Bounds, "histograms", lambda self, sums: sums)


# -- honest clients ----------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [math.inf, 8.0, 0.5])
@pytest.mark.parametrize("agree", [False, True])
def test_sums_of_honest_clients_are_not_cut(epsilon: float, agree: bool, monkeypatch: Any) -> None:
    """Not even of those whose updates are all at the clip, and all in one direction."""
    one = planned(epsilon)
    sums = total(one, scale=5.0, agree=agree)
    outcome = concluded(one, sums)
    assert outcome.applied.refused == {"item": 0}
    unbounded(monkeypatch)
    free = concluded(one, sums)
    for mine, theirs in (
        (outcome.applied.commit.tables["item"].values, free.applied.commit.tables["item"].values),
        (outcome.applied.commit.dense.values, free.applied.commit.dense.values),
        (np.array(outcome.scores), np.array(free.scores)),
    ):
        np.testing.assert_array_equal(mine, theirs)


def test_one_honest_client_with_all_of_its_clip_in_a_row_that_it_has_alone_is_not_cut() -> None:
    one = planned()
    alone = int(np.flatnonzero(OWNERS == 1)[0])
    sums = HotSums(lie(one, alone, math.sqrt(1 - 0.1**2 - 0.05**2)), tuple(map(str, range(CLIENTS))))
    assert concluded(one, sums).applied.refused == {"item": 0}


# -- liars -------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", [RARE, COMMON])
@pytest.mark.parametrize("clips", [1.0, 1000.0])
@pytest.mark.parametrize("epsilon", [math.inf, 8.0])
def test_a_liar_moves_no_row_further_than_an_honest_client_could(
    row: int, clips: float, epsilon: float
) -> None:
    one = planned(epsilon)
    limit = one.rules.update.averaging.max_move
    assert limit is not None
    free = planned(max_move=0)
    alone = moved(free, HotSums(vector(free, 0), ("one",)))[OWNED[0]]
    assert limit < 1.2 * np.median(alone)  # what one client alone moves rows by
    assert moved(one, total(one, [lie(one, row, clips)])).max() <= limit * (1 + 1e-6)


def test_without_the_limit_it_moves_a_row_many_times_as_far() -> None:
    free = planned(max_move=0)
    assert (
        moved(free, total(free, [lie(free, RARE, 1000.0)]))[RARE]
        > 3 * planned().rules.update.averaging.max_move
    )


def test_a_thousand_clips_are_worth_no_more_than_all_of_its_owners() -> None:
    one = planned()
    loud, allowed = (
        moved(one, total(one, [lie(one, RARE, clips)])) for clips in (1000.0, float(OWNERS[RARE] or 1))
    )
    np.testing.assert_allclose(loud, allowed, rtol=0.05, atol=1e-4)
    assert concluded(one, total(one, [lie(one, RARE, 1000.0)])).applied.refused == {"item": 1}


def others(one: HotRound, lies: Sequence[Any]) -> float:
    """How far rows move that no liar named, beside what they move where nobody lies."""
    kept = np.delete(np.arange(ROWS), [RARE, COMMON])
    quiet = moved(one, total(one))[kept]
    return float(np.median(moved(one, total(one, lies))[kept][quiet > 0] / quiet[quiet > 0]))


def test_a_liar_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evidence is measured by what owners say on average, so that one loud row makes all others quiet.

    Two things stand in its way, and each is enough: the sum is cut, and no row counts for many usual ones.
    """
    one = planned(max_move=0)
    loud = [lie(one, RARE, 1000.0)]
    assert others(one, loud) > 0.8
    with monkeypatch.context() as uncut:
        unbounded(uncut)
        assert others(one, loud) > 0.8
        uncut.setattr(update, "LOUDEST", math.inf)
        assert others(one, loud) < 0.02
    monkeypatch.setattr(update, "LOUDEST", math.inf)
    assert others(one, loud) > 0.8


def test_a_liar_in_all_rows_leaves_less_than_all_clients_together_could_say() -> None:
    one = planned()
    everywhere = sum(lie(one, row, 1000.0) for row in range(ROWS))
    kept, given = rows_kept(one, total(one, [everywhere]))
    assert np.sum(np.square(np.linalg.norm(kept, axis=1)) / np.maximum(1, OWNERS)) <= CLIENTS * CLIP**2 * 1.1
    assert np.linalg.norm(given) > 500 * np.linalg.norm(kept)


def rows_kept(one: HotRound, sums: HotSums) -> tuple[Any, Any]:
    values = sums.words * (one.params.clip / one.params.levels)
    rows = values[DENSE : DENSE + ROWS * WIDTH].reshape(ROWS, WIDTH)
    parts = [
        Part(rows, np.maximum(1, OWNERS)),
        Part(values[:DENSE][None], np.array([CLIENTS])),
    ]
    return Bounds(one.params, CLIENTS, 0.0).model(parts)[0], rows


def test_one_lie_under_noise_does_not_deafen_later_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """What owners say is remembered over rounds, from which the server tells them from noise."""
    one = planned(8.0)
    huge = [lie(one, RARE, 2**31 / 8 / one.params.levels)]

    def remembered() -> float:
        said = concluded(one, total(one, huge)).hot.said["item"]
        return float(np.mean(said.squares)) / float(
            np.abs(concluded(one, total(one)).hot.said["item"].squares).mean()
        )

    bounded = remembered()
    unbounded(monkeypatch)
    assert bounded < 20
    assert remembered() > 1000 * bounded


def test_the_dense_part_and_histograms_are_cut_to_what_all_clients_can_say() -> None:
    one = planned()
    words = np.zeros(one.params.length, np.int64)
    words[0] = 2**29
    words[-1 - 2 * BINS] = 2**29
    kept = Bounds(one.params, CLIENTS, 0.0).model(
        [Part(words[:DENSE][None] * (CLIP / one.params.levels), np.array([CLIENTS]))]
    )
    assert np.linalg.norm(kept[0]) <= CLIENTS * CLIP
    counts = np.array(concluded(one, total(one, [words])).scores)
    assert counts.max() <= CLIENTS * 0.1 / SAMPLE_SHARE * 1.1
    assert np.count_nonzero(counts > CLIENTS / 2) >= 2 * BINS - 2  # those of honest clients are still there


# -- the arithmetic ----------------------------------------------------------------------------


def test_noise_alone_is_rarely_longer_than_what_is_allowed_for_it() -> None:
    rng, weights = np.random.default_rng(0), np.repeat([1.0, 0.1, 0.02], 30)
    norms = np.sqrt(np.square(rng.normal(0, 1, (20000, 90))) @ weights)
    allowed = hot_bounds._noise_norm(weights)
    assert norms.max() < allowed < 3.5 * np.median(norms)
    assert hot_bounds._noise_norm(weights, 10.0) > allowed
    assert hot_bounds._noise_norm(np.zeros(0)) == 0


def test_what_is_allowed_for_noise_by_hand() -> None:
    """Weights 4, 1 and 1: their sum is 6, that of their squares 18, the largest 4."""
    rare = 40 * math.log(2)
    allowed = hot_bounds._noise_norm(np.array([4.0, 1.0, 1.0]))
    assert allowed**2 == pytest.approx(6 + 2 * math.sqrt(18 * rare) + 2 * 4 * rare)
    rarer = hot_bounds._noise_norm(np.array([4.0, 1.0, 1.0]), 3.0)
    assert rarer**2 == pytest.approx(6 + 2 * math.sqrt(18 * (rare + 3)) + 2 * 4 * (rare + 3))


@pytest.mark.parametrize("noise", [0.0, 0.5])
@pytest.mark.parametrize("clients", [4, 10**9])
def test_what_a_row_is_cut_to_by_hand(noise: float, clients: int) -> None:
    """One row of two numbers and nine owners: by what they can have said of it alone, where there are many
    clients, and by what all together can have said, where there are few."""
    params, rare = planned().params, 40 * math.log(2)
    (kept,) = Bounds(params, clients, noise).model([Part(np.array([[3e9, -4e9]]), np.array([9]))])
    own = params.clip * (UPDATE_SHARE + math.sqrt(2) / params.levels)
    alone = 9 * own + noise * math.sqrt(2 + 2 * math.sqrt(2 * rare) + 2 * rare)
    all_said = params.clip * (UPDATE_SHARE + math.sqrt(params.length) / params.levels)
    together = 2 * all_said + noise / 3 * math.sqrt(2 + 2 * math.sqrt(2 * rare) + 2 * rare)
    wanted = min(alone, 3 * together) if clients == 4 else alone
    np.testing.assert_allclose(kept, [[0.6 * wanted, -0.8 * wanted]])


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_what_histograms_are_cut_to_by_hand(noise: float) -> None:
    params, rare = planned().params, 40 * math.log(2)
    kept = Bounds(params, 7, noise).histograms(np.array([5e9, -5e9, 5e9, 5e9]))
    longest = 7 * params.clip * (SCORES_SHARE + 2 / params.levels)
    longest += noise * math.sqrt(4 + 2 * math.sqrt(4 * rare) + 2 * rare)
    np.testing.assert_allclose(kept, np.array([1, -1, 1, 1]) * longest / 2)


def test_the_longest_are_cut_until_the_norm_fits() -> None:
    lengths = np.array([3.0, 1.0, 4.0, 0.5])
    for norm in (0.0, 0.5, 2.0, 4.0, 5.0):
        level = hot_bounds._level(lengths, norm)
        assert np.linalg.norm(np.minimum(lengths, level)) == pytest.approx(norm)
    assert hot_bounds._level(lengths, 5.2) == 4.0
    assert hot_bounds._level(np.zeros(0), 1.0) == 0.0


def test_a_round_without_survivors_or_parts_is_no_error() -> None:
    one = planned()
    params = replace_params(one, rows={"item": 0})
    assert Bounds(params, 1, 1.0).model([Part(np.zeros((0, WIDTH)), np.zeros(0, np.int64))])[0].shape == (
        0,
        WIDTH,
    )
    assert Bounds(params, 1, 0.0).histograms(np.zeros(0)).size == 0


def replace_params(one: HotRound, **changes: Any) -> Any:
    return replace(one, params=msgspec.structs.replace(one.params, **changes)).params
