"""Parameters of rounds over hot rows, the set of hot rows and how it is chosen, and the model blob."""

import math
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from cohort import CATEGORIES, CATEGORY_OF, GOODS, MAPS, MODEL
from hot_cohort import HOT, HOT_GOODS, HotCohort, plan
from sfsl.errors import DecodeError, InvalidMessage, ParameterError, RemoteError, StoreCorrupt
from sfsl.rounds.exchanges import CODEC
from sfsl.rounds.hot import (
    HotParams,
    HotSet,
    HotState,
    Published,
    blob_bytes,
    blob_digest,
    choose_hot,
    decode_hot_set,
)
from sfsl.rounds.hot_client import open_published
from sfsl.rounds.params import IndexSpace
from sfsl.submodel import ModelSpec, RowMaps, RowSet, Table
from world import frozen

SURVEY, TRAIN = plan("survey").params, plan().params

# -- parameters --------------------------------------------------------------------------------


def test_lengths_and_sensitivities() -> None:
    assert SURVEY.length == GOODS
    assert SURVEY.sensitivity == SURVEY.levels * math.sqrt(5)
    assert TRAIN.length == 4 + 20 * 3 + 4 * 2 + 2 * 8 + 1
    assert TRAIN.sensitivity == TRAIN.levels + math.sqrt(TRAIN.length)
    (one,) = TRAIN.sums()
    assert (one.label, one.ring, one.layout.dense if one.layout else 0) == ("hot-train", "z32", TRAIN.length)
    assert SURVEY.sums()[0].label == "hot-survey"


WRONG: dict[str, tuple[HotParams, dict[str, Any]]] = {
    "no hot rows named": (TRAIN, {"hot": b""}),
    "no model named": (TRAIN, {"blob": b""}),
    "half a digest": (TRAIN, {"hot": bytes(16)}),
    "too long a digest": (TRAIN, {"hot": bytes(33)}),
    "a survey with hot rows": (SURVEY, {"hot": bytes(32)}),
    "a survey with a model": (SURVEY, {"blob": bytes(32)}),
    "a survey with rows": (SURVEY, {"rows": {"goods": 1, "category": 1}}),
    "rows of a personal table": (TRAIN, {"rows": {"goods": 1, "category": 1, "user": 1}}),
    "rows of a table short": (TRAIN, {"rows": {"goods": 1}}),
    "a negative number of rows": (TRAIN, {"rows": {"goods": -1, "category": 1}}),
    "a vector that no layout has": (TRAIN, {"rows": {"goods": 2**40, "category": 0}}),
    "negative noise": (TRAIN, {"deviation": -1.0}),
    "noise that is no number": (TRAIN, {"deviation": math.nan}),
    "too much noise": (TRAIN, {"deviation": 2.0**31}),
    "no levels": (TRAIN, {"levels": 0}),
    "too many levels": (TRAIN, {"levels": 2**30 + 1}),
    "a clip of zero": (TRAIN, {"clip": 0.0}),
    "an infinite clip": (TRAIN, {"clip": math.inf}),
    "no marks": (SURVEY, {"marks": 0}),
    "another kind": (SURVEY, {"kind": "census"}),
    "a short seed": (TRAIN, {"seed": bytes(31)}),
    "round 0": (TRAIN, {"number": 0}),
}


def test_the_longest_vector_there_is() -> None:
    longest = replace(TRAIN, rows={"goods": 1, "category": 2**39 - 12})
    assert longest.length == 2**40
    with pytest.raises(ParameterError, match="2\\^40 are possible"):
        replace(TRAIN, rows={"goods": 2, "category": 2**39 - 12})


@pytest.mark.parametrize("name", WRONG)
def test_parameters_that_cannot_be(name: str) -> None:
    good, change = WRONG[name]
    with pytest.raises(ParameterError):
        replace(good, **change)


@pytest.mark.parametrize("name", ["a survey with rows", "a vector that no layout has", "too many levels"])
def test_they_are_refused_as_bytes_too(name: str) -> None:
    good, change = WRONG[name]
    invitation = CODEC.encode(HotCohort(3, kind=good.kind).outbound["c000"])
    fields = msgspec.msgpack.decode(invitation[1:])
    assert invitation[:1] + msgspec.msgpack.encode(fields) == invitation
    fields["round"] |= change
    with pytest.raises(DecodeError):
        CODEC.decode(invitation[:1] + msgspec.msgpack.encode(fields), limit=10**6)


def test_everything_a_client_is_told_is_in_the_context() -> None:
    changes: dict[str, Any] = {
        "number": 2,
        "model": replace(MODEL, dense=5),
        "deviation": 9.0,
        "levels": 7,
        "clip": 0.5,
        "marks": 6,
        "rows": {"goods": 19, "category": 4},
        "hot": b"x" * 32,
        "blob": b"x" * 32,
        "seed": b"x" * 32,
        "training": {"rate": 0.5},
        "precision": "float16",
        "scores": None,
    }
    assert changes.keys() | {"kind"} == set(HotParams.__struct_fields__)
    contexts = {replace(TRAIN, **{name: value}).context() for name, value in changes.items()}
    contexts |= {TRAIN.context(), TRAIN.context(b"names"), SURVEY.context()}
    assert len(contexts) == len(changes) + 3


def test_cost() -> None:
    noisy = replace(TRAIN, deviation=100.0)
    assert TRAIN.rho(5) == math.inf
    assert noisy.rho(0) == math.inf
    assert noisy.rho(5) == pytest.approx(noisy.sensitivity**2 / (2 * 5 * 100**2), rel=1e-9)
    assert noisy.rho(4) > noisy.rho(5)


# -- the set of hot rows -----------------------------------------------------------------------


def test_a_published_set_goes_there_and_back() -> None:
    found = decode_hot_set(HOT.encode(), due=HOT.digest())
    assert found == HOT
    sets = found.sets(MODEL)
    assert sets.keys() == {"goods", "category"}
    np.testing.assert_array_equal(sets["goods"].rows, HOT_GOODS)
    np.testing.assert_allclose(found.shares("goods")[[0, -1]], [0.5, 0.05])


def test_another_set_than_was_announced() -> None:
    other = replace(HOT, version=2)
    assert other.digest() != HOT.digest()
    with pytest.raises(InvalidMessage, match="announced"):
        decode_hot_set(other.encode(), due=HOT.digest())
    with pytest.raises(RemoteError):
        decode_hot_set(HOT.encode()[:-1])
    with pytest.raises(StoreCorrupt):
        HotState(hot=b"\x01\x02").hot_set()


def of(rows: Any, owners: Any = None) -> HotSet:
    owners = np.ones(len(rows)) if owners is None else owners
    return HotSet.of(1, 10, {"goods": np.array(rows)}, {"goods": np.array(owners)})


@pytest.mark.parametrize(
    "found",
    [
        of([3, 2]),
        of([2, 2]),
        of([-1]),
        of([GOODS]),
        of([1, 2], [1.0]),
        replace(of([1, 2]), rows={"goods": bytes(15)}),
    ],
    ids=["descending", "twice", "negative", "beyond the table", "owners of another number", "half a row"],
)
def test_sets_that_cannot_be(found: HotSet) -> None:
    with pytest.raises(InvalidMessage):
        found.sets(MODEL)


# -- choosing ----------------------------------------------------------------------------------


def test_who_was_surveyed_is_told_and_nobody_is_one() -> None:
    for surveyed, told in ((0, 1), (1, 1), (2, 2)):
        assert choose_hot(MODEL, MAPS, np.zeros(GOODS), surveyed, 0.0, 100).surveyed == told


def choose(counts: Any, words: int = 10**6, deviation: float = 0.0, surveyed: int = 100) -> dict[str, RowSet]:
    return choose_hot(MODEL, MAPS, np.asarray(counts, float), surveyed, deviation, words).sets(MODEL)


def test_rows_that_may_be_noise_alone_are_not_hot() -> None:
    counts = np.zeros(GOODS)
    counts[[3, 7, 11]] = [29.0, 30.0, 31.0]
    np.testing.assert_array_equal(choose(counts, deviation=10.0)["goods"].rows, [7, 11])
    np.testing.assert_array_equal(choose(counts)["goods"].rows, [3, 7, 11])  # one owner at the least
    assert not len(choose(np.full(GOODS, 0.9))["goods"])


def test_under_noise_categories_are_hot_unasked_and_their_owners_drawn_to_the_usual() -> None:
    """Ten items lead to each. The noisier the counts, the less one category is taken to differ."""
    counts = np.zeros(GOODS)
    counts[CATEGORY_OF == 2] = 10.0
    assert choose(counts)["category"].rows.tolist() == [2]
    owners = []
    for deviation in (0.1, 10.0, 1000.0):
        found = choose_hot(MODEL, MAPS, counts, 100, deviation, 10**6)
        assert found.sets(MODEL)["category"].rows.tolist() == list(range(CATEGORIES))
        owners.append(100 * found.shares("category"))
    np.testing.assert_allclose(owners[0][[1, 2]], [1, 100], atol=1)
    np.testing.assert_allclose(owners[2], 100 / CATEGORIES, rtol=1e-5)
    assert owners[0][2] > owners[1][2] > owners[2][2]


@pytest.mark.parametrize("words", [0, 5, 12, 30, 100, 191, 192, 1000])
def test_hot_rows_keep_to_their_room(words: int) -> None:
    counts = np.arange(GOODS, 0, -1.0)
    sets = choose(counts, words)
    used = 3 * len(sets["goods"]) + 2 * len(sets["category"])
    assert used <= words
    assert words - used < 3 or len(sets["goods"]) == GOODS
    assert 2 * len(sets["category"]) <= words // 2
    assert len(sets["category"]) == min(CATEGORIES, words // 2 // 2)
    np.testing.assert_array_equal(sets["goods"].rows, np.arange(len(sets["goods"])))  # the hottest


def test_many_derived_tables_leave_no_less_than_nothing() -> None:
    tables = [Table(name="goods", rows=90, width=1)]
    tables += [Table(name=f"d{k}", rows=90, width=1, kind="derived", source="goods") for k in range(3)]
    model = ModelSpec(tables=tuple(tables), dense=0)
    maps = RowMaps(model, {f"d{k}": np.arange(90) for k in range(3)})
    sets = choose_hot(model, maps, np.full(90, 50.0), 100, 0.0, 60).sets(model)
    assert sum(map(len, sets.values())) == 60


def test_without_noise_one_owner_makes_a_row_hot_and_its_derived_row_too() -> None:
    counts = np.zeros(GOODS)
    counts[5] = 1.0
    sets = choose_hot(MODEL, MAPS, counts, 100, 0.0, 10**6).sets(MODEL)
    assert sets["goods"].rows.tolist() == [5]
    assert sets["category"].rows.tolist() == MAPS.rows_of("category", np.array([5])).tolist()
    counts[5] = 0.99
    assert not any(map(len, choose_hot(MODEL, MAPS, counts, 100, 0.0, 10**6).sets(MODEL).values()))


def test_nobody_has_more_owners_than_there_are_clients() -> None:
    counts = np.full(GOODS, 90.0)
    found = choose_hot(MODEL, MAPS, counts, 100, 0.0, 10**6)
    assert found.shares("category").max() == 1.0
    assert found.shares("goods").max() == pytest.approx(0.9)


def test_a_set_outlives_the_growth_of_the_catalogue() -> None:
    grown = replace(MODEL, tables=(replace(MODEL.tables[0], rows=GOODS + 40), *MODEL.tables[1:]))
    np.testing.assert_array_equal(HOT.sets(grown)["goods"].rows, HOT_GOODS)
    assert IndexSpace(grown).domain == GOODS + 40


# -- the blob ----------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_everyone_downloads_the_model_over_hot_rows(precision: str) -> None:
    one = plan(precision=precision)
    assert one.published is not None
    download = open_published(one.params, one.published)
    assert len(one.published.blob) == blob_bytes(one.params) == 16 + (4 if precision == "float32" else 2) * 68
    np.testing.assert_array_equal(download.dense, np.arange(4))
    np.testing.assert_array_equal(download.asked["goods"].rows, HOT_GOODS)
    assert download.cold is not None
    first = download.cold("goods", HOT_GOODS)  # nothing was trained yet
    np.testing.assert_allclose(download.rows["goods"], first, atol=0 if precision == "float32" else 1e-4)


def test_cold_rows_begin_as_the_server_has_them() -> None:
    cohort = HotCohort(3)
    assert cohort.plan.published is not None
    download = open_published(cohort.params, cohort.plan.published)
    assert download.cold is not None
    cold = np.array([1, 2, 58])
    values = cohort.store.read_rows("goods", RowSet(cold)).values
    np.testing.assert_array_equal(download.cold("goods", cold), values)


def test_what_was_downloaded_is_what_was_announced() -> None:
    """A client that is given something else is what it was, and takes the right thing afterwards."""
    cohort = HotCohort(4).until("inbound")
    published = cohort.plan.published
    assert published is not None
    client, inbound = cohort.clients["c000"], cohort.outbound["c000"]
    before, picture = client.state, frozen(client)
    blob = published.blob
    for wrong in (
        Published(published.hot, blob[:-1]),
        Published(published.hot, blob + b"\0"),
        Published(published.hot, bytes([blob[0] ^ 1]) + blob[1:]),
        Published(published.hot, b""),
        Published(replace(published.hot, version=2), blob),
        Published(replace(published.hot, surveyed=99), blob),
    ):
        with pytest.raises(InvalidMessage):
            client.handle_model(inbound, wrong)
        assert client.state is before
        assert frozen(client) == picture
    client.handle_model(inbound, published)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_model_with_numbers_that_are_none(bad: float) -> None:
    """The digest fits: the server itself has such a model."""
    one = plan()
    assert one.published is not None
    blob = np.float32(bad).tobytes() + one.published.blob[4:]
    params = replace(one.params, blob=blob_digest(blob))
    with pytest.raises(InvalidMessage, match="NaN"):
        open_published(params, Published(one.published.hot, blob))


def test_fewer_rows_than_the_parameters_say() -> None:
    """The digests fit, and the number of rows does not: one server, two stories."""
    one = plan()
    assert one.published is not None
    params = replace(one.params, rows={"goods": 18, "category": 7})  # as many words in all
    with pytest.raises(InvalidMessage, match="hot rows of table"):
        open_published(params, one.published)
