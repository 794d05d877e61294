"""One client's own samples, in the ids of a catalogue: clicks as a CSV of (item, label, time, optional
category), words as lines of text."""

from array import array
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from sfsl.data.assemble import assemble, require_usable
from sfsl.data.catalogue import CATEGORY, ITEM, WORD, Catalogue, CatalogueTable
from sfsl.data.interactions import Interactions
from sfsl.data.lines import BadField, LoadReport, checked_rows, numbered_lines, read_table, reader, shown
from sfsl.data.words import Speech, words_of
from sfsl.errors import InputError


def load_own(
    path: str | Path, catalogue: Catalogue, *, known: int | None = None, name: str | Path | None = None
) -> tuple[Interactions, LoadReport]:
    """Read a CSV with a header. Its one user is row 0 of the table ``user``, which never leaves the device.

    Items are called as in the catalogue. A line that cannot be used is left out and counted; so is one with
    an item that is not in the catalogue, or not among its first ``known`` rows. The category of an item is
    the catalogue's; a column that says otherwise is noted. ``name``: what messages call the file, where
    ``path`` is a copy that its owner does not know.
    """
    items = catalogue.table(ITEM)
    category = None if catalogue.rows(CATEGORY) is None else catalogue.table(CATEGORY)
    category_of = None if category is None else category.map
    report = LoadReport(str(path if name is None else name))
    fields, rows = read_table(path, report, (ITEM, "label", "time", CATEGORY), (CATEGORY,))
    readers = {field: reader(field) for field in fields} | {ITEM: partial(_row, items, known)}
    if CATEGORY in readers:
        readers[CATEGORY] = str
    kept: tuple[array[Any], ...] = array("q"), array("b"), array("d")
    for number, values in checked_rows(rows, readers, report):
        if category is not None and category_of is not None:
            own, expected = values[3:], category.name_of(int(category_of[values[0]]))
            if own not in ([], [expected]):
                report.note("category is not the model's, which counts", f"line {number}: {shown(own[0])}")
        for store, value in zip(kept, values[:3], strict=True):
            store.append(value)
    require_usable(report, kept[0])
    if items.rows > 2**31:
        raise InputError(f"a model of {items.rows} items; samples are read for up to 2^31")
    numbered = assemble(np.zeros(len(kept[0]), np.int64), *map(np.array, kept))
    return replace(
        numbered,
        items=np.broadcast_to(np.int8(0), (items.rows,)),
        item=numbered.items[numbered.item].astype(np.int32),
        clicks=numbered.items[numbered.clicks].astype(np.int32),
        category_of=None if category_of is None else category_of.astype(np.int32),
        categories=None if category_of is None else np.zeros(int(category_of.max()) + 1, np.int8),
    ), report


def load_own_words(
    path: str | Path, catalogue: Catalogue, *, known: int | None = None, name: str | Path | None = None
) -> tuple[Speech, LoadReport]:
    """Read what one client says: lines of text, or lines of JSON of which each has a list ``lines``.

    A word that is not in the catalogue, or not among its first ``known`` rows, is left out and counted.
    """
    report = LoadReport(str(path if name is None else name))
    vocabulary, spoken = catalogue.table(WORD), array("i")
    for number, line in numbered_lines(Path(path), report):
        try:
            lines = msgspec.json.decode(line, type=_Lines).lines if line.startswith("{") else [line]
        except msgspec.MsgspecError:
            report.note('JSON without a list of texts "lines"', f"line {number}: {shown(line)}")
            continue
        for word in words_of(lines):
            try:
                spoken.append(_row(vocabulary, known, word))
            except BadField as bad:
                report.note(bad.problem, f"line {number}: {bad}")
    require_usable(report, spoken)
    words = tuple(vocabulary.names())
    return Speech(words, np.array([0, len(spoken)], np.int64), np.array(spoken, np.int32)), report


class _Lines(msgspec.Struct, frozen=True):
    lines: list[str]


def _row(table: CatalogueTable, known: int | None, text: str) -> int:
    row = table.find(text)
    if known is not None and row >= known:
        raise BadField(f"{table.name} is newer than this period, and waits for the next", text)
    return row
