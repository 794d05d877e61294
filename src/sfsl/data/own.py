"""One client's own samples, in the ids of a catalogue: clicks as a table of (item, label, time, optional
category), words as lines of text."""

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import numpy as np

from sfsl.arrays import Bits, Indices
from sfsl.data.assemble import assemble, require_usable
from sfsl.data.catalogue import CATEGORY, ITEM, WORD, Catalogue, CatalogueTable
from sfsl.data.interactions import Interactions
from sfsl.data.lines import BadField, LoadReport, numbered_lines, shown
from sfsl.data.plain import named_columns, read_fields
from sfsl.data.samples import Column
from sfsl.data.table import open_table
from sfsl.data.words import Speech, words_of
from sfsl.errors import InputError

# Says which samples are to be used, of all by what tells one from another.
Fresh = Callable[[Sequence[bytes]], Bits]
_OLD = "sample of an earlier period, which was exposed"
# A client's file is refused only where more than half of it makes no sense: few lines make large shares.
UNUSABLE = 0.5


@dataclass(frozen=True)
class Layout:
    """What a client's file calls its columns, and which of its lines are clicks (``load_table``)."""

    columns: Mapping[str, str] = field(default_factory=dict)
    label: str = ""


def load_own(
    path: str | Path,
    catalogue: Catalogue,
    *,
    known: int | None = None,
    name: str | Path | None = None,
    layout: Layout | None = None,
    fresh: Fresh | None = None,
) -> tuple[Interactions, LoadReport]:
    """Read a table with names of columns. Its one user is row 0 of the table ``user``, which never leaves the
    device.

    Items are called as in the catalogue. A line that cannot be used is left out and counted; so is one with
    an item that is not in the catalogue, or not among its first ``known`` rows. The category of an item is
    the catalogue's; a column that says otherwise is noted. ``name``: what messages call the file, where
    ``path`` is a copy that its owner does not know. ``fresh`` is asked about each line by item and time, and
    what it leaves out is in no history either.
    """
    items, layout = catalogue.table(ITEM), layout or Layout()
    category = None if catalogue.rows(CATEGORY) is None else catalogue.table(CATEGORY)
    category_of = None if category is None else category.map
    report = LoadReport(str(path if name is None else name))
    table, fields = open_table(path, report), (ITEM, "label", "time", CATEGORY)
    named = named_columns(table, report, layout.columns, layout.label, fields, must_label=True)
    found = read_fields(table, report, named, text_ids=True, unusable=UNUSABLE)
    rows, wrong = _rows(items, known, found.names[ITEM])
    for problem, places in wrong.items():
        lost = np.isin(found.ids[ITEM], places)
        first = int(np.argmax(lost))
        text = shown(str(found.names[ITEM][found.ids[ITEM][first]]))
        report.note(problem, f"line {found.lines[first]}: {problem}: {text}", int(lost.sum()))
    row = rows[found.ids[ITEM]]
    kept = row >= 0
    report.samples = int(kept.sum())
    if fresh is not None:
        items_of, at = found.names[ITEM].tolist(), found.time[kept].tolist()
        told = zip(found.ids[ITEM][kept].tolist(), at, strict=True)
        used = fresh([f"{items_of[one]}\t{time!r}".encode() for one, time in told])
        _leave_out(report, used, found.lines[kept])
        kept[kept] = used
    if not kept.any():
        return _no_interactions(catalogue), report
    if category is not None and category_of is not None and CATEGORY in found.names:
        own = found.names[CATEGORY][found.ids[CATEGORY][kept]]
        expected = np.array([category.name_of(int(one)) for one in category_of[row[kept]]])
        if len(others := np.flatnonzero(own != expected)):
            said = f"line {found.lines[kept][others[0]]}: {shown(str(own[others[0]]))}"
            report.note("category is not the model's, which counts", said, len(others))
    label = np.ones(int(kept.sum()), np.int8) if found.label is None else found.label[kept]
    one = np.zeros(int(kept.sum()), np.int64)
    return in_rows(catalogue, one, row[kept], label, found.time[kept]), report


def _no_interactions(catalogue: Catalogue) -> Interactions:
    """Return the interactions of one user who has none."""
    one, time = np.zeros(1, np.int64), np.zeros(1)
    return in_rows(catalogue, one, one, one, time).select(np.zeros(1, np.bool_))


def in_rows(catalogue: Catalogue, user: Column, row: Indices, label: Column, time: Column) -> Interactions:
    """Put together interactions whose items are rows of a catalogue, with its categories. Users are
    numbered in the order of what they are called."""
    items = catalogue.table(ITEM)
    category_of = None if catalogue.rows(CATEGORY) is None else catalogue.table(CATEGORY).map
    if items.rows > 2**31:
        raise InputError(f"a model of {items.rows} items; samples are read for up to 2^31")
    numbered = assemble(user, row, label, time)
    return replace(
        numbered,
        items=np.broadcast_to(np.int8(0), (items.rows,)),
        item=numbered.items[numbered.item].astype(np.int32),
        clicks=numbered.items[numbered.clicks].astype(np.int32),
        category_of=None if category_of is None else category_of.astype(np.int32),
        categories=None if category_of is None else np.zeros(int(category_of.max()) + 1, np.int8),
    )


def in_catalogue(data: Interactions, catalogue: Catalogue) -> tuple[Interactions, int]:
    """Return interactions with a catalogue's row numbers, and how many samples were left out, since their
    items are not in it."""
    row = _rows(catalogue.table(ITEM), None, np.asarray(data.items).astype(str))[0][data.item]
    kept = row >= 0
    if not kept.any():
        raise InputError(
            "no item of these data is in the model's catalogue; are they called otherwise there?"
        )
    users = data.users[data.user[kept]]
    found = in_rows(catalogue, users, row[kept], data.label[kept], data.time[kept])
    return found, int((~kept).sum())


def _leave_out(report: LoadReport, used: Bits, lines: Indices) -> None:
    """Note what is left out of a file because it was exposed before."""
    if not used.all():
        report.note(_OLD, f"line {lines[int(np.argmin(used))]}", int((~used).sum()))
    report.samples = int(used.sum())


def _rows(table: CatalogueTable, known: int | None, names: Column) -> tuple[Indices, dict[str, list[int]]]:
    """The row of each name, -1 where there is none; and the places of those by what is wrong with them."""
    rows, wrong = np.full(len(names), -1, np.int64), dict[str, list[int]]()
    for place, text in enumerate(names.tolist()):
        try:
            rows[place] = _row(table, known, text)
        except BadField as bad:
            wrong.setdefault(bad.problem, []).append(place)
    return rows, wrong


def load_own_words(
    path: str | Path,
    catalogue: Catalogue,
    *,
    known: int | None = None,
    name: str | Path | None = None,
    fresh: Fresh | None = None,
) -> tuple[Speech, LoadReport]:
    """Read what one client says: lines of text, or lines of JSON of which each has a list ``lines``.

    A word that is not in the catalogue, or not among its first ``known`` rows, is left out and counted; no
    word may be left, as in ``load_own``. ``fresh`` is asked about each line.
    """
    report = LoadReport(str(path if name is None else name))
    vocabulary, spoken, said = catalogue.table(WORD), array("i"), False
    lines_read = list(numbered_lines(Path(path), report))
    if fresh is not None:
        used = fresh([line.encode(errors="replace") for _, line in lines_read])
        _leave_out(report, used, np.array([number for number, _ in lines_read], np.int64))
        lines_read = [one for one, new in zip(lines_read, used.tolist(), strict=True) if new]
    for number, line in lines_read:
        try:
            lines = msgspec.json.decode(line, type=_Lines).lines if line.startswith("{") else [line]
        except msgspec.MsgspecError:
            report.note('JSON without a list of texts "lines"', f"line {number}: {shown(line)}")
            continue
        for word in words_of(lines):
            said = True
            try:
                spoken.append(_row(vocabulary, known, word))
            except BadField as bad:
                report.note(bad.problem, f"line {number}: {bad}")
    if not said:
        require_usable(report, spoken)
    report.samples = len(spoken)
    words = tuple(vocabulary.names())
    return Speech(words, np.array([0, len(spoken)], np.int64), np.array(spoken, np.int32)), report


class _Lines(msgspec.Struct, frozen=True):
    lines: list[str]


def _row(table: CatalogueTable, known: int | None, text: str) -> int:
    row = table.find(text)
    if known is not None and row >= known:
        raise BadField(f"{table.name} is newer than this period, and waits for the next", text)
    return row
