"""One client's own samples: a CSV of (item, label, time, optional category) in the numbers of a model."""

from array import array
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sfsl.arrays import Indices, Reals
from sfsl.data.assemble import clicks_before, require_usable
from sfsl.data.interactions import Interactions
from sfsl.data.lines import (
    BadField,
    binary_label,
    finite_time,
    number_id,
    numbered_lines,
    shown,
    split_fields,
)
from sfsl.data.report import LoadReport
from sfsl.errors import InputError

_NEEDED = ("item", "label", "time")


def load_own(
    path: str | Path,
    *,
    items: int,
    category_of: NDArray[np.integer] | None = None,
    name: str | Path | None = None,
) -> tuple[Interactions, LoadReport]:
    """Read a CSV with a header. Its one user is row 0 of the table ``user``, which never leaves the device.

    Items are numbered as in the model, from 0 to ``items`` - 1. A line that cannot be used is left out
    and counted; so is one with an item that the model does not have. The category of an item is the
    model's; a column that says otherwise is noted. ``name``: what messages call the file, where ``path`` is
    a copy that its owner does not know.
    """
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
            row = number_id(fields[places["item"]], "item")
            values = binary_label(fields[places["label"]]), finite_time(fields[places["time"]])
            if row >= items:
                raise BadField("item is not in the model", fields[places["item"]])
        except BadField as bad:
            report.note(bad.problem, f"line {number}: {bad}")
            continue
        if "category" in places and category_of is not None:
            own = fields[places["category"]]
            if own != str(category_of[row]):
                report.note("category is not the model's, which counts", f"line {number}: {shown(own)}")
        item.append(row)
        label.append(values[0])
        time.append(values[1])
    require_usable(report, item)
    return _interactions(np.array(item), np.array(label), np.array(time), items, category_of), report


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
