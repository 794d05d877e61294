"""Amazon Electronics as the authors of federated submodel averaging prepared it.

No header; ``label``, ``user``, ``item`` and ``history`` between tabs, the history as item ids between
commas (``0``: empty), each user's lines in time order.
"""

from array import array
from pathlib import Path

import numpy as np

from sfsl.arrays import Indices
from sfsl.data.assemble import offsets_of, require_usable
from sfsl.data.interactions import Interactions
from sfsl.data.lines import BadField, LoadReport, Rows, checked_rows, number_id, numbered_lines, reader, shown

EMPTY = "0"


def load_amazon(path: str | Path) -> tuple[Interactions, LoadReport]:
    report = LoadReport(str(path))
    readers = {field: reader(field) for field in ("label", "user", "item")} | {"history": str}
    kept = array("b"), array("q"), array("q"), array("i"), array("i")
    clicks: dict[int, list[int]] = {}
    begins: dict[int, int] = {}
    for number, (label, user, item, text) in checked_rows(_rows(Path(path), report), readers, report):
        history = _history(text, number, report)
        begin = _remember(clicks.setdefault(user, []), history, begins.get(user, 0))
        begins[user] = begin
        for store, value in zip(kept, (label, user, item, begin, begin + len(history)), strict=True):
            store.append(value)
    require_usable(report, kept[0])
    return _in_user_order(clicks, *(np.array(column, dtype=np.int64) for column in kept)), report


def _rows(path: Path, report: LoadReport) -> Rows:
    for number, line in numbered_lines(path, report):
        fields = line.split("\t")
        if len(fields) == 4:
            yield number, fields
        else:
            report.note("not four fields", f"line {number}: {shown(line)}")


def _history(text: str, number: int, report: LoadReport) -> list[int]:
    """The ids of a history; a bad one only shortens it."""
    history = []
    for one in text.split(",") if text.strip() not in (EMPTY, "") else ():
        try:
            history.append(number_id(one, "item in a history"))
        except BadField as bad:
            report.note(bad.problem, f"line {number}: {bad}")
    return history


def _remember(clicks: list[int], history: list[int], previous: int) -> int:
    """Where ``history`` begins in the user's clicks, after adding what is new at their end.

    A history mostly repeats the one before it, which began at ``previous``, and adds to its end; or it
    is a window that has moved on. So clicks are stored once. Anything else is stored whole.
    """
    for begin in range(previous, len(clicks)):
        if not history or clicks[begin] == history[0]:
            known = clicks[begin : begin + len(history)]
            if known == history[: len(known)]:
                clicks.extend(history[len(known) :])
                return begin
    clicks.extend(history)
    return len(clicks) - len(history)


def _in_user_order(
    clicks: dict[int, list[int]], label: Indices, user: Indices, item: Indices, start: Indices, stop: Indices
) -> Interactions:
    users, user_row = np.unique(user, return_inverse=True)
    pool = np.concatenate([np.array(clicks[int(one)], dtype=np.int64) for one in users])
    items, rows = np.unique(np.concatenate([item, pool]), return_inverse=True)
    order = np.argsort(user_row, kind="stable")
    offsets = offsets_of(user_row, len(users))
    return Interactions(
        users=users,
        items=items,
        offsets=offsets,
        item=rows[order].astype(np.int32),
        label=label[order].astype(np.int8),
        # The file has no times, only an order.
        time=(np.arange(len(order)) - np.repeat(offsets[:-1], np.diff(offsets))).astype(np.float64),
        click_offsets=np.cumsum([0, *(len(clicks[int(one)]) for one in users)]),
        clicks=rows[len(item) :].astype(np.int32),
        history_start=start[order].astype(np.int32),
        history_stop=stop[order].astype(np.int32),
    )
