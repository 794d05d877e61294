"""Data named in one text, as flags do: ``ratings.csv``, ``amazon:FILE``, ``user=user_id,item=movie_id``."""

import re
from pathlib import Path
from typing import Literal, get_args

from sfsl.data.guess import FIELDS
from sfsl.errors import InputError

SourceName = Literal[
    "synthetic", "file", "amazon", "taobao", "csv", "parquet", "stored", "shakespeare", "python", "catalogue"
]
SOURCES: tuple[str, ...] = get_args(SourceName)
TABLES = ("file", "csv", "parquet")  # one thing: what a file holds shows in it


def source_of(text: str) -> tuple[str, str]:
    """Return ``data.source`` and ``data.path``: a kind and a path with a colon between, or a file alone."""
    kind, colon, path = text.partition(":")
    if text == "synthetic" or (kind in SOURCES and (colon or not Path(text).exists())):
        return kind, path
    if colon and not Path(text).exists():
        raise InputError(
            f"data {text!r}: {kind!r} is no kind of data, and there is no such file; name a file (CSV, "
            f"TSV, Parquet, JSON lines), one of {', '.join(SOURCES[2:-1])} with a colon and a path, or "
            "synthetic"
        )
    return "file", text


def columns_of(text: str) -> dict[str, str]:
    """Read which column each field is in: ``user=user_id,item=movie_id,time=timestamp``."""
    found: dict[str, str] = {}
    for part in re.split(rf",(?=\s*(?:{'|'.join(FIELDS)})\s*=)", text):
        field, equals, column = (one.strip() for one in part.partition("="))
        if not equals or not column or field not in FIELDS or field in found:
            raise InputError(
                f"--columns {text!r}: expected fields and columns, such as user=user_id,item=movie_id,"
                f"time=timestamp; fields are {', '.join(FIELDS)}, each once"
            )
        found[field] = column
    return found
