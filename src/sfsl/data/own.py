"""One client's own samples, in the ids of a catalogue: clicks as a CSV of (item, label, time, optional
category), words as lines of text."""

from array import array
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from sfsl.arrays import Indices, Reals
from sfsl.data.assemble import clicks_before, require_usable
from sfsl.data.catalogue import CATEGORY, ITEM, WORD, Catalogue, CatalogueTable
from sfsl.data.interactions import Interactions
from sfsl.data.lines import (
    BadField,
    LoadReport,
    binary_label,
    finite_time,
    numbered_lines,
    shown,
    split_fields,
)
from sfsl.data.words import Speech, words_of
from sfsl.errors import InputError

_NEEDED = ("item", "label", "time")


def load_own(
    path: str | Path,
    catalogue: Catalogue,
    *,
    known: int | None = None,
    name: str | Path | None = None,
) -> tuple[Interactions, LoadReport]:
    """Read a CSV with a header. Its one user is row 0 of the table ``user``, which never leaves the device.

    Items are called as in the catalogue. A line that cannot be used is left out and counted; so is one with
    an item that is not in the catalogue, or not among its first ``known`` rows. The category of an item is
    the catalogue's; a column that says otherwise is noted. ``name``: what messages call the file, where
    ``path`` is a copy that its owner does not know.
    """
    items, category = catalogue.table(ITEM), None
    if catalogue.rows(CATEGORY) is not None:
        category = catalogue.table(CATEGORY)
    report = LoadReport(str(path if name is None else name))
    lines = numbered_lines(Path(path), report)
    number, first = next(lines, (0, ""))
    names = [name.strip().strip('"') for name in first.split(",")]
    missing = [name for name in _NEEDED if name not in names]
    if missing and ("\0" in first or "\ufffd" in first):
        raise InputError(f"{report.source} is not text in UTF-8; it must be a CSV with {', '.join(_NEEDED)}")
    if missing:
        raise InputError(
            f"{report.source}: line {number} {shown(first)} names no column for {', '.join(missing)}"
        )
    places = {name: names.index(name) for name in (*_NEEDED, "category") if name in names}
    item, label, time = array("q"), array("b"), array("d")
    for number, line in lines:
        try:
            fields = split_fields(line, ",", max(places.values()) + 1, len(names))
        except BadField as bad:
            report.note(bad.problem, f"line {number}: {shown(line)}")
            continue
        fields = [field.strip('" ') for field in fields]
        try:
            row = _row(items, fields[places["item"]], known)
            values = binary_label(fields[places["label"]]), finite_time(fields[places["time"]])
        except BadField as bad:
            report.note(bad.problem, f"line {number}: {bad}")
            continue
        if "category" in places and category is not None and category.map is not None:
            own = fields[places["category"]]
            if own != category.name_of(int(category.map[row])):
                report.note("category is not the model's, which counts", f"line {number}: {shown(own)}")
        item.append(row)
        label.append(values[0])
        time.append(values[1])
    require_usable(report, item)
    category_of = None if category is None else category.map
    return _interactions(np.array(item), np.array(label), np.array(time), items.rows, category_of), report


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
                spoken.append(_row(vocabulary, word, known))
            except BadField as bad:
                report.note(bad.problem, f"line {number}: {bad}")
    require_usable(report, spoken)
    words = tuple(vocabulary.names())
    return Speech(words, np.array([0, len(spoken)], np.int64), np.array(spoken, np.int32)), report


class _Lines(msgspec.Struct, frozen=True):
    lines: list[str]


def _row(table: CatalogueTable, text: str, known: int | None) -> int:
    row = table.find(text)
    if known is not None and row >= known:
        raise BadField(f"{table.name} is newer than this period, and waits for the next", text)
    return row


def _interactions(
    item: Indices,
    label: NDArray[np.int8],
    time: Reals,
    items: int,
    category_of: NDArray[np.integer] | None,
) -> Interactions:
    if items > 2**31:
        raise InputError(f"a model of {items} items; samples are read for up to 2^31")
    order = np.argsort(time, kind="stable")
    rows, label, time = item[order].astype(np.int32), label[order], time[order]
    clicked, nobody = label == 1, np.zeros(len(item), np.int64)
    return Interactions(
        users=np.zeros(1, np.int64),
        items=np.broadcast_to(np.int8(0), (items,)),
        offsets=np.array([0, len(item)], np.int64),
        item=rows,
        label=label.astype(np.int8),
        time=time,
        click_offsets=np.array([0, int(clicked.sum())], np.int64),
        clicks=rows[clicked],
        history_start=nobody.astype(np.int32),
        history_stop=clicks_before(nobody, time, clicked).astype(np.int32),
        category_of=None if category_of is None else category_of.astype(np.int32),
        categories=None if category_of is None else np.zeros(int(category_of.max()) + 1, np.int8),
    )
