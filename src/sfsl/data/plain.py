"""CSV and Parquet files of interactions, and lists of items."""

from array import array
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from sfsl.data.assemble import assemble, category_map, require_usable
from sfsl.data.catalogue import CATEGORY, ITEM, Catalogue
from sfsl.data.interactions import Interactions
from sfsl.data.lines import (
    LoadReport,
    Rows,
    checked_rows,
    column_names,
    column_places,
    numbered_lines,
    read_table,
    reader,
)
from sfsl.data.samples import Column
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
    return _load(*read_table(path, report, FIELDS, OPTIONAL, columns or {}, separator), text_ids, report)


def load_taobao(
    path: str | Path, *, behaviors: Collection[str] = ("pv", "cart", "fav", "buy")
) -> tuple[Interactions, LoadReport]:
    """Read Taobao's ``user,item,category,behavior,ts``: clicks only, so add negatives.

    Lines of other behaviours are skipped; they are not errors, and are not counted as such.
    """
    report = LoadReport(str(path))
    fields = ("user", "item", "category", "time", "behavior")
    names, rows = read_table(path, report, fields, columns={"time": "ts"})
    wanted = ((number, row[:-1]) for number, row in rows if row[-1].strip() in behaviors)
    return _load(names[:-1], wanted, False, report)


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
    places = column_places(table.column_names, f"{path}: its schema", FIELDS, OPTIONAL, columns or {})
    report.lines = table.num_rows
    # Values go through the same checks as text does, so that both formats refuse the same things.
    values = [[_as_text(one) for one in table.column(place).to_pylist()] for place in places.values()]
    return _load([*places], enumerate(zip(*values, strict=True), start=1), text_ids, report)


def _as_text(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return str(int(value))
        case datetime():
            return str(value.timestamp())
        case float() if value.is_integer():  # columns of whole numbers with gaps: 12.0 is the id 12
            return str(int(value))
    return str(value).strip('" ')


def _load(
    names: Sequence[str], rows: Rows, text_ids: bool, report: LoadReport
) -> tuple[Interactions, LoadReport]:
    columns = _columns(names, rows, text_ids, report)
    columns.setdefault("label", np.ones(len(columns["user"]), dtype=np.int8))
    return assemble(**columns, report=report), report


def _columns(names: Sequence[str], rows: Rows, text_ids: bool, report: LoadReport) -> dict[str, Column]:
    """The values of each field, of those rows in which all can be used."""
    kept: dict[str, Any] = {
        name: array("d") if name == "time" else [] if text_ids and name != "label" else array("q")
        for name in names
    }
    for _, values in checked_rows(rows, {name: reader(name, text_ids) for name in names}, report):
        for store, value in zip(kept.values(), values, strict=True):
            store.append(value)
    require_usable(report, kept[ITEM])
    return {name: np.array(store) for name, store in kept.items()}


def is_item_list(path: str | Path) -> bool:
    """Whether a CSV has items and says of no user that it had them."""
    names = column_names(next(numbered_lines(Path(path), LoadReport(str(path))), (0, ""))[1])
    return ITEM in names and "user" not in names


def load_item_list(path: str | Path, *, text_ids: bool = False) -> tuple[Catalogue, LoadReport]:
    """Items get rows in the order of their ids. A line that cannot be used is left out and counted."""
    report = LoadReport(str(path))
    names, rows = read_table(path, report, (ITEM, CATEGORY), (CATEGORY,))
    columns = _columns(names, rows, text_ids, report)
    items, row_of = np.unique(columns[ITEM], return_inverse=True)
    if CATEGORY not in columns:
        return Catalogue.of_items(items), report
    category_of, categories = category_map(row_of, columns[CATEGORY], items, report)
    return Catalogue.of_items(items, categories, category_of), report
