"""Broken files, as people have them. Each ends a command with one sentence that says what is wrong and what
to do, a status other than 0, and nothing written."""

import gzip
import sqlite3
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sfsl.cli import app
from sfsl.errors import SfslError

HEAD = "user,item,label,time\n"
GOOD = "".join(f"{n % 30},{n % 17},{n % 2},{n}\n" for n in range(300))


def lines(form: str, count: int = 300) -> str:
    return "".join(
        form.format(n=n, user=n % 30, item=n % 17, label=n % 2, star=n % 5 + 1) for n in range(count)
    )


def packed(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("ratings.csv", HEAD + GOOD)


def database(path: Path) -> None:
    with sqlite3.connect(path) as opened:
        opened.execute("create table clicks (user, item)")


def parquet(path: Path) -> None:
    path.write_bytes(b"PAR1" + bytes(100))


# What is broken: what is in the file, what the sentence must say, and flags.
BROKEN: dict[str, tuple[str | bytes | Callable[[Path], None], str, list[str]]] = {
    "an empty file": ("", "is empty; its first line should name its columns", []),
    "blank lines only": ("\n \n\n", "is empty", []),
    "a header and nothing else": (HEAD, "no lines with samples", []),
    "no header": ("196\t242\t3\t881250949\n" * 50, "names no columns; put a line before it", []),
    "other names": ("u,i,l,t\n" + GOOD, "names no column for user, item, time", []),
    "names that are known elsewhere": (
        "user_id,movie_id,timestamp\n" + lines("{user},{item},{n}\n"),
        "--columns user=user_id,item=movie_id,time=timestamp",
        [],
    ),
    "a column twice": ("user,item,item,time\n" + lines("{user},1,2,{n}\n"), "has 2 columns named 'item'", []),
    "a column that is not there": (HEAD + GOOD, "no column named 'film'", ["--columns", "item=film"]),
    "a field that is none": (HEAD + GOOD, "expected fields and columns", ["--columns", "usr=user"]),
    "stars without a rule": (
        "user,item,rating,time\n" + lines("{user},{item},{star},{n}\n"), '--label "rating>=4"', [],
    ),
    "stars as labels": (HEAD + lines("{user},{item},{star},{n}\n"), '--label "label>=4"', []),
    "words as labels": (HEAD + lines("{user},{item},good,{n}\n"), '--label "label=good"', []),
    "a rule for another column": (HEAD + GOOD, "no column named 'stars'", ["--label", "stars>=4"]),
    "a rule on words": (
        "user,item,did,time\n" + lines("{user},{item},buy,{n}\n"), "did is not a number",
        ["--label", "did>=4"],
    ),
    "half a rule": (HEAD + GOOD, "is no label rule", ["--label", "label>="]),
    "no clicks at all": (HEAD + lines("{user},{item},0,{n}\n"), "no line is a click", []),
    "dates of another country": (
        HEAD + lines("{user},{item},{label},31/05/2026\n"), "such as 2026-05-31", [],
    ),
    "no times": (HEAD + lines("{user},{item},{label},\n"), "time is neither a number nor a date", []),
    "months that do not exist": (HEAD + lines("{user},{item},{label},2026-13-01\n"), "neither a number", []),
    "users that are missing": (HEAD + lines(",{item},{label},{n}\n"), "user is empty", []),
    "items that are null": (HEAD + lines("{user},null,{label},{n}\n"), "item is empty", []),
    "items that are fractions": (HEAD + lines("{user},{n}.5,{label},{n}\n"), "is not a whole number", []),
    "items that are negative": (HEAD + lines("{user},-{item}7,{label},{n}\n"), "--text-ids", []),
    "ids too large": (HEAD + lines("{user},99999999999999999999{n},{label},{n}\n"), "--text-ids", []),
    "a tenth of the lines broken": (
        HEAD + GOOD + "1,2,1,soon\n" * 35, "35 of 335 lines (10.4%) cannot be used", [],
    ),
    "lines too short": (HEAD + lines("{user},{item}\n"), "too few fields", []),
    "lines too long": (HEAD + lines("{user},{item},{label},{n},1\n"), "must stand in quotes", []),
    "a decimal comma": (HEAD + lines("{user},{item},1,{n},5\n"), "too many fields", []),
    "a quote that is not closed": (HEAD + lines('{user},"{item},1,{n}\n'), "a quote is not closed", []),
    "two separators at once": ("user;item;label;time\n" + GOOD, "too few fields", []),
    "text in UTF-16": ((HEAD + GOOD).encode("utf-16"), "UTF-16; save it as UTF-8", []),
    "ids in Latin-1": (
        (HEAD + lines("{user},caf\xe9{n},{label},{n}\n")).encode("latin-1"), "save the file as UTF-8", [],
    ),
    "bytes of a program": (b"\x7fELF\x02\x01\0\0" * 60 + b"\n", "is not text in UTF-8", []),
    "a zip or a workbook": (packed, "a zip archive", []),
    "a web page": ("<!doctype html><title>Please log in</title>\n", "a web page", []),
    "one list of JSON": ('[{"user": 1, "item": 2}]\n', "write one object per line", []),
    "JSON over many lines": ('{\n  "user": 1\n}\n', "no whole JSON object; write one per line", []),
    "JSON that breaks off": (
        '{"user": 1, "item": 2, "time": 3}\n' + '{"user": 1, "item"\n' * 20,
        "write one JSON object per line", [],
    ),
    "JSON without the columns": ('{"who": 1, "what": 2}\n' * 20, "names no column for user, item, time", []),
    "gzip that breaks off": (gzip.compress((HEAD + GOOD * 50).encode())[:-900], "breaks off after line", []),
    "Parquet that is damaged": (parquet, "Parquet", []),
    "a database": (database, "a database; export the table as CSV", []),
    "a PDF": (b"%PDF-1.7\n", "export the data as CSV", []),
    "one sample per user": (
        HEAD + "".join(f"{n},{n % 17},{n % 2},{n}\n" for n in range(300)),
        "take data with several samples", [],
    ),
    "two samples per user": (
        HEAD + "".join(f"{n % 150},{n % 17},{1 - n // 250},{n}\n" for n in range(300)),
        "raise data.held_out", [],
    ),
    "too few users": (HEAD + GOOD, "round.clients x round.cohorts = 100, but only 30 users", []),
}  # fmt: skip


def test_there_are_enough() -> None:
    assert len(BROKEN) >= 40


@pytest.mark.parametrize("what", BROKEN)
def test_one_sentence_and_nothing_written(tmp_path: Path, what: str) -> None:
    pytest.importorskip("torch")
    content, says, flags = BROKEN[what]
    if what == "Parquet that is damaged":
        pytest.importorskip("pyarrow")
    path, out = tmp_path / "data", tmp_path / "out"
    if callable(content):
        content(path)
    else:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    before = path.read_bytes()
    done = CliRunner().invoke(app, ["run", "--data", str(path), "--rounds", "1", "--out", str(out), *flags])
    assert isinstance(done.exception, SfslError), (done.exception, done.output)
    assert done.exit_code != 0
    said = str(done.exception)
    assert says in said
    assert "\n" not in said
    assert len(said) < 700
    assert sorted(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == before


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    for path, says in ((tmp_path / "nowhere.csv", "No such file"), (tmp_path, "Is a directory")):
        done = CliRunner().invoke(app, ["run", "--data", str(path), "--out", str(tmp_path / "out")])
        assert isinstance(done.exception, SfslError)
        assert says in str(done.exception)
    assert not list(tmp_path.iterdir())
