"""Tables read as arrays: every format, every separator, and the same as a reader that goes line by line."""

import csv
import gzip
import json
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sfsl.data import load_table
from sfsl.data import table as tables
from sfsl.data.fields import IdColumn, LabelRule, times, truths, whole_numbers
from sfsl.data.lines import LoadReport
from sfsl.data.table import open_table
from sfsl.errors import InputError

ROWS = [(3, 10, 5, 100), (3, 11, 1, 101), (4, 10, 4, 50), (4, 12, 2, 51)]
NAMES = ("who", "film", "stars", "at")
COLUMNS = {"user": "who", "item": "film", "time": "at"}


def loaded(source: Any, **more: Any) -> list[tuple[Any, ...]]:
    data, report = load_table(source, columns=COLUMNS, label="stars>=4", **more)
    assert report.problems == {}
    return [
        (str(data.users[user]), str(data.items[item]), int(label), float(time))
        for user, item, label, time in zip(data.user, data.item, data.label, data.time, strict=True)
    ]


EXPECTED = [("3", "10", 1, 100.0), ("3", "11", 0, 101.0), ("4", "10", 1, 50.0), ("4", "12", 0, 51.0)]


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_every_separator_and_ending(tmp_path: Path, separator: str, ending: str, mark: str) -> None:
    lines = [separator.join(map(str, row)) for row in (NAMES, *ROWS)]
    path = tmp_path / "table"
    path.write_bytes((mark + ending.join(lines)).encode())
    assert loaded(path) == EXPECTED
    path.write_bytes(gzip.compress((ending.join(lines) + ending).encode()))
    assert loaded(path) == EXPECTED


def test_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "table.jsonl"
    lines = [json.dumps(dict(zip(NAMES, row, strict=True)) | {"more": [1]}) for row in ROWS]
    path.write_text("\n".join(lines))
    assert loaded(path) == EXPECTED
    path.write_text(lines[0] + "\n\nnonsense\n[1]\n" + "\n".join(lines[1:]))
    data, report = load_table(path, columns=COLUMNS, label="stars>=4", unusable=1)
    assert (len(data), report.rows, report.problems) == (4, 6, {"not a JSON object": 2})
    assert "line 3: not a JSON object: 'nonsense'" in report.examples["not a JSON object"]


def test_parquet_of_many_types(tmp_path: Path) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    who, film, stars, at = zip(*ROWS, strict=True)
    moments = [datetime.fromtimestamp(one, UTC) for one in at]
    for columns in (
        {"who": who, "film": film, "stars": stars, "at": at},
        {"who": list(map(str, who)), "film": list(map(float, film)), "stars": stars, "at": moments},
        {"who": pa.array(map(str, who)).dictionary_encode(), "film": film, "stars": stars, "at": at},
    ):
        parquet.write_table(pa.table(columns), tmp_path / "t")
        assert loaded(tmp_path / "t") == EXPECTED
    parquet.write_table(
        pa.table({"who": [[1], [2]], "film": [1, 2], "stars": [1, 2], "at": [1, 2]}), tmp_path / "n"
    )
    with pytest.raises(InputError, match="'who' holds list"):
        loaded(tmp_path / "n")


class Frame:
    """What a frame of pandas or polars is to us: names of columns, and arrays by name."""

    def __init__(self, columns: dict[str, Any]) -> None:
        self._held, self.columns = columns, list(columns)

    def __getitem__(self, name: str) -> Any:
        return self._held[name]


def test_frames() -> None:
    who, film, stars, at = (np.array(one) for one in zip(*ROWS, strict=True))
    assert loaded(Frame({"who": who, "film": film, "stars": stars, "at": at})) == EXPECTED
    moments = (at * 10**9).astype("M8[ns]")
    texts = np.array([str(one) for one in film], object)
    assert loaded({"who": who.astype(float), "film": texts, "stars": stars, "at": moments}) == EXPECTED
    with pytest.raises(InputError, match="list is no table"):
        load_table([1, 2])
    with pytest.raises(InputError, match="one length"):
        load_table({"user": [1], "item": [1, 2], "time": [1]})


def test_real_frames() -> None:
    for module in ("pandas", "polars"):
        made = pytest.importorskip(module).DataFrame(dict(zip(NAMES, zip(*ROWS, strict=True), strict=True)))
        assert loaded(made) == EXPECTED


# -- against a reader that goes line by line -----------------------------------------------------------

FIELD = st.one_of(
    st.integers(0, 10**18).map(str),
    st.sampled_from(["", " 5 ", '"7"', '" 8 "', "x", "-3", "0.5", "9,9", '"a, b"', '"say ""no"""', "é"]),
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(FIELD, min_size=1, max_size=5), max_size=12), st.integers(1, 40))
def test_lines_are_cut_as_csv_cuts_them(tmp_path: Path, rows: list[list[str]], block: int) -> None:
    path, lines = tmp_path / "c.csv", [",".join(row) for row in rows]
    path.write_text("a,b,c\n" + "\n".join(lines) + "\n")
    expected = []
    for line in lines:
        fields = [one.strip(' "\t') for one in next(csv.reader([line], skipinitialspace=True), [])]
        if line.strip(' "') and len(fields) >= 2 and not any(fields[3:]):
            expected.append((fields[0], fields[1]))
    report = LoadReport("c")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tables, "BLOCK", block)  # a line may lie in several blocks
        blocks = list(open_table(path, report).read(["a", "b"]))
    found = [
        (first.decode().replace('""', '"'), second.decode().replace('""', '"'))
        for one in blocks
        for first, second in zip(one.columns["a"].tolist(), one.columns["b"].tolist(), strict=True)
    ]
    assert found == expected
    assert report.rows == len(expected) + sum(report.problems.values())


def test_blocks_of_any_size_give_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "c.csv"
    path.write_bytes(
        b"user,item,time\r\n" + b"".join(b"%d,it%d,%d\r\n" % (n % 7, n % 11, n) for n in range(300))
    )
    whole, _ = load_table(path)
    for size in (1, 2, 3, 5, 17, 64):
        monkeypatch.setattr(tables, "BLOCK", size)
        data, report = load_table(path)
        assert report.lines == 301
        assert np.array_equal(data.items[data.item], whole.items[whole.item])
        assert np.array_equal(data.time, whole.time)


# -- ids -----------------------------------------------------------------------------------------------


def finished(*words: str, text: bool = False) -> tuple[list[Any], dict[str, list[int]]]:
    column = IdColumn("item", text=text)
    for half in (words[: len(words) // 2], words[len(words) // 2 :]):
        column.add(np.array([one.encode() for one in half] or [b""])[: len(half)])
    ids, names, wrong = column.finish()
    read = [None if one < 0 else one if names is None else str(names[one]) for one in ids.tolist()]
    return read, {kind: places.tolist() for kind, (places, _) in wrong.items()}


def test_ids_are_numbers_or_texts_and_nobody_says_so() -> None:
    assert finished("7", "12", "4611686018427387904") == ([7, 12, 2**62], {})
    assert finished("7", "B07", "12") == (["7", "B07", "12"], {})
    assert finished("007", "7") == (["007", "7"], {})  # not the same
    assert finished("7.0", "12.0", "") == ([7, 12, None], {"item is empty": [2]})
    assert finished("7", "12", text=True) == (["7", "12"], {})
    many = [str(one) for one in range(40)]
    assert finished(*many, "x")[1] == {"item is not a whole number": [40]}  # an error among numbers
    assert finished(*many, "x", "y", "z")[0][-1] == "z"
    assert finished("-1", "5", "4611686018427387905")[1] == {"item is negative or too large": [0, 2]}
    assert finished("a", "null", "b", "é" * 200, "c\x07")[1] == {
        "item is empty": [1],
        "item has characters that cannot be printed": [4],
        "item has more than 256 bytes": [3],
    }
    column = IdColumn("item")
    column.add(np.array([b"\xff\xfe", b"a"]))
    assert [*column.finish()[2]] == ["item is not in UTF-8"]


@given(st.lists(st.integers(0, 2**62), min_size=1, max_size=20))
def test_whole_numbers_are_read_exactly(numbers: list[int]) -> None:
    assert whole_numbers(np.array([str(one).encode() for one in numbers])).tolist() == numbers
    assert whole_numbers(np.array(numbers)).tolist() == numbers


# -- times and labels ----------------------------------------------------------------------------------


@given(
    st.datetimes(datetime(1900, 1, 1), datetime(2100, 1, 1)),
    st.sampled_from([None, 0, 90, -330, 720]),
    st.sampled_from(["T", " "]),
)
def test_dates_mean_what_python_says(moment: datetime, zone: int | None, between: str) -> None:
    zoned = moment.replace(tzinfo=UTC if zone is None else timezone(timedelta(minutes=zone)))
    text = zoned.isoformat(between).removesuffix("+00:00")
    found = times(np.array([text.encode(), b"12", b"soon"]))
    assert found[0] == pytest.approx(zoned.timestamp(), abs=1e-5)
    assert found[1] == 12
    assert np.isnan(found[2])


def test_dates_and_what_are_none() -> None:
    good = [b"2026-05-31", b"2026-05-31T20:15Z", b"2026-05-31 20:15:00.25"]
    assert times(np.array(good)).tolist() == [1780185600.0, 1780258500.0, 1780258500.25]
    bad = [b"31.05.2026", b"05/31/2026", b"2026-13-01", b"20:15", b"", b"nan", b"inf", b"1_000", b"yesterday"]
    assert np.isnan(times(np.array(bad))).all()


def test_labels() -> None:
    words = [b"1", b"0", b"true", b"False", b"yes", b"N", b"1.0", b"0.0", b"2", b"", b"maybe", b"0.5"]
    assert truths(np.array(words)).tolist() == [1, 0, 1, 0, 1, 0, 1, 0, -1, -1, -1, -1]
    stars = np.array([b"3.5", b"4", b"5", b"", b"good"])
    assert LabelRule.of("stars>=4")(stars).tolist() == [0, 1, 1, -1, -1]
    assert LabelRule.of(" stars < 4 ")(stars).tolist() == [1, 0, 0, -1, -1]
    assert LabelRule.of("stars==4")(stars).tolist() == [0, 1, 0, -1, 0]
    did = np.array([b"buy", b"view", b""])
    assert LabelRule.of("did=buy")(did).tolist() == [1, 0, -1]
    assert LabelRule.of("did!='buy'")(did).tolist() == [0, 1, -1]
    for wrong in ("", ">=4", "stars>=", "stars>=good", "=", "stars<>4x"):
        with pytest.raises(InputError, match=r"label rule"):
            LabelRule.of(wrong)


def test_nothing_is_guessed(tmp_path: Path) -> None:
    path = tmp_path / "c.csv"
    path.write_text("user,item,rating,time\n" + "".join(f"{n % 9},{n},{n % 5 + 1},{n}\n" for n in range(50)))
    with pytest.raises(InputError, match=r"'rating' seems to say.*--label \"rating>=4\".*--label all"):
        load_table(path)
    assert (load_table(path, label="all")[0].label == 1).all()
    assert load_table(path, label="rating>=4")[0].label.mean() == 0.4
    with pytest.raises(InputError, match=r"up to 5, and nothing is guessed.*--label \"rating>=4\""):
        load_table(path, columns={"label": "rating"})
    with pytest.raises(InputError, match="no line is a click"):
        load_table(path, label="rating>5")
    with pytest.raises(InputError, match="two ways"):
        load_table(path, label="rating>=4", columns={"label": "rating"})
    path.write_text(path.read_text().replace("time\n", "when\n"))
    with pytest.raises(InputError, match=r"no column for time; .*time=when"):
        load_table(path, label="all")
    data, _ = load_table(path, label="all", columns={"time": "#"})
    assert sorted(data.time) == list(range(2, 52))


def test_a_label_that_is_missing_is_not_taken_for_a_click(tmp_path: Path) -> None:
    path = tmp_path / "c.csv"
    for first, said in (("NaN", "every line needs a 0 or a 1"), ("maybe", '--label "label=maybe"')):
        lines = (f"{n % 9},{n},{n},{('NaN', 'NaN', first)[n % 3] if n % 2 else 1}\n" for n in range(60))
        path.write_text("user,item,time,label\n" + "".join(lines))
        with pytest.raises(InputError, match=said):
            load_table(path)


def test_too_many_unusable_lines_are_refused_with_what_would_help(tmp_path: Path) -> None:
    path = tmp_path / "c.csv"
    good = "".join(f"{n % 9},{n},1,{n}\n" for n in range(95))
    path.write_text(f"user,item,label,time\n{good}" + "1,2,1,never\n" * 5)
    assert load_table(path)[1].samples == 95
    path.write_text(f"user,item,label,time\n{good}" + "1,2,1,never\n" * 6)
    with pytest.raises(InputError) as caught:
        load_table(path)
    said = str(caught.value)
    assert "6 of 101 lines (5.9%) cannot be used" in said
    assert "line 97: time is neither a number nor a date: 'never'" in said
    assert "--columns time=COLUMN" in said
    assert said.endswith("--unusable 0.06")
    assert load_table(path, unusable=0.06)[1].samples == 95
