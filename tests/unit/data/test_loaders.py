"""Loaders, on small files made here."""

import gzip
import json
import sys
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from sfsl.data import load_amazon, load_csv, load_parquet, load_shakespeare, load_table, load_taobao
from sfsl.errors import InputError

AMAZON = "1\t4\t100\t0\n0\t4\t7\t100\n1\t2\t9\t0\n1\t4\t8\t100\n0\t4\t5\t100,8\n"
TAOBAO = "user,item,category,behavior,ts\n1,30,5,pv,20\n1,10,5,buy,10\n2,30,5,cart,1\n2,11,6,share,2\n"


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def histories(data: object, user: int) -> list[list[int]]:
    rows = data.client(user).columns["history"]  # type: ignore[attr-defined]
    return [[int(data.items[one]) for one in history if one >= 0] for history in rows]  # type: ignore[attr-defined]


def test_amazon(tmp_path: Path) -> None:
    data, report = load_amazon(written(tmp_path / "a.tsv", AMAZON))
    assert (report.lines, report.samples, report.problems) == (5, 5, {})
    assert data.users.tolist() == [2, 4]
    assert data.items[data.item].tolist() == [9, 100, 7, 8, 5]
    assert data.label.tolist() == [1, 1, 0, 1, 0]
    assert histories(data, 1) == [[], [100], [100], [100, 8]]
    assert len(data.clicks) == 2  # stored once, not once per sample


def test_amazon_with_histories_that_move_on_or_jump(tmp_path: Path) -> None:
    lines = ["1,2,3", "2,3,4", "0", "3,4,5", "4,8", "9,9", "1,2,3"]
    text = "".join(f"1\t1\t50\t{history}\n" for history in lines)
    data, _ = load_amazon(written(tmp_path / "a.tsv", text))
    assert histories(data, 0) == [[1, 2, 3], [2, 3, 4], [], [3, 4, 5], [4, 8], [9, 9], [1, 2, 3]]


def test_compressed_files_are_recognised_by_content(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_bytes(gzip.compress(AMAZON.encode()))
    plain, _ = load_amazon(written(tmp_path / "b.tsv.gz", AMAZON))
    packed, report = load_amazon(path)
    assert report.samples == 5
    assert np.array_equal(plain.item, packed.item)


def test_taobao(tmp_path: Path) -> None:
    data, report = load_taobao(written(tmp_path / "t.csv", TAOBAO))
    assert report.samples == 3
    assert report.problems == {}
    assert data.items[data.item].tolist() == [10, 30, 30]
    assert data.label.tolist() == [1, 1, 1]
    assert histories(data, 0) == [[], [10]]
    bought, _ = load_taobao(tmp_path / "t.csv", behaviors=["buy"])
    assert bought.items.tolist() == [10]


def test_csv_with_other_names_and_order(tmp_path: Path) -> None:
    text = 'when,"film",who,liked,note\n2,5,1,0,x\n1,6,1,1.0,y\n'
    names = {"time": "when", "item": "film", "user": "who", "label": "liked"}
    data, report = load_csv(written(tmp_path / "c.csv", text), columns=names)
    assert report.problems == {}
    assert data.items[data.item].tolist() == [6, 5]
    assert data.label.tolist() == [1, 0]
    assert histories(data, 0) == [[], [6]]
    assert data.category_of is None


def test_a_separator_in_quotes_is_none(tmp_path: Path) -> None:
    text = (
        'user,title,item,time\n"1","Red, 9",7,100\n1, "Blue, ""8""", 8,101\n1,Green,9,102,\n1,Grey, 9,7,100\n'
    )
    data, report = load_csv(written(tmp_path / "c.csv", text), unusable=1)
    assert data.items[data.item].tolist() == [7, 8, 9]
    assert data.time.tolist() == [100, 101, 102]
    assert report.problems == {"too many fields": 1}


def test_csv_without_labels_is_all_clicks(tmp_path: Path) -> None:
    path = written(tmp_path / "c.csv", "user,item,time\n1,2,3\n1,3,4\n")
    data, _ = load_csv(path)
    assert data.label.tolist() == [1, 1]
    with pytest.raises(InputError, match="has no column named 'liked'"):
        load_csv(path, columns={"label": "liked"})  # meant to be there


def test_csv_with_text_ids(tmp_path: Path) -> None:
    text = "user,item,label,time,category\nann,B07,1,1,tools\nbob,B08,0,2,toys\n"
    for given in (True, False):  # they are recognised too
        data, report = load_csv(written(tmp_path / "c.csv", text), text_ids=given)
        assert report.problems == {}
        assert data.users.tolist() == ["ann", "bob"]
        assert data.items[data.item].tolist() == ["B07", "B08"]


def test_an_item_in_two_categories_stays_in_the_first(tmp_path: Path) -> None:
    text = "user,item,label,time,category\n1,5,1,1,8\n2,5,1,2,9\n"
    data, report = load_csv(written(tmp_path / "c.csv", text))
    assert data.categories is not None
    assert data.category_of is not None
    assert data.categories[data.category_of].tolist() == [8]
    assert list(report.problems.values()) == [1]


def test_parquet_reads_what_csv_reads(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {"user": [1, 1, None], "item": [5, 6, 7], "label": [1.0, 0.0, 1.0], "time": [2.0, 1.0, 3.0]}
    parquet.write_table(pa.table(columns), tmp_path / "p.parquet")
    data, report = load_table(tmp_path / "p.parquet", unusable=1)
    assert report.samples == 2
    assert data.items[data.item].tolist() == [6, 5]
    with pytest.raises(InputError, match="no column named 'film'"):
        load_parquet(tmp_path / "p.parquet", columns={"item": "film"})
    when = [datetime(2026, 1, day, tzinfo=UTC) for day in (3, 2)]
    other = {"user": [1, 1], "item": [5, 6], "liked": [True, False], "time": when}
    parquet.write_table(pa.table(other), tmp_path / "q.parquet")
    data, _ = load_parquet(tmp_path / "q.parquet", columns={"label": "liked"})
    assert data.label.tolist() == [0, 1]
    with pytest.raises(InputError, match="cannot be read as Parquet"):
        load_parquet(written(tmp_path / "q.parquet", "PAR1 is all of it"))


def test_parquet_without_pyarrow_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(InputError, match="needs pyarrow"):
        load_parquet(written(tmp_path / "p.parquet", "PAR1"))


def test_shakespeare(tmp_path: Path) -> None:
    roles = [{"play": "p", "role": "r", "lines": ["To be"]}, {"play": "p", "role": "s", "lines": []}]
    text = "".join(json.dumps(role) + "\n" for role in roles)
    loaded, report = load_shakespeare(written(tmp_path / "s.jsonl", text))
    assert [role.role for role in loaded] == ["r"]
    assert loaded[0].lines == ("To be",)
    assert report.problems == {"role without a line": 1}
