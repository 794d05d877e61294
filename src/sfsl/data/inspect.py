"""A first look at somebody's data: what columns hold, which is likely which and why, what is left out."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import numpy as np

from sfsl.data.fields import (
    EVERY,
    NOTHING,
    LabelRule,
    reals,
    shown_word,
    times,
    truths,
    whole_numbers,
    words_of,
)
from sfsl.data.guess import FIELDS, guessed_by_name
from sfsl.data.interactions import Interactions
from sfsl.data.lines import LoadReport
from sfsl.data.plain import UNUSABLE, load_table, require_share
from sfsl.data.samples import Column
from sfsl.data.table import Block, Source, open_table
from sfsl.errors import InputError

LOOKED_AT = 100_000  # lines from which columns are described
_SHOWN = 3
_MOMENTS = {1.0: "seconds", 1e3: "milliseconds", 1e6: "microseconds"}
_YEARS = datetime(1990, 1, 1, tzinfo=UTC).timestamp(), datetime(2040, 1, 1, tzinfo=UTC).timestamp()


@dataclass(frozen=True)
class ColumnSeen:
    """What a column holds, by its first lines: ``kind`` in words, how many are ``empty``, how many different
    values there are, the ``lowest`` and ``highest`` where they are numbers."""

    name: str
    kind: str
    empty: int
    different: int
    examples: tuple[str, ...]
    lowest: float | None = None
    highest: float | None = None

    @property
    def binary(self) -> bool:
        return self.kind == "true or false"


@dataclass(frozen=True)
class Guess:
    """A field, the column that it is likely in, and why."""

    field: str
    column: str
    reason: str


@dataclass(frozen=True)
class Inspection:
    """``rule`` is a label rule to begin with, where a column seems to say what was liked and none was given.
    ``missing`` are fields that no column fits. ``refused`` says why a run would refuse the data as guessed.
    ``data`` and ``report``: what is read with these guesses, None where that is impossible."""

    source: str
    format: str
    columns: tuple[ColumnSeen, ...]
    guesses: tuple[Guess, ...]
    rule: str = ""
    missing: tuple[str, ...] = ()
    refused: str = ""
    data: Interactions | None = None
    report: LoadReport | None = None

    @property
    def flags(self) -> str:
        """The flags with which a run reads the data so."""
        others = [one for one in self.guesses if one.column != one.field and one.field != "label"]
        columns = f"--columns {','.join(f'{one.field}={one.column}' for one in others)}" if others else ""
        return " ".join(filter(None, [columns, f'--label "{self.rule}"' if self.rule else ""]))


def inspect_table(
    source: Source,
    *,
    columns: Mapping[str, str] | None = None,
    label: str = "",
    text_ids: bool = False,
    unusable: float = UNUSABLE,
) -> Inspection:
    """Look at a file or a frame (``load_table`` says which). What is given here is not guessed."""
    report = LoadReport(str(source) if isinstance(source, str) or hasattr(source, "suffix") else "this frame")
    table = open_table(source, report)
    seen = tuple(_columns(table.names, table.read(list(dict.fromkeys(table.names)))))
    guesses, rule = _guesses({one.name: one for one in seen}, dict(columns or {}), label)
    fields = {one.field: one.column for one in guesses}
    missing = tuple(one for one in ("user", "item", "time") if one not in fields)
    found = Inspection(report.source, table.kind, seen, guesses, rule, missing)
    if missing:
        wanted = ",".join(f"{one}=COLUMN" for one in missing)
        return replace(
            found, refused=f"no column fits {', '.join(missing)}; say which it is: --columns {wanted}"
        )
    named = {field: column for field, column in fields.items() if field != "label"}
    try:
        data, read = load_table(source, columns=named, label=rule or EVERY, text_ids=text_ids, unusable=1)
    except InputError as error:
        return replace(found, refused=str(error))
    try:
        require_share(replace(read, problems=dict(read.problems)), len(data), unusable)
    except InputError as error:
        found = replace(found, refused=str(error))
    return replace(found, data=data, report=read)


def _columns(names: Sequence[str], blocks: Iterable[Block]) -> list[ColumnSeen]:
    parts: dict[str, list[Column]] = {name: [] for name in names}
    rows = 0
    for block in blocks:
        for name, values in block.columns.items():
            parts[name].append(words_of(values[: LOOKED_AT - rows]))
        rows += len(block.lines)
        if rows >= LOOKED_AT:
            break
    return [
        _described(name, np.concatenate(some) if some else np.zeros(0, "S1")) for name, some in parts.items()
    ]


def _described(name: str, words: Column) -> ColumnSeen:
    empty = np.isin(words, NOTHING)
    values = words[~empty]
    different, counts = np.unique(values, return_counts=True)
    often = different[np.argsort(-counts, kind="stable")[:_SHOWN]]
    numbers = reals(values)
    kind = _kind(values, different, numbers)
    shown = tuple(shown_word(one)[1:-1] for one in often.tolist())
    bounds = (float(np.nanmin(numbers)), float(np.nanmax(numbers))) if "number" in kind else (None, None)
    return ColumnSeen(name, kind, int(empty.sum()), len(different), shown, *bounds)


def _kind(values: Column, different: Column, numbers: Column) -> str:
    if not len(values):
        return "empty"
    if (truths(different) >= 0).all():
        return "true or false"
    if (whole_numbers(values) >= 0).mean() > 1 - UNUSABLE:
        return "whole numbers"
    if (~np.isnan(numbers)).mean() > 1 - UNUSABLE:
        return "numbers"
    return "dates" if (~np.isnan(times(values))).mean() > 1 - UNUSABLE else "text"


def _guesses(
    seen: Mapping[str, ColumnSeen], given: dict[str, str], label: str
) -> tuple[tuple[Guess, ...], str]:
    """Guess each field's column that is not given, and a rule for labels."""
    taken = {*given.values()}
    likely = guessed_by_name([name for name in seen if name not in taken])
    found = [Guess(field, column, "as --columns says") for field, column in given.items()]
    for field in FIELDS:
        if field in given or (field == "label" and label):
            continue
        if (name := likely.get(field)) is not None and _fits(field, seen[name]):
            reason = f"its name, and it holds {_held(seen[name])}"
            found.append(Guess(field, name, reason))
            taken.add(name)
        elif field == "time" and (one := next((one for one in seen.values() if _is_time(one, taken)), None)):
            found.append(Guess(field, one.name, f"it holds {_held(one)}"))
            taken.add(one.name)
    if label:
        LabelRule.of(label)
        found.append(Guess("label", LabelRule.of(label).column or EVERY, f"as --label {label} says"))
        return tuple(found), label
    liked = next((one for one in found if one.field == "label"), None)
    if liked is None:
        return tuple(found), ""
    column = seen[liked.column]
    return tuple(found), column.name if column.binary else _rule(column)


def _rule(column: ColumnSeen) -> str:
    if column.lowest is None or column.highest is None:
        return f"{column.name}={column.examples[0]}"
    return f"{column.name}>={np.ceil(column.lowest + 0.75 * (column.highest - column.lowest)):g}"


def _fits(field: str, column: ColumnSeen) -> bool:
    """Whether what a column holds can be what its name says."""
    if field == "time":
        return column.kind in ("whole numbers", "numbers", "dates")
    return column.kind not in ("empty", "dates") and not (
        field in ("user", "item") and column.kind == "numbers"
    )


def _is_time(column: ColumnSeen, taken: set[str]) -> bool:
    return column.name not in taken and (column.kind == "dates" or _moments(column) is not None)


def _moments(column: ColumnSeen) -> str | None:
    """What numbers count since 1970, if they are moments of our time."""
    if column.lowest is None or column.highest is None:
        return None
    return next(
        (
            unit
            for scale, unit in _MOMENTS.items()
            if _YEARS[0] <= column.lowest / scale <= column.highest / scale <= _YEARS[1]
        ),
        None,
    )


def _held(column: ColumnSeen) -> str:
    if (unit := _moments(column)) is not None and column.lowest is not None and column.highest is not None:
        scale = next(one for one, name in _MOMENTS.items() if name == unit)
        first, last = (
            datetime.fromtimestamp(one / scale, UTC).date() for one in (column.lowest, column.highest)
        )
        return f"{unit} since 1970, {first} to {last}"
    if column.lowest is not None:
        return f"{column.different:,} different {column.kind} from {column.lowest:g} to {column.highest:g}"
    return f"{column.different:,} different {'values' if column.binary else column.kind}"
