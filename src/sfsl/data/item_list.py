"""A list of items, ``item`` or ``item,category``: all that a catalogue needs where there are no samples."""

from pathlib import Path
from typing import Any

import numpy as np

from sfsl.data.assemble import category_map, require_usable
from sfsl.data.catalogue import CATEGORY, ITEM, Catalogue
from sfsl.data.lines import BadField, number_id, numbered_lines, text_id
from sfsl.data.plain import read_header, split_rows
from sfsl.data.report import LoadReport


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
