"""Catalogues: what they say of data, how they grow, and what is refused of bytes that claim to be one."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfsl.data import SyntheticSettings, SyntheticTaobao, speech_of
from sfsl.data.catalogue import Catalogue, CatalogueTable, catalogue_digest
from sfsl.data.catalogue_file import decode_catalogue, read_catalogue, write_catalogue
from sfsl.data.lines import BadField
from sfsl.data.own import load_own, load_own_words
from sfsl.data.plain import is_item_list, load_item_list
from sfsl.data.statistics import items_of
from sfsl.data.words import Role
from sfsl.errors import InputError


def shop(names: list[Any], categories: list[Any], follows: list[int]) -> Catalogue:
    return Catalogue.of_items(np.array(names), np.array(categories), np.array(follows))


SMALL = shop(["a", "b", "c"], ["x", "y"], [0, 1, 0])


def as_json(catalogue: Catalogue, **changes: Any) -> bytes:
    return json.dumps(json.loads(catalogue.whole) | changes).encode()


# -- from data ---------------------------------------------------------------------------------


def test_of_interactions_with_statistics() -> None:
    data = SyntheticTaobao(SyntheticSettings().scaled(0.02, users=40), seed=3).interactions()
    found = Catalogue.of(data, statistics=True)
    assert (found.users, found.rows("item"), found.rows("category")) == (40, len(data.items), 96)
    assert data.category_of is not None
    assert np.array_equal(np.asarray(found.table("category").map), data.category_of)
    assert found.table("item").ids is None  # they are numbered from 0, which says it all
    assert found.statistics is not None
    held = [items_of(data, user) for user in data.clients]
    assert found.statistics.clients == len(held)
    assert found.statistics.rows["most"] == max(map(len, held))
    owners = np.unique(np.concatenate(held), return_counts=True)[1]
    assert dict(found.statistics.owners["item"]) == {
        int(count): int((owners == count).sum()) for count in np.unique(owners)
    }
    assert Catalogue.of(data).statistics is None
    assert Catalogue.of(data).digest == found.digest  # what clients are given has none of it
    assert b"statistics" not in found.public


def test_of_words_with_statistics() -> None:
    speech = speech_of([Role("p", "r", ("a b a c",)), Role("p", "s", ("b b",))])
    found = Catalogue.of_words(speech.vocabulary, speech)
    assert found.table("word").ids == ("a", "b", "c")
    assert found.statistics is not None
    assert (found.statistics.clients, found.statistics.rows["most"]) == (2, 3)
    assert found.statistics.owners == {"word": [(1, 2), (2, 1)]}


def test_a_list_of_items(tmp_path: Path) -> None:
    file = tmp_path / "items.csv"
    file.write_text('category,item\n7,30\n2,10\n"7",20\n.5,40\n2,30\n')
    assert is_item_list(file)
    found, report = load_item_list(file, unusable=1)
    assert found.table("item").names() == [10, 20, 30]
    assert found.table("category").names() == [2, 7]
    assert np.asarray(found.table("category").map).tolist() == [0, 1, 1]
    assert report.problems == {
        "category is not a whole number": 1,
        "item in several categories, the first one taken": 1,
    }
    file.write_text("item\nred shoe\nhat\n")
    assert load_item_list(file)[0].table("item").ids == ("hat", "red shoe")
    file.write_text("film\n5\n6\n")
    assert load_item_list(file, columns={"item": "film"})[0].table("item").names() == [5, 6]
    assert load_item_list(file, columns={"item": "film"}, text_ids=True)[0].table("item").ids == ("5", "6")
    file.write_text("user,item,time\n1,2,3\n")
    assert not is_item_list(file)


# -- ids ---------------------------------------------------------------------------------------


def test_rows_are_found_by_what_data_call_them() -> None:
    texts, numbers = SMALL.table("item"), Catalogue.of_items(np.array([5, 9, 70])).table("item")
    assert [texts.find(" b "), numbers.find("070"), Catalogue.sized(item=3).table("item").find("2")] == [
        1,
        2,
        2,
    ]
    for table, text in [(texts, "d"), (texts, ""), (numbers, "6"), (numbers, "x"), (numbers, "-5")]:
        with pytest.raises(BadField):
            table.find(text)
    with pytest.raises(BadField, match="not in the model"):
        Catalogue.sized(item=3).table("item").find("3")


def test_own_samples_in_the_ids_of_a_catalogue(tmp_path: Path) -> None:
    file = tmp_path / "mine.csv"
    file.write_text("item,label,time,category\nc,1,1,x\na,0,2,x\nb,1,3,x\nnew,1,4,x\n")
    data, report = load_own(file, SMALL)
    assert data.item.tolist() == [2, 0, 1]
    assert report.problems == {"category is not the model's, which counts": 1, "item is not in the model": 1}
    data, report = load_own(file, SMALL, known=2)
    assert data.item.tolist() == [0, 1]
    assert report.problems["item is newer than this period, and waits for the next"] == 1


def test_own_words(tmp_path: Path) -> None:
    file, words = tmp_path / "mine.txt", Catalogue.of_words(["cat", "mat", "the"])
    file.write_text('The cat, the dog.\n{"lines": ["the MAT", "mat"], "more": 1}\n{"lines": 3}\n')
    speech, report = load_own_words(file, words)
    assert speech.spoken.tolist() == [2, 0, 2, 2, 1, 1]
    assert report.problems == {"word is not in the model": 1, 'JSON without a list of texts "lines"': 1}
    assert load_own_words(file, words, known=2)[0].spoken.tolist() == [0, 1, 1]
    file.write_text("nothing known\n")  # which is for the server to choose, and no reason to stay away
    speech, report = load_own_words(file, words)
    assert (len(speech.spoken), report.samples, len(speech.windows(0.2)[0])) == (0, 0, 0)
    file.write_text("1 2 3\n")
    with pytest.raises(InputError, match="nothing in it can be used"):
        load_own_words(file, words)


def test_own_samples_of_which_none_is_in_a_catalogue(tmp_path: Path) -> None:
    file = tmp_path / "mine.csv"
    file.write_text("item,label,time,category\nnew,1,1,x\nnewer,0,2,x\n")
    data, report = load_own(file, SMALL)
    assert (len(data), len(data.client(0)), report.samples) == (0, 0, 0)
    assert report.problems == {"item is not in the model": 2}
    assert str(report).endswith(
        "0 samples from 3 lines; 2 x item is not in the model (line 2: item is not in the model: 'new')"
    )


# -- growth ------------------------------------------------------------------------------------


def test_growth_appends_and_keeps(tmp_path: Path) -> None:
    grown = SMALL.grown(shop(["0", "a", "d"], ["z", "x", "y"], [0, 1, 2]))
    assert (grown.version, grown.parent) == (2, SMALL.digest)
    assert grown.table("item").ids == ("a", "b", "c", "0", "d")
    assert grown.table("category").ids == ("x", "y", "z")
    assert np.asarray(grown.table("category").map).tolist() == [0, 1, 0, 2, 1]
    grown.require_extends(SMALL)
    again = grown.grown(shop(["e"], ["x"], [0]))
    again.require_extends(SMALL)
    again.require_extends(grown)
    assert (again.version, again.parent) == (3, grown.digest)
    write_catalogue(again, tmp_path / "c.json")
    assert read_catalogue(tmp_path / "c.json").digest == again.digest
    with pytest.raises(InputError, match="gone"):
        SMALL.require_extends(grown)


def test_numbered_rows_grow_with_and_without_gaps() -> None:
    plain = Catalogue.sized(1, item=3)
    assert plain.grown(Catalogue.sized(1, item=5)).table("item").ids is None
    gap = plain.grown(Catalogue.of_items(np.array([2, 9])))
    assert gap.table("item").names() == [0, 1, 2, 9]
    gap.require_extends(plain)


def test_statistics_follow_the_data_that_have_some() -> None:
    speech = speech_of([Role("p", "r", ("a b",))])
    first = Catalogue.of_words(["a"], None)
    with_some = first.grown(Catalogue.of_words(speech.vocabulary, speech))
    assert with_some.statistics is not None
    assert with_some.grown(Catalogue.of_words(["q"])).statistics == with_some.statistics


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (shop(["b"], ["x"], [0]), "item 'b' has category 'y' in the catalogue and 'x' in the data"),
        (shop(["a", "b"], ["x", "y"], [0, 1]), "nothing in the data is new"),
        (Catalogue.of_items(np.array(["z"])), "growth adds rows, not tables"),
        (Catalogue.of_words(["z"]), "growth adds rows, not tables"),
        (shop([7], [1], [0]), "ids of table 'item' are text in the catalogue and whole numbers in the data"),
    ],
)
def test_growth_that_would_change_what_was_said(data: Catalogue, why: str) -> None:
    with pytest.raises(InputError, match=why):
        SMALL.grown(data)


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(st.integers(0, 40), st.integers(0, 5), min_size=1),
    st.dictionaries(st.integers(0, 40), st.integers(0, 5), min_size=1),
)
def test_whatever_grows_says_of_old_rows_what_it_said(first: dict[int, int], more: dict[int, int]) -> None:
    def of(items: dict[int, int]) -> Catalogue:
        names, follows = np.unique(list(items.values()), return_inverse=True)
        return shop(list(items), names.tolist(), follows.tolist())

    old, fresh = of(first), {**{item: one for item, one in more.items() if item not in first}}
    if not fresh:
        return
    grown = old.grown(of(fresh))
    grown.require_extends(old)
    category, items = grown.table("category"), grown.table("item").names()
    told = {name: category.names()[row] for name, row in zip(items, np.asarray(category.map), strict=True)}
    assert told == first | fresh


# -- bytes -------------------------------------------------------------------------------------


def test_files_packed_or_not_hold_the_same(tmp_path: Path) -> None:
    for name in ("c.json", "c.json.gz"):
        write_catalogue(SMALL, tmp_path / name)
        assert read_catalogue(tmp_path / name).digest == SMALL.digest == catalogue_digest(SMALL.public)
    assert (tmp_path / "c.json.gz").read_bytes()[:2] == b"\x1f\x8b"
    (tmp_path / "torn").write_bytes(gzip.compress(SMALL.whole)[:-9])
    with pytest.raises(InputError, match="breaks off"):
        read_catalogue(tmp_path / "torn")
    with pytest.raises(InputError, match="cannot read"):
        read_catalogue(tmp_path / "nowhere")


def tables(**changes: Any) -> dict[str, Any]:
    (item, category) = json.loads(SMALL.whole)["tables"]
    return {"tables": [item | changes, category]}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"format": "sfsl catalogue 2"}, "this version reads"),
        ({"version": 0}, "version 0"),
        ({"version": 2}, "every version of a catalogue but the first"),
        ({"parent": "ab"}, "64 hexadecimal digits"),
        ({"parent": "ab" * 32}, "every version of a catalogue but the first"),
        ({"users": -1}, "-1 users"),
        ({"more": 1}, "unknown field"),
        ({"tables": []}, "0 tables"),
        (tables(rows=4), "4 rows and 3 ids"),
        (tables(rows=0, ids=[]), "0 rows"),
        (tables(name="no name"), "no name of a table"),
        (tables(name="user"), "'user' too many"),
        (tables(name="category"), "too many|source"),
        (tables(ids=["a", "b", "a"]), "two rows have the same"),
        (tables(ids=["a", "b", 3]), "not some of each"),
        (tables(ids=["a", "b", " c"]), "without space"),
        (tables(ids=["a", "b", ""]), "1 to 256 characters"),
        (tables(ids=["a", "b", "c" * 300]), "1 to 256 characters"),
        (tables(ids=[1, 2, -3]), "numbers from 0"),
        (tables(ids=[1, 2, 10**30]), "numbers from 0|no catalogue"),
        (tables(ids=[1, 2, 1.5]), "no catalogue"),
        (tables(map=[0, 1, 0]), "a source and a map"),
        (
            {"tables": [*tables()["tables"], {"name": "z", "rows": 1, "source": "q", "map": [0]}]},
            "its source",
        ),
        (
            {"tables": [*tables()["tables"], {"name": "z", "rows": 1, "source": "item", "map": [0, 0]}]},
            "source",
        ),
        (
            {"tables": [*tables()["tables"], {"name": "z", "rows": 1, "source": "item", "map": [0, 0, 1]}]},
            "beyond|not among",
        ),
        (
            {"tables": [*tables()["tables"], {"name": "z", "rows": 1, "source": "item", "map": [0, 0, -1]}]},
            "not among",
        ),
        ({"statistics": {"clients": 0, "rows": {"most": 1}, "owners": {}}}, "statistics cannot be"),
        ({"statistics": {"clients": 2, "rows": {}, "owners": {}}}, "statistics cannot be"),
        (
            {"statistics": {"clients": 2, "rows": {"most": 1}, "owners": {"item": [[3, 1]]}}},
            "statistics cannot",
        ),
        (
            {"statistics": {"clients": 2, "rows": {"most": 1}, "owners": {"item": [[1, 9]]}}},
            "statistics cannot",
        ),
        (
            {"statistics": {"clients": 2, "rows": {"most": 1}, "owners": {"word": [[1, 1]]}}},
            "statistics cannot",
        ),
    ],
    ids=str,
)
def test_what_cannot_be_a_catalogue(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=why):
        decode_catalogue(as_json(SMALL, **changes), "the file")


@settings(max_examples=300, deadline=None)
@given(place=st.integers(0, 10**6), value=st.integers(0, 255))
def test_one_other_byte(place: int, value: int) -> None:
    data = bytearray(SMALL.whole)
    data[place % len(data)] = value
    try:
        found = decode_catalogue(bytes(data), "the file")
    except InputError:
        return
    assert decode_catalogue(found.whole, "the file").digest == found.digest


def test_too_many_bytes_are_refused_before_they_are_read() -> None:
    with pytest.raises(InputError, match="more than 10 bytes"):
        decode_catalogue(SMALL.whole, "the file", limit=10)


def test_huge_tables_take_no_room() -> None:
    found = Catalogue.sized(1, item=10**15)
    assert len(found.whole) < 200
    assert found.first({"item": 5}).rows("item") == 5
    assert repr(found) == "Catalogue(version 1, CatalogueTable('item', <1000000000000000 rows>))"


def test_a_table_without_a_map_has_no_source() -> None:
    with pytest.raises(InputError, match="a source and a map"):
        CatalogueTable("category", 2, source="item")
