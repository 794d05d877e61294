"""How rounds over hot rows are planned, what the server makes of a sum, and what it keeps in between."""

import math
from dataclasses import replace as with_
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from cohort import DENSE, GOODS, MAPS, MODEL
from hot_cohort import HOT, HotCohort, new_store, plan, rules
from sfsl.errors import ParameterError, StoreCorrupt
from sfsl.rounds import hot_server
from sfsl.rounds.hot import CUT_SHARE, SAMPLE_SHARE, HotState, choose_hot
from sfsl.rounds.hot_server import HotSums, plan_hot
from sfsl.rounds.record import RoundTally
from sfsl.service.driver import Driver, Journal, Kept
from sfsl.submodel import MemoryStore, ModelSpec, RowMaps, Table

TRAINING = HotState(surveys=1, surveyed=100, hot=HOT.encode())


@pytest.mark.parametrize("kind", ["survey", "train"])
@pytest.mark.parametrize("rho", [1e-3, 0.05, 1.0])
@pytest.mark.parametrize(("clients", "corruption"), [(6, 0.0), (50, 0.1), (500, 0.3)])
def test_a_round_costs_what_was_asked_for(kind: str, rho: float, clients: int, corruption: float) -> None:
    """By the same count of honest clients, and no more."""
    one = plan(kind, clients, rho=rho, survey_rho=rho, corruption=corruption)
    assert rho * (1 - 1e-9) <= one.rho(clients) <= rho
    threshold = 2 * clients // 3 + 1
    honest = threshold - math.floor(corruption * clients + 1e-9)
    assert one.params.rho(honest) == one.rho(clients)
    # In words: noise fine enough, and far from where a sum would wrap around.
    assert one.params.deviation >= 2.5
    largest = clients * one.params.sensitivity + 10 * one.params.deviation * math.sqrt(clients)
    assert largest < 2**31


def test_rounding_is_a_small_part_of_the_sensitivity() -> None:
    params = plan(rho=0.1).params
    assert params.sensitivity <= params.levels * (1 + 1 / 40)


def test_surveys_come_first() -> None:
    own = rules(surveys=2)
    store = new_store()
    kinds = [
        plan_hot(own, MODEL, store, clients=6, state=state).params.kind
        for state in (HotState(), HotState(surveys=1), replace(TRAINING, surveys=2))
    ]
    assert kinds == ["survey", "survey", "train"]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "nobody honest": ({"corruption": 0.9, "rho": 1.0}, "honest"),
    "noise that would wrap around": ({"clients": 500, "rho": 2e-12}, "wrap around"),
    "noise that does not fit a word": ({"clients": 500, "rho": 1.1e-12}, "fit the ring"),
    "of a survey too": ({"kind": "survey", "survey_rho": 1e-13}, "costs more"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_planned(name: str) -> None:
    changes, told = REFUSED[name]
    with pytest.raises(ParameterError, match=told):
        plan(**changes)


def test_a_sum_may_come_up_to_where_it_would_wrap_around(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of four clients, with noise of a size that is set here to the word."""
    params = plan(clients=4, rho=1.0).params
    most = (2**31 - 4 * params.sensitivity) / (hot_server._DEVIATIONS * 2)
    monkeypatch.setattr(hot_server, "deviation_for", lambda *_: most)
    assert 4 * params.sensitivity + hot_server._DEVIATIONS * most * 2 == 2**31
    with pytest.raises(ParameterError, match="wrap around"):
        hot_server._with_noise(params, 1.0, 3, 4)
    monkeypatch.setattr(hot_server, "deviation_for", lambda *_: float(np.nextafter(most, 0) - 1e-6))
    assert hot_server._with_noise(params, 1.0, 3, 4).deviation < most


def test_a_sum_that_could_wrap_around(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many clients, whose noise alone would still fit the ring."""
    monkeypatch.setattr("sfsl.rounds.hot_server._LEVELS", 10**9)  # up to what the ring allows
    plan(clients=500, rho=1.0)
    with pytest.raises(ParameterError, match="wrap around"):
        plan(clients=500, rho=2e-5)


def test_no_room_for_rows() -> None:
    wide = ModelSpec(tables=MODEL.tables, dense=10**6)
    with pytest.raises(ParameterError, match="no room for rows"):
        rules().hot.words(wide, 8, "float16")  # type: ignore[union-attr]


def test_surveys_that_found_nothing_to_publish() -> None:
    with pytest.raises(ParameterError, match="no hot rows"):
        plan_hot(rules(), MODEL, new_store(), clients=6, state=HotState(surveys=1))
    with pytest.raises(StoreCorrupt):
        plan_hot(rules(), MODEL, new_store(), clients=6, state=HotState(surveys=1, hot=b"\x01"))


def test_nothing_hot_is_a_round_of_the_dense_part() -> None:
    cohort = HotCohort(5, "survey", real={f"c{i:03d}": [] for i in range(5)})
    state = cohort.finish().hot
    one = plan_hot(rules(), MODEL, new_store(), clients=5, state=state)
    assert one.params.length == DENSE + 17
    HotCohort(5, planned=one).finish()


def test_rules_of_other_rounds() -> None:
    with pytest.raises(ParameterError, match="not for rounds over hot rows"):
        plan_hot(with_(rules(), hot=None), MODEL, new_store(), clients=6, state=HotState())


# -- what becomes of a sum ---------------------------------------------------------------------


def test_two_surveys_add_up() -> None:
    store, own, state = new_store(), rules(surveys=2, marks=8, survey_rho=1.0), HotState()
    for number in (1, 2):
        cohort = HotCohort(
            6, seed=f"{number}", planned=plan_hot(own, MODEL, store, clients=6, state=state), real=None
        )
        state = cohort.finish().hot
        assert state.surveys == number
        assert bool(state.hot) == (number == 2)
        if number == 1:  # noise in marks: levels and six clients
            params = cohort.params
            assert state.surveyed == 6
            assert state.variance == pytest.approx(6 * (params.deviation / params.levels) ** 2)
    assert state.hot_set().surveyed == 12
    assert (state.counts, state.surveyed, state.variance) == (b"", 0, 0)  # only what is published is kept


def test_a_catalogue_that_grows_between_surveys_is_surveyed_anew() -> None:
    state = HotCohort(6, "survey", surveys=2).finish().hot
    assert state.surveys == 1
    grown = ModelSpec(tables=(replace(MODEL.tables[0], rows=GOODS + 10), *MODEL.tables[1:]), dense=DENSE)
    one = plan_hot(rules(surveys=2), grown, new_store(), clients=6, state=state)
    assert one.params.length == GOODS + 10
    assert (one.state.surveys, one.state.counts) == (0, b"")


def concluded(cut: float, clients: int = 10, clip: float = 1.0, noise: float = 0.0) -> float:
    """The next clip, after this share of clients was cut."""
    one = plan_hot(rules(clip=clip), MODEL, new_store(), clients=clients, state=TRAINING)
    words = np.zeros(one.params.length, np.int64)
    words[-1] = round(cut * clients * CUT_SHARE * one.params.levels + noise)
    survivors = tuple(f"c{i}" for i in range(clients))
    state = one.conclude(new_store(), MAPS, HotSums(words, survivors)).hot
    assert state is not None
    return state.clip


def test_the_clip_follows_the_clients() -> None:
    assert concluded(0.0) < 0.9
    assert concluded(1.0) == pytest.approx(1 / concluded(0.0), rel=0.02)
    assert concluded(0.5) == pytest.approx(1.0, rel=0.02)
    # Noise in that word makes it follow no further.
    assert concluded(0.0, noise=-1e7) == concluded(0.0)
    assert concluded(1.0, noise=1e7) == concluded(1.0)
    # It stays where floating point is fine.
    assert concluded(0.0, clip=1e-4) == 1e-4
    assert concluded(1.0, clip=1e4) == 1e4


def test_the_next_round_has_the_clip_that_the_last_one_left() -> None:
    state = replace(TRAINING, clip=0.25)
    assert plan_hot(rules(clip=3.0), MODEL, new_store(), clients=6, state=state).params.clip == 0.25
    assert plan_hot(rules(clip=3.0), MODEL, new_store(), clients=6, state=TRAINING).params.clip == 3.0


def test_rows_move_by_the_mean_of_their_owners_and_the_dense_part_by_that_of_all() -> None:
    """Of 10 clients 5 have the first hot row, by the survey: its sum is divided by 5."""
    one = plan_hot(rules(), MODEL, new_store(), clients=10, state=TRAINING)
    words = np.zeros(one.params.length, np.int64)
    words[0] = words[DENSE] = round(one.params.levels)  # a clip's worth together
    store = new_store()
    outcome = one.conclude(store, MAPS, HotSums(words, tuple(f"c{i}" for i in range(10))))
    assert outcome.contributors["goods"][0] == 5
    before = store.read_rows("goods", outcome.union["goods"]).values[0, 0]
    after = outcome.applied.commit.tables["goods"].values[0, 0]
    dense = outcome.applied.commit.dense
    assert dense is not None
    # The server step of these rules adds the mean.
    assert after - before == pytest.approx(1 / 5, rel=1e-5)
    assert dense.values[0] - store.read_dense().values[0] == pytest.approx(1 / 10, rel=1e-5)


def test_histograms_are_counts_again() -> None:
    one = plan_hot(rules(), MODEL, new_store(), clients=10, state=TRAINING)
    words = np.zeros(one.params.length, np.int64)
    start = DENSE + 68
    words[start : start + 16] = np.round(np.arange(16) * SAMPLE_SHARE * one.params.levels)
    words[start] = -100  # noise may be negative, and counts are not
    outcome = one.conclude(new_store(), MAPS, HotSums(words, tuple(f"c{at}" for at in range(10))))
    assert outcome.scores is not None
    np.testing.assert_array_equal(np.concatenate(outcome.scores), np.arange(16))


# -- from round to round -----------------------------------------------------------------------


def test_a_server_that_starts_again_goes_on_where_it_was() -> None:
    """Survey, crash, training: hot rows, clip and score bins come back from the store alone."""
    store: MemoryStore = new_store()

    def driver() -> Driver:
        return Driver(rules(), MODEL, MAPS, store, cpu=lambda: 0.0)

    survey = driver().plan(6, 0, hot=Journal(store).kept.hot)
    outcome = HotCohort(6, planned=survey).finish()  # type: ignore[arg-type]
    record = RoundTally(6).record(1, outcome, aborted=None, seconds=0.0)
    Journal(store).commit(outcome.applied.commit, record, None, hot=outcome.hot)
    kept = Journal(store).kept  # another process
    assert kept.hot == outcome.hot
    assert Kept.decode(store.selection) == kept
    again = driver().plan(6, 0, hot=kept.hot)
    assert again.params.kind == "train"  # type: ignore[union-attr]
    assert again.params.hot == outcome.hot.hot_set().digest()  # type: ignore[union-attr]
    assert again.number == 2


def test_what_was_kept_before_there_were_hot_rows_still_reads() -> None:
    assert Kept.decode(b"\x80").hot == HotState()


def test_tables_of_any_order() -> None:
    """Shared tables after one another, derived before their source: parts stand in declared order."""
    model = ModelSpec(
        tables=(
            Table(name="tag", rows=3, width=1, kind="derived", source="b"),
            Table(name="a", rows=4, width=2),
            Table(name="b", rows=6, width=1),
        ),
        dense=0,
    )
    maps = RowMaps(model, {"tag": np.array([0, 0, 1, 1, 2, 2])})
    counts = np.array([0, 9, 0, 0, 5, 0, 0, 0, 0, 7.0])  # a: row 1; b: rows 0 and 5
    found = choose_hot(model, maps, counts, 10, 0.0, 100).sets(model)
    assert {name: rows.rows.tolist() for name, rows in found.items()} == {
        "tag": [0, 2],
        "a": [1],
        "b": [0, 5],
    }


def test_a_second_survey_counts_afresh_and_makes_a_new_version() -> None:
    once = plan("survey", 6, survey_rho=math.inf)
    marks = np.zeros(once.params.length, np.int64)
    marks[3] = 6
    first = once.conclude(new_store(), MAPS, HotSums(marks, tuple("abcdef"))).hot
    assert first is not None
    assert (first.surveys, first.surveyed, first.counts) == (1, 0, b"")
    again = plan_hot(rules(surveys=2, survey_rho=math.inf), MODEL, new_store(), clients=6, state=first)
    assert again.params.kind == "survey"
    moved = np.roll(marks, 1)
    second = again.conclude(new_store(), MAPS, HotSums(moved, tuple("abcdef"))).hot
    assert second is not None
    hot, old = second.hot_set(), first.hot_set()
    assert hot is not None
    assert old is not None
    assert (old.version, hot.version, hot.surveyed) == (1, 2, 6)
    shared = next(table.name for table in MODEL.tables if table.kind == "shared")
    assert [one.sets(MODEL)[shared].rows.tolist() for one in (old, hot)] == [[3], [4]]


def test_tables_with_room_for_billions_cannot_be_surveyed() -> None:
    large = ModelSpec(tables=(Table(name="word", rows=2**31, width=2),), dense=1)
    with pytest.raises(ParameterError, match="as large as the catalogue is"):
        plan_hot(rules(), large, new_store(), clients=6, state=HotState())
