"""``sfsl catalogue``: made, grown, shown; what is wrong is said before anything is written."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sfsl.cli import app
from sfsl.data.catalogue_file import read_catalogue
from sfsl.errors import InputError


def run(*words: object) -> str:
    done = CliRunner().invoke(app, ["catalogue", *map(str, words)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture
def items(tmp_path: Path) -> Path:
    file = tmp_path / "items.csv"
    file.write_text("item,category\n" + "".join(f"{item},{item % 3}\n" for item in range(9)))
    return file


def test_made_grown_and_shown(tmp_path: Path, items: Path) -> None:
    first, second, new = tmp_path / "1.json", tmp_path / "2.json.gz", tmp_path / "new.csv"
    assert "version 1, 9 rows of item, 3 rows of category" in run("make", items, "-o", first)
    new.write_text("item,category\n8,2\n9,0\n10,5\n")
    assert "11 rows of item (2 new), 4 rows of category (1 new)" in run(
        "grow", first, f"csv:{new}", "-o", second
    )
    shown = json.loads(run("show", second, "--json"))
    assert (shown["version"], shown["parent"]) == (2, read_catalogue(first).digest.hex())
    assert [one["rows"] for one in shown["tables"]] == [11, 4]
    assert shown["digest"] in run("show", second)
    run("grow", first, f"csv:{new}", "-o", first)  # in place
    assert read_catalogue(first).digest == read_catalogue(second).digest


def test_synthetic_and_words(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    made = json.loads(
        run("make", "synthetic", "--users", 20, "--scale", 0.02, "-o", tmp_path / "s", "--json")
    )
    assert made["statistics"]["clients"] == 20
    roles = tmp_path / "roles.jsonl"
    roles.write_text('{"play": "p", "role": "r", "lines": ["to be or not to be"]}\n')
    run("make", f"shakespeare:{roles}", "-o", tmp_path / "w")
    assert read_catalogue(tmp_path / "w").table("word").ids == ("be", "not", "or", "to")


def test_what_is_wrong_is_said_and_nothing_written(tmp_path: Path, items: Path) -> None:
    made, out, changed = tmp_path / "c.json", tmp_path / "out.json", tmp_path / "changed.csv"
    run("make", items, "-o", made)
    changed.write_text("item,category\n4,2\n20,0\n")
    for words, why in {
        ("make", items, "-o", made): "exists already",
        ("make", "nothing:here", "-o", out): "data 'nothing:here'",
        ("make", "csv:nowhere.csv", "-o", out): "cannot be read",
        (
            "grow",
            made,
            f"csv:{changed}",
            "-o",
            out,
        ): "item 4 has category 1 in the catalogue and 2 in the data",
        ("grow", made, f"csv:{items}", "-o", out): "nothing in the data is new",
        ("grow", made, f"csv:{changed}", "-o", items): "exists already",
        ("show", items): "no catalogue",
    }.items():
        with pytest.raises(InputError, match=why):
            run(*words)
        assert not out.exists()
