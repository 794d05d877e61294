"""CSV and Parquet files of interactions, and lists of items."""

from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sfsl.data.assemble import assemble, category_map, require_usable
from sfsl.data.catalogue import CATEGORY, ITEM, Catalogue
from sfsl.data.interactions import Interactions
from sfsl.data.lines import (
    BadField,
    LoadReport,
    binary_label,
    finite_time,
    number_id,
    numbered_lines,
    shown,
    split_fields,
    text_id,
)
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


def is_item_list(path: str | Path) -> bool:
    """Whether a CSV has items and says of no user that it had them."""
    _, line = next(numbered_lines(Path(path), LoadReport(str(path))), (0, ""))
    names = [name.strip().strip('"') for name in line.split(",")]
    return ITEM in names and "user" not in names


def load_item_list(path: str | Path, *, text_ids: bool = False) -> tuple[Catalogue, LoadReport]:
    """Items get rows in the order of their ids. A line that cannot be used is left out and counted."""
    report = LoadReport(str(path))
    lines = list(numbered_lines(Path(path), report))
    first = lines[0][1] if lines else ""
    fields = (
        (ITEM, CATEGORY) if CATEGORY in [name.strip().strip('"') for name in first.split(",")] else (ITEM,)
    )
    places, width = read_header(iter(lines[:1]), report, ",", {}, fields)
    read: Any = text_id if text_ids else number_id
    kept: dict[str, list[Any]] = {field: [] for field in fields}
    for number, row in split_rows(iter(lines[1:]), ",", report, max(places.values()), width):
        try:
            values = [read(row[places[field]].strip('" '), field) for field in fields]
        except BadField as bad:
            report.note(bad.problem, f"line {number}: {bad}")
            continue
        for field, value in zip(fields, values, strict=True):
            kept[field].append(value)
    require_usable(report, kept[ITEM])
    items, row_of = np.unique(np.array(kept[ITEM]), return_inverse=True)
    if CATEGORY not in kept:
        return Catalogue.of_items(items), report
    category_of, categories = category_map(row_of, np.array(kept[CATEGORY]), items, report)
    return Catalogue.of_items(items, categories, category_of), report
