"""Rounds over hot rows: bounds at their boundary, and figures worked out by hand."""

import math
from dataclasses import replace as with_
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from cohort import DENSE, GOODS, MAPS, MODEL
from hot_cohort import HOT, HOT_GOODS, HotCohort, new_store, plan, rules
from sfsl.errors import Deceived, InvalidMessage, ParameterError, Refused, WrongPhase
from sfsl.rounds import Trained
from sfsl.rounds import hot as hot_rows
from sfsl.rounds.hot import (
    SAMPLE_SHARE,
    SCORES_SHARE,
    UPDATE_SHARE,
    HotParams,
    HotSet,
    HotState,
    Published,
    Said,
    blocks_of,
    choose_hot,
    listen,
)
from sfsl.rounds.hot_client import (
    _within,
    open_published,
    require_hot,
    survey_vector,
    update_vector,
    with_noise,
)
from sfsl.rounds.hot_server import HotServer, HotSums, plan_hot
from sfsl.rounds.params import HotLimits
from sfsl.submodel import ModelSpec, RowMaps, RowSet, Table, TrainedRows
from sfsl.testing import SeededRandomness

TRAINING = HotState(surveys=1, surveyed=100, hot=HOT.encode())
SURVEY, TRAIN = plan("survey").params, plan().params


def test_what_parameters_are_where_nothing_is_said() -> None:
    bare = HotParams(number=1, kind="survey", model=MODEL, deviation=0)
    assert (bare.levels, bare.clip, bare.marks, bare.rows, bare.hot, bare.blob) == (1, 1.0, 1, {}, b"", b"")
    assert (bare.seed, bare.training, bare.precision, bare.bins) == (bytes(32), {}, "float16", 0)
    state = HotState()
    assert (state.surveys, state.surveyed, state.variance, state.clip) == (0, 0, 0.0, 0.0)
    assert state.hot_set() is None


def test_the_three_shares_of_a_clip() -> None:
    """Update, histograms and the word about clipping together have a norm of one clip."""
    shares = (hot_rows.UPDATE_SHARE, hot_rows.SCORES_SHARE, hot_rows.CUT_SHARE)
    assert shares[1:] == (0.1, 0.05)
    assert math.hypot(*shares) == pytest.approx(1)
    assert hot_rows.SAMPLE_SHARE == 0.02


# -- what an owner allows ------------------------------------------------------------------------------


def allowed(params: HotParams, clients: int = 6, **limits: Any) -> float:
    cohort = HotCohort(4)
    policy = replace(cohort.policy, hot=HotLimits(**{"max_rho": math.inf, "corruption": 0.0} | limits))
    session = replace(cohort.session, clients=clients, threshold=clients, sums=params.sums())
    return require_hot(policy, params, session)


def test_a_round_that_just_fits() -> None:
    """Each bound is what the round takes; a little less is too little."""
    train, survey = plan(rho=0.5).params, plan("survey", survey_rho=0.5).params
    rho = allowed(train)
    assert rho == train.rho(6)
    assert allowed(train, max_rho=rho) == rho
    with pytest.raises(Refused, match="costs rho"):
        allowed(train, max_rho=rho * (1 - 1e-9))
    up, down = 4 * train.length, 4 * (DENSE + 20 * 3 + 4 * 2)
    allowed(train, max_bytes=up + down)
    with pytest.raises(Refused, match=f"a round that takes {up + down} bytes"):
        allowed(train, max_bytes=up + down - 1)
    allowed(survey, max_bytes=4 * GOODS)
    with pytest.raises(Refused, match=f"takes {4 * GOODS} bytes"):
        allowed(survey, max_bytes=4 * GOODS - 1)
    allowed(survey, max_marks=5)
    with pytest.raises(Refused, match="a survey of 5 marks, this client allows 4"):
        allowed(survey, max_marks=4)
    allowed(replace(train, marks=9), max_marks=1)  # of a survey alone
    allowed(replace(train, clip=2.0))
    with pytest.raises(Refused, match="a norm up to 2"):
        allowed(replace(train, clip=2.1))
    allowed(replace(survey, clip=2.1))
    with pytest.raises(Refused, match="covers nothing"):
        allowed(replace(train, deviation=1.0))


# -- vectors -------------------------------------------------------------------------------------------


def test_marks_of_as_many_rows_as_may_be_marked() -> None:
    survey = replace(SURVEY, levels=3)
    for rows in ([], [7], [0, 1, 2, 3, 59]):
        vector = survey_vector(survey, {"goods": np.array(rows, np.int64)}, SeededRandomness("none is drawn"))
        assert (len(vector), np.flatnonzero(vector).tolist()) == (GOODS, rows)
        assert set(vector[rows].tolist()) <= {3}
    many = np.arange(20, 26)
    vector = survey_vector(survey, {"goods": many}, SeededRandomness("drawn"))
    assert int(vector.sum()) == 5 * 3
    assert set(np.flatnonzero(vector)) < set(many.tolist())


def learned(dense: Any, rows: Any = (), scores: Any = None) -> np.ndarray:
    own = RowSet.of(rows)
    goods = TrainedRows(own, np.ones((len(own), 3)), np.ones(len(own), int))
    none = TrainedRows(RowSet.of([]), np.zeros((0, 2)), np.zeros(0, int))
    sets = HOT.sets(MODEL)
    trained = Trained(dense, 1, {"goods": goods, "category": none}, scores)
    return update_vector(TRAIN, sets, trained, SeededRandomness("rounding"))


def test_an_update_is_cut_to_its_share_of_the_clip_and_says_so() -> None:
    levels, share = TRAIN.levels, hot_rows.UPDATE_SHARE
    small = learned([share / 2, 0, 0, 0])
    assert small[0] == pytest.approx(levels * share / 2, abs=1)
    assert not small[1:].any()
    just = learned([share * (1 - 1e-12), 0, 0, 0])
    assert just[-1] == 0
    cut = learned([3.0, 4.0, 0, 0])
    np.testing.assert_allclose(cut[:2], [levels * share * 0.6, levels * share * 0.8], atol=1)
    assert cut[-1] == pytest.approx(levels * 0.05, abs=1)
    huge = learned([1e300, 0, 0, 0])
    assert huge[0] == pytest.approx(levels * share, abs=1)
    rows = learned([0, 0, 0, 0], rows=[3])
    assert np.flatnonzero(rows).tolist() == [DENSE + 3, DENSE + 4, DENSE + 5, len(rows) - 1]
    np.testing.assert_allclose(rows[DENSE + 3 : DENSE + 6], levels * share / math.sqrt(3), atol=1)


def test_histograms_have_their_own_share() -> None:
    levels, start = TRAIN.levels, DENSE + 68
    clicks, others = np.zeros(8), np.zeros(8)
    clicks[2], others[7] = 3, 4
    both = learned(np.zeros(DENSE), scores=(clicks, others))  # five samples' worth: all that count
    np.testing.assert_allclose(both[[start + 2, start + 15]], [levels * 0.06, levels * 0.08], atol=1)
    more = learned(np.zeros(DENSE), scores=(2 * clicks, 2 * others))
    np.testing.assert_allclose(more, both, atol=1)
    assert both[-1] == more[-1] == 0


def test_noise_is_the_clients_own() -> None:
    vector = np.array([5, -3], np.int64)
    np.testing.assert_array_equal(with_noise(TRAIN, vector, SeededRandomness(1)).view(np.int32), [5, -3])
    noisy = with_noise(replace(TRAIN, deviation=100.0), np.zeros(400, np.int64), SeededRandomness(1))
    assert 80 < float(noisy.view(np.int32).std()) < 120


# -- downloads -----------------------------------------------------------------------------------------


def test_every_number_of_a_download_is_where_it_belongs() -> None:
    one = plan()
    assert one.published is not None
    values = np.arange(DENSE + 68, dtype="<f4")
    blob = values.tobytes()
    params = replace(one.params, blob=hot_rows.blob_digest(blob))
    download = open_published(params, Published(one.published.hot, blob))
    np.testing.assert_array_equal(download.dense, values[:DENSE])
    np.testing.assert_array_equal(download.rows["goods"], values[DENSE : DENSE + 60].reshape(20, 3))
    np.testing.assert_array_equal(download.rows["category"], values[DENSE + 60 :].reshape(4, 2))
    assert (download.training, download.scores) == ({"rate": 1.0}, params.scores)
    bad = values.copy()
    bad[-1] = np.nan
    spoilt = replace(params, blob=hot_rows.blob_digest(bad.tobytes()))
    with pytest.raises(InvalidMessage, match="NaN or infinity"):
        open_published(spoilt, Published(one.published.hot, bad.tobytes()))
    short = replace(params, blob=hot_rows.blob_digest(blob[:-4]))
    with pytest.raises(InvalidMessage, match=f"a model of {len(blob) - 4} bytes where {len(blob)} are due"):
        open_published(short, Published(one.published.hot, blob[:-4]))
    for wrong in (Published(one.published.hot, blob + b"\0"), Published(replace(HOT, version=2), blob)):
        with pytest.raises(Deceived):
            open_published(params, wrong)


def test_the_last_row_of_a_table_may_be_hot() -> None:
    last = HotSet.of(1, 2, {"goods": np.array([GOODS - 1])}, {"goods": np.array([1.0])})
    assert last.sets(MODEL)["goods"].rows.tolist() == [GOODS - 1]
    assert not len(last.sets(MODEL)["category"])
    assert last.shares("goods").tolist() == [0.5]


# -- what is listened to -------------------------------------------------------------------------------


def test_what_owners_said_is_kept_less_its_noise() -> None:
    sums = np.array([[1.0, 0.0], [2.0, 1.0]])
    first = listen(None, sums, np.array([3, 1]), 0.5)
    assert first == Said((5 - 0.5, 1 - 0.5), 4.0, 2.0)
    second = listen(first, sums, np.array([3, 1]), 0.5)
    assert second.squares == pytest.approx((1.95 * 4.5, 1.95 * 0.5))
    assert (second.owners, second.rows) == pytest.approx((1.95 * 4, 0.95**2 * 2 + 2))


def test_what_may_be_noise_alone_is_not_seen() -> None:
    said = Said((9.0, 3.0 * 0.25 * 2.0, 0.1), 4.0, 2.0)
    np.testing.assert_allclose(said.seen(0.5), [(9.0 - 1.5) / 4, 0.0, 0.0])
    np.testing.assert_allclose(Said((9.0,), 0.5, 2.0).seen(0.5), [7.5])  # of one owner at the least


def test_a_vector_of_exactly_the_norm_that_is_allowed_was_not_cut() -> None:
    vector = np.array([3.0, -4.0])
    kept, was = _within(vector, 5.0)
    assert kept is vector
    assert not was
    cut, was = _within(vector, 4.999)
    assert was
    np.testing.assert_allclose(cut, vector * 4.999 / 5)


def test_blocks_of_the_dense_part() -> None:
    assert blocks_of(3).tolist() == [[0], [1], [2]]
    assert blocks_of(64).shape == (64, 1)
    wide = blocks_of(65)
    assert wide.shape == (64, 2)
    assert (wide[:, 0].tolist(), wide[:, 1].tolist()) == (list(range(64)), list(range(1, 65)))
    assert blocks_of(128)[:, 1].tolist() == list(range(64, 128))
    assert blocks_of(0).size == 0


def test_counts_under_noise_are_drawn_to_the_usual() -> None:
    """Of four rows with a deviation of 2 the counts differ by more than noise: spread 86, of 90 in all."""
    model = ModelSpec(tables=(Table(name="goods", rows=4, width=1),), dense=0)
    counts = np.array([10.0, 30.0, 10.0, 30.0])
    found = choose_hot(model, RowMaps(model, {}), counts, 100, 2.0, 10)
    owners = 100 * found.shares("goods")
    np.testing.assert_allclose(owners, 20 + (counts - 20) * 96 / 100, rtol=1e-6)
    same = choose_hot(model, RowMaps(model, {}), np.array([19.0, 21.0, 19.0, 21.0]), 100, 2.0, 10)
    np.testing.assert_allclose(100 * same.shares("goods"), 20, rtol=1e-6)


def test_a_table_of_one_row_is_its_own_usual() -> None:
    model = ModelSpec(tables=(Table(name="goods", rows=1, width=1),), dense=0)
    found = choose_hot(model, RowMaps(model, {}), np.array([30.0]), 100, 2.0, 10)
    np.testing.assert_allclose(100 * found.shares("goods"), [30], rtol=1e-6)


def test_two_shared_tables_are_counted_one_behind_the_other() -> None:
    model = ModelSpec(
        tables=(
            Table(name="a", rows=3, width=1),
            Table(name="user", rows=2, width=1, kind="personal"),
            Table(name="b", rows=2, width=1),
        ),
        dense=0,
    )
    found = choose_hot(model, RowMaps(model, {}), np.array([0.0, 2.0, 0.0, 0.0, 5.0]), 9, 0.0, 10)
    assert {name: rows.rows.tolist() for name, rows in found.sets(model).items()} == {"a": [1], "b": [1]}
    assert (9 * found.shares("a")).tolist() == pytest.approx([2])
    assert found.version == 1


# -- plans ---------------------------------------------------------------------------------------------


def test_how_finely_a_vector_is_counted() -> None:
    train = plan(clients=6).params
    assert train.levels == math.ceil(40 * math.sqrt(train.length))
    assert (train.deviation, train.number, train.clip) == (0.0, 1, 1.0)
    assert plan("survey").params.levels == 1
    noisy = plan("survey", survey_rho=0.01).params
    assert noisy.levels == math.ceil(20 * math.sqrt(5 / 5) * math.sqrt(2 * 0.01))
    assert noisy.deviation >= 2.5
    finer = plan("survey", survey_rho=12.5).params
    assert finer.levels == math.ceil(20 * math.sqrt(5 / 5) * math.sqrt(2 * 12.5)) == 100
    kept = plan_hot(rules(), MODEL, new_store(), clients=6, state=replace(TRAINING, clip=0.25))
    assert kept.params.clip == 0.25


def test_a_survey_of_as_many_rows_as_there_may_be() -> None:
    def of(rows: int) -> ModelSpec:
        return ModelSpec(tables=(Table(name="goods", rows=rows, width=1),), dense=0)

    plan_hot(rules(), of(2**22), new_store(), clients=6, state=HotState())
    with pytest.raises(ParameterError, match="4,194,305 rows"):
        plan_hot(rules(), of(2**22 + 1), new_store(), clients=6, state=HotState())


def test_counts_are_kept_while_the_catalogue_is_the_same() -> None:
    state = HotState(surveys=1, counts=np.ones(GOODS).tobytes(), clip=0.5)
    same = plan_hot(rules(surveys=2), MODEL, new_store(), clients=6, state=state)
    assert same.state == state
    other = replace(state, counts=np.ones(GOODS - 1).tobytes())
    assert plan_hot(rules(surveys=2), MODEL, new_store(), clients=6, state=other).state == HotState(clip=0.5)


def test_what_everybody_downloads_is_named_by_its_digest() -> None:
    assert plan("survey").contents() == {}
    one = plan()
    assert one.published is not None
    assert one.contents() == {HOT.digest(): HOT.encode(), one.params.blob: one.published.blob}
    assert hot_rows.blob_digest(one.published.blob) == one.params.blob


def test_a_survey_counts_in_marks() -> None:
    one = plan("survey", surveys=2, survey_rho=1.0)
    words = np.zeros(GOODS, np.int64)
    words[3] = 2 * one.params.levels
    state = one.conclude(new_store(), MAPS, HotSums(words, ("a", "b", "c"))).hot
    assert state is not None
    assert (state.surveys, state.surveyed, state.hot) == (1, 3, b"")
    assert np.frombuffer(state.counts, "<f8")[3] == 2.0
    again = with_(one, state=state).conclude(new_store(), MAPS, HotSums(words, ("a",))).hot
    assert again is not None
    assert again.surveys == 2
    found = again.hot_set()
    assert found is not None
    assert (found.version, found.surveyed) == (1, 4)
    later = (
        with_(one, state=replace(again, counts=b"")).conclude(new_store(), MAPS, HotSums(words, ("a",))).hot
    )
    assert later is not None
    assert later.hot_set().version == 2  # type: ignore[union-attr]


def moved(noise: float = 0.0, clients: int = 4, survivors: int = 4, cut: int = 0, **state: Any) -> Any:
    """A round in which every word of the sum is 8; the last one says who was ``cut``."""
    one = plan_hot(rules(), MODEL, new_store(), clients=clients, state=replace(TRAINING, **state))
    one = with_(one, params=replace(one.params, levels=100, deviation=noise))
    words = np.full(one.params.length, 8, np.int64)
    words[-1] = cut
    names = tuple(f"c{i}" for i in range(survivors))
    return one.conclude(new_store(), MAPS, HotSums(words, names))


def test_a_sum_moves_the_model_by_its_average() -> None:
    outcome = moved()
    np.testing.assert_allclose(outcome.applied.commit.dense.values, np.arange(DENSE) + 0.08 / 4, rtol=1e-5)
    assert outcome.contributors["goods"].tolist() == [
        max(1, round(share * 4)) for share in np.linspace(0.5, 0.05, len(HOT_GOODS))
    ]
    assert outcome.contributors["category"].tolist() == [3] * 4
    clicks, others = outcome.scores
    assert clicks.tolist() == others.tolist() == [4] * 8  # 8 words of 100, and 2 of them are a sample
    assert outcome.noise == 0.0
    assert not outcome.applied.dense_refused
    assert outcome.applied.refused == {"goods": 0, "category": 0}
    assert outcome.hot.said == {}
    assert outcome.hot.clip == pytest.approx(math.exp(-0.5))


def test_the_clip_follows_also_one_client() -> None:
    assert moved(survivors=1, cut=5).hot.clip == pytest.approx(
        math.exp(0.5)
    )  # 5 words of 100: a whole client
    assert moved(survivors=2, cut=5).hot.clip == pytest.approx(1.0)
    assert moved(survivors=0, cut=5).hot.clip == pytest.approx(math.exp(0.5))


def test_a_noisy_sum_is_listened_to() -> None:
    outcome = moved(noise=3.0)
    said = outcome.hot.said
    assert set(said) == {"", "goods", "category"}
    noise = 3.0 * math.sqrt(4) / 100
    assert said["goods"].squares == pytest.approx([20 * (0.08**2 - noise**2)] * 3)
    assert said["goods"].owners == float(outcome.contributors["goods"].sum())
    assert (said[""].owners, said[""].rows) == (4 * DENSE, DENSE)
    assert outcome.noise == pytest.approx(3.0 * 2 / (100 * 0.02))


@pytest.mark.parametrize("survivors", [1, 2, 4])
def test_a_sum_is_bounded_by_what_its_survivors_can_have_said(survivors: int) -> None:
    """Loud words are cut to one clip for each of them, also where there is only one."""
    one = plan_hot(rules(), MODEL, new_store(), clients=4, state=TRAINING)
    levels, bins = one.params.levels, one.params.bins
    words = np.full(one.params.length, 10**6 * levels)
    words[-1] = 0
    names = tuple(f"c{i}" for i in range(survivors))
    outcome = one.conclude(new_store(), MAPS, HotSums(words, names))
    dense = outcome.applied.commit.dense.values - np.arange(DENSE)
    # All that is as loud has the same norm in the end, the dense part and each row over its owners.
    rows = sum(map(len, HOT.sets(MODEL).values()))
    said = math.sqrt(survivors) * (UPDATE_SHARE + math.sqrt(one.params.length) / levels)
    np.testing.assert_allclose(
        np.linalg.norm(dense), said / math.sqrt(rows + 1) * math.sqrt(survivors) / survivors, rtol=1e-4
    )
    longest = survivors * (SCORES_SHARE + math.sqrt(2 * bins) / levels)
    assert outcome.scores[0].tolist() == [round(longest / math.sqrt(2 * bins) / SAMPLE_SHARE)] * bins


def test_noise_is_in_units_of_the_clip() -> None:
    """The words of a sum are multiples of clip / levels, and so is the deviation: said in clips, it is the
    same."""
    noise = 3.0 * math.sqrt(4) / 100
    for clip in (0.5, 1.0, 3.0):
        said = moved(noise=3.0, clip=clip).hot.said["goods"].squares
        assert said == pytest.approx([20 * (0.08**2 - noise**2)] * 3)


# -- the machine ---------------------------------------------------------------------------------------


def test_a_server_of_another_sum() -> None:
    cohort = HotCohort(4)
    keys = list(cohort.keys.values())
    other = HotCohort(4, "survey").plan
    with pytest.raises(ParameterError, match="not that of this round"):
        HotServer(cohort.session, other, keys, cohort.store, MAPS)
    part = HotServer(cohort.session, cohort.plan, keys, cohort.store, MAPS, alone=False)
    with pytest.raises(WrongPhase, match="not over"):
        _ = part.sums


def test_one_cohort_of_several_has_sums_and_no_outcome() -> None:
    cohort = HotCohort(4)
    cohort.server = HotServer(
        cohort.session, cohort.plan, list(cohort.keys.values()), cohort.store, MAPS, alone=False
    )
    with pytest.raises(WrongPhase, match="not over"):
        cohort.finish()
    assert len(cohort.server.sums.survivors) == 4


def test_a_round_of_the_other_kind() -> None:
    trains, surveys = (HotCohort(4, kind).until("inbound") for kind in ("train", "survey"))
    with pytest.raises(WrongPhase, match="trains"):
        trains.clients["c000"].handle_survey(trains.outbound["c000"])
    published = trains.plan.published
    assert published is not None
    with pytest.raises(WrongPhase, match="is a survey"):
        surveys.clients["c000"].handle_model(surveys.outbound["c000"], published)


def test_the_session_of_another_round() -> None:
    cohort = HotCohort(4)
    told = cohort.outbound["c000"]
    other = replace(told.roster, params=replace(told.roster.params, sums=SURVEY.sums()))
    with pytest.raises(Refused, match="the sum that was announced"):
        cohort.clients["c000"].handle_invitation(replace(told, roster=other))
