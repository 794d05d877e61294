"""CSV and Parquet of (user, item, label, time, optional category); Taobao's user behaviour is one of them."""

from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sfsl.data.assemble import assemble, require_usable
from sfsl.data.interactions import Interactions
from sfsl.data.lines import (
    BadField,
    binary_label,
    finite_time,
    number_id,
    numbered_lines,
    shown,
    split_fields,
    text_id,
)
from sfsl.data.report import LoadReport
from sfsl.errors import InputError

FIELDS = ("user", "item", "label", "time", "category")
OPTIONAL = ("label", "category")


def load_csv(
    path: str | Path,
    *,
    columns: Mapping[str, str] | None = None,
    separator: str = ",",
    text_ids: bool = False,
) -> tuple[Interactions, LoadReport]:
    """Read a CSV with a header. ``columns`` says what the fields are called if not as in ``FIELDS``.

    Without a label every line is a click: add negatives with ``with_negatives``. Ids are whole numbers
    from 0, or any text with ``text_ids``. A line that cannot be used is left out and counted.
    """
    report = LoadReport(str(path))
    lines = numbered_lines(Path(path), report)
    header, width = read_header(lines, report, separator, columns or {})
    rows = split_rows(lines, separator, report, max(header.values()), width)
    return _load(rows, header, text_ids, report)


def load_taobao(
    path: str | Path, *, behaviors: Collection[str] = ("pv", "cart", "fav", "buy")
) -> tuple[Interactions, LoadReport]:
    """Read Taobao's ``user,item,category,behavior,ts``: clicks only, so add negatives.

    Lines of other behaviours are skipped; they are not errors, and are not counted as such.
    """
    report = LoadReport(str(path))
    lines = numbered_lines(Path(path), report)
    fields = ("user", "item", "category", "time", "behavior")
    header, width = read_header(lines, report, ",", {"time": "ts"}, fields)
    kind = header.pop("behavior")
    rows = split_rows(lines, ",", report, max(kind, *header.values()), width)
    wanted = ((number, fields) for number, fields in rows if fields[kind].strip() in behaviors)
    return _load(wanted, header, False, report)


def load_parquet(
    path: str | Path, *, columns: Mapping[str, str] | None = None, text_ids: bool = False
) -> tuple[Interactions, LoadReport]:
    """Read a Parquet file like ``load_csv``; needs pyarrow, the extra ``sfsl[parquet]``."""
    try:
        import pyarrow.parquet as parquet  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        raise InputError(
            f"{path}: reading Parquet needs pyarrow; install sfsl[parquet], or write the file as CSV"
        ) from None
    report = LoadReport(str(path))
    try:
        table = parquet.read_table(path)
    except (OSError, ValueError) as error:  # pyarrow's own errors derive from these
        raise InputError(f"{path}: cannot be read as Parquet: {error}") from None
    header = _places(table.column_names, f"{path}: its schema", columns or {})
    report.lines = table.num_rows
    # Values go through the same checks as text does, so that both formats refuse the same things.
    values = [[_as_text(one) for one in table.column(place).to_pylist()] for place in header.values()]
    header = {name: place for place, name in enumerate(header)}
    rows = enumerate(zip(*values, strict=True), start=1)
    return _load(rows, header, text_ids, report)


def _as_text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, datetime):
        return str(value.timestamp())
    # Columns of whole numbers with gaps arrive as floats: 12.0 is the id 12.
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def read_header(
    lines: Iterator[tuple[int, str]],
    report: LoadReport,
    separator: str,
    columns: Mapping[str, str],
    fields: Sequence[str] | None = None,
) -> tuple[dict[str, int], int]:
    """Where each field stands, and how many there are. ``fields``: those that must be there; by default those
    of samples."""
    for number, line in lines:
        names = [name.strip().strip('"') for name in line.split(separator)]
        where = f"{report.source}: line {number} {shown(line)}"
        return _places(names, where, columns, fields), len(names)
    raise InputError(f"{report.source}: it is empty; its first line should name the columns")


def _places(
    names: Sequence[str], where: str, columns: Mapping[str, str], fields: Sequence[str] | None = None
) -> dict[str, int]:
    """Where each field stands. One that the caller names must be there: only a default may be missing."""
    wanted = fields or [one for one in FIELDS if one not in OPTIONAL or one in columns or one in names]
    missing = [one for one in wanted if columns.get(one, one) not in names]
    if missing:
        raise InputError(f"{where} names no column for {', '.join(missing)}")
    return {one: names.index(columns.get(one, one)) for one in wanted}


def split_rows(
    lines: Iterator[tuple[int, str]], separator: str, report: LoadReport, last: int, width: int
) -> Iterator[tuple[int, Sequence[str]]]:
    """The fields of each line that has them all; of the others the report takes note."""
    for number, line in lines:
        try:
            yield number, split_fields(line, separator, last + 1, width)
        except BadField as bad:
            report.note(bad.problem, f"line {number}: {shown(line)}")


def _load(
    rows: Iterable[tuple[int, Sequence[str]]], header: Mapping[str, int], text_ids: bool, report: LoadReport
) -> tuple[Interactions, LoadReport]:
    read_id: Any = text_id if text_ids else number_id
    readers: dict[str, Callable[[str], Any]] = {
        "user": partial(read_id, what="user"),
        "item": partial(read_id, what="item"),
        "category": partial(read_id, what="category"),
        "label": binary_label,
        "time": finite_time,
    }
    parts = [(readers[name], place) for name, place in header.items()]
    kept: dict[str, Any] = {
        name: array("d") if name == "time" else [] if text_ids and name != "label" else array("q")
        for name in header
    }
    stores = list(kept.values())
    named, heard = set(), set()
    for number, fields in rows:
        who = fields[header["user"]]
        named.add(who)
        try:
            values = [read(fields[place].strip('" ')) for read, place in parts]
        except BadField as bad:
            report.note(bad.problem, f"line {number}: {bad}")
            continue
        heard.add(who)
        for store, value in zip(stores, values, strict=True):
            store.append(value)
    require_usable(report, kept["user"])
    for lost in sorted(named - heard):
        report.note("user without a usable sample", f"user {shown(lost)}")
    columns = {name: np.array(store) for name, store in kept.items()}
    columns.setdefault("label", np.ones(len(columns["user"]), dtype=np.int8))
    return assemble(**columns, report=report), report
