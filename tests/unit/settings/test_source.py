"""Data named in one text."""

from pathlib import Path

import pytest

from sfsl.errors import InputError, ParameterError
from sfsl.settings.run import from_sections
from sfsl.settings.source import columns_of, source_of
from sfsl.settings.toml import to_toml


def test_a_kind_and_a_path_or_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert source_of("synthetic") == ("synthetic", "")
    assert source_of("amazon:a.tsv") == ("amazon", "a.tsv")
    assert source_of("csv:a:b.csv") == ("csv", "a:b.csv")
    assert source_of("ratings.csv") == ("file", "ratings.csv")
    with pytest.raises(InputError, match="'cvs' is no kind of data"):
        source_of("cvs:ratings.csv")
    Path("odd:name").touch()
    Path("stored").touch()
    Path("synthetic").touch()
    assert source_of("synthetic") == ("synthetic", "")
    assert source_of("odd:name") == ("file", "odd:name")
    assert source_of("stored") == ("file", "stored")


def test_columns() -> None:
    assert columns_of("user=user_id, item = movie id,time=#") == {
        "user": "user_id", "item": "movie id", "time": "#",
    }  # fmt: skip
    assert columns_of("item=a,b=c,user=d=e") == {"item": "a,b=c", "user": "d=e"}
    for wrong in ("", "user", "user=", "usr=a", "user=a,user=b"):
        with pytest.raises(InputError, match="expected fields and columns"):
            columns_of(wrong)


def test_in_a_run_file() -> None:
    data = {"source": "file", "path": "r.csv", "columns": {"user": 'odd "name"'}, "label": "rating>=4"}
    config = from_sections({"data": data})
    assert 'columns = {user = "odd \\"name\\""}' in to_toml(config)
    with pytest.raises(ParameterError, match="are for tables"):
        from_sections({"data": {"source": "amazon", "path": "x", "label": "rating>=4"}})
    with pytest.raises(ParameterError, match="unusable"):
        from_sections({"data": {"unusable": 2}})
