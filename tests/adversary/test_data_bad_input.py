"""Files that are broken in every way we could think of: counted, reported, or refused in words."""

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sfsl.data import load_amazon, load_csv, load_shakespeare, load_taobao
from sfsl.errors import InputError

HEADER = "user,item,label,time\n"
LOADERS: list[Callable[[Path], object]] = [load_amazon, load_csv, load_taobao, load_shakespeare]

BAD_LINES = {
    "1,5,2,1": "label is not 0 or 1",
    "1,5,nan,1": "label is not 0 or 1",
    "1,5,,1": "label is not 0 or 1",
    "1,5,0.5,1": "label is not 0 or 1",
    "-1,5,1,1": "user is negative or too large",
    "1,-5,1,1": "item is negative or too large",
    "1,99999999999999999999999999,1,1": "item is negative or too large",
    "1,5.5,1,1": "item is not a whole number",
    "1,,1,1": "item is empty",
    "1,5,1,nan": "time is neither a number nor a date",
    "1,5,1,inf": "time is neither a number nor a date",
    "1,5,1,yesterday": "time is neither a number nor a date",
    "1,5,1": "too few fields",
    "\x00\x01\x02": "too few fields",
    "1,5,1,1,9": "too many fields",
    '1,"5,1,1': "a quote is not closed",
}


@pytest.mark.parametrize("line", BAD_LINES)
def test_a_bad_line_is_left_out_and_counted(tmp_path: Path, line: str) -> None:
    path = tmp_path / "c.csv"
    path.write_text(f"{HEADER}1,7,1,1\n{line}\n1,8,0,2\n")
    data, report = load_csv(path, unusable=1)
    assert data.items.tolist() == [7, 8]
    assert (report.rows, report.samples) == (3, 2)
    assert "line 3" in report.examples[BAD_LINES[line]]
    assert report.problems.pop(BAD_LINES[line]) == 1
    assert set(report.problems) <= {"user without a usable sample"}  # the one in the bad line itself
    assert str(path) in str(report)


@pytest.mark.parametrize("line", BAD_LINES)
def test_a_file_of_nothing_else_is_refused_with_line_and_reason(tmp_path: Path, line: str) -> None:
    path = tmp_path / "c.csv"
    path.write_text(f"{HEADER}{line}\n{line}\n")
    with pytest.raises(InputError, match=r"nothing in it can be used: line 2: "):
        load_csv(path)


def test_users_with_nothing_usable_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "c.csv"
    path.write_text(f"{HEADER}1,7,1,1\n2,7,5,1\n3,.5,1,1\n3,-1,1,1\n")
    data, report = load_csv(path, unusable=1)
    assert data.users.tolist() == [1]
    assert report.problems["user without a usable sample"] == 2


def test_amazon_lines_and_histories(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("1\t1\t5\t0\n7\t1\t5\t0\n1\t1\t6\t5,x,-3,7\n1\t1\t6\nrubbish\n1\t2\tx\t0\n")
    data, report = load_amazon(path)
    assert len(data) == 2
    assert data.items[data.clicks].tolist() == [5, 7]
    assert report.problems == {
        "label is not 0 or 1": 1,
        "item in a history is not a whole number": 1,
        "item in a history is negative or too large": 1,
        "not four fields": 2,
        "item is not a whole number": 1,
        "user without a usable sample": 1,
    }


@pytest.mark.parametrize("load", LOADERS)
def test_an_empty_file_is_refused(tmp_path: Path, load: Callable[[Path], object]) -> None:
    path = tmp_path / "empty"
    path.write_text("\n\n")
    with pytest.raises(InputError, match="empty"):
        load(path)


@pytest.mark.parametrize("load", LOADERS)
def test_a_missing_file_is_refused(tmp_path: Path, load: Callable[[Path], object]) -> None:
    with pytest.raises(InputError, match="cannot be read: No such file"):
        load(tmp_path / "nowhere")
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        load(tmp_path)


def test_a_header_without_the_columns_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.csv"
    path.write_text("user,film,time\n1,2,3\n")
    with pytest.raises(InputError, match=r"names no column for item; it has user, film, time.*item=film"):
        load_csv(path)
    path.write_text("user,item,ts\n1,2,3\n")
    with pytest.raises(InputError, match="has no column named 'category'"):
        load_taobao(path)


def test_a_file_cut_short_is_refused_unless_the_rest_is_wanted(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    text = HEADER + "".join(f"1,{item},1,{time}\n" for time, item in enumerate(rng.integers(0, 10**9, 5000)))
    packed = gzip.compress(text.encode())
    path = tmp_path / "c.csv.gz"
    path.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(InputError, match=r"breaks off after line .* fetch or copy the file again"):
        load_csv(path)
    data, report = load_csv(path, unusable=1)
    assert 1000 < len(data) < 5000
    assert report.problems["the file breaks off"] == 1
    path.write_bytes(packed[:12])
    with pytest.raises(InputError, match=r"breaks off|empty"):
        load_csv(path)


def test_a_long_line_is_shown_short(tmp_path: Path) -> None:
    path = tmp_path / "c.csv"
    path.write_text(HEADER + "x" * 10**6 + "\n")
    with pytest.raises(InputError) as caught:
        load_csv(path)
    assert len(str(caught.value)) < 1000


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(junk=st.binary(max_size=300), load=st.sampled_from(LOADERS), head=st.booleans())
def test_junk_never_does_anything_else(
    tmp_path: Path, junk: bytes, load: Callable[[Path], object], head: bool
) -> None:
    path = tmp_path / "junk"
    path.write_bytes((b"user,item,label,time,category,behavior,ts\n" if head else b"") + junk)
    try:
        load(path)
    except InputError as error:
        assert str(path) in str(error)  # noqa: PT017 -- either way is right
