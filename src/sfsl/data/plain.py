"""Tables of interactions and lists of items: CSV, Parquet, JSON lines and frames."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sfsl.arrays import Indices, Reals
from sfsl.data.assemble import assemble, category_map
from sfsl.data.catalogue import CATEGORY, ITEM, Catalogue
from sfsl.data.fields import (
    EVERY,
    NOTHING,
    IdColumn,
    LabelRule,
    Words,
    Wrong,
    reals,
    shown_word,
    times,
    words_of,
)
from sfsl.data.guess import FIELDS, guessed_by_name, telling_column
from sfsl.data.interactions import Interactions
from sfsl.data.lines import LoadReport
from sfsl.data.samples import Column
from sfsl.data.table import BREAKS_OFF, Source, Table, described, open_table, place_of
from sfsl.errors import InputError

# A file is refused where more of its lines than this share cannot be used.
UNUSABLE = 0.05
LINE = "#"  # instead of a column of times: the number of the line
_IDS = ("user", ITEM, CATEGORY)
_NOT_A_TIME = "time is neither a number nor a date"


def load_table(
    source: Source,
    *,
    columns: Mapping[str, str] | None = None,
    label: str = "",
    text_ids: bool = False,
    unusable: float = UNUSABLE,
    separator: str = "",
) -> tuple[Interactions, LoadReport]:
    """Read interactions from a CSV (with commas, semicolons, tabs or bars), a Parquet file, JSON lines, or a
    frame of pandas or polars.

    ``columns`` says what the fields user, item, label, time and category are called, if not so; ``time="#"``
    takes lines in their order. ``label`` is a rule, such as ``rating>=4`` (``LabelRule``), where no column
    says with 0 and 1 what was clicked. Without any label every line is a click: add negatives with
    ``with_negatives``. Ids are whole numbers from 0, or texts; ``text_ids`` takes numbers for texts too.

    A line that cannot be used is left out and counted. Where these are more than the share ``unusable``, the
    file is refused.
    """
    report = LoadReport(str(source) if isinstance(source, str | Path) else f"this {type(source).__name__}")
    table = open_table(source, report, separator)
    named = named_columns(table, report, columns or {}, label, FIELDS)
    found = read_fields(table, report, named, text_ids=text_ids, unusable=unusable)
    return _assembled(found, report), report


def load_csv(
    path: str | Path,
    *,
    columns: Mapping[str, str] | None = None,
    separator: str = "",
    text_ids: bool = False,
    label: str = "",
    unusable: float = UNUSABLE,
) -> tuple[Interactions, LoadReport]:
    """Read a CSV with a header, as ``load_table`` does."""
    return load_table(
        path, columns=columns, label=label, text_ids=text_ids, unusable=unusable, separator=separator
    )


def load_parquet(
    path: str | Path, *, columns: Mapping[str, str] | None = None, text_ids: bool = False, label: str = ""
) -> tuple[Interactions, LoadReport]:
    """Read a Parquet file, as ``load_table`` does; needs pyarrow, the extra ``sfsl[parquet]``."""
    return load_table(path, columns=columns, label=label, text_ids=text_ids)


def load_taobao(
    path: str | Path,
    *,
    behaviors: Collection[str] = ("pv", "cart", "fav", "buy"),
    unusable: float = UNUSABLE,
) -> tuple[Interactions, LoadReport]:
    """Read Taobao's ``user,item,category,behavior,ts``: clicks only, so add negatives.

    Lines of other behaviours are skipped; they are not errors, and are not counted as such.
    """
    report = LoadReport(str(path))
    table = open_table(path, report)
    wanted = {"time": "ts"} if "ts" in table.names else {}
    named = named_columns(table, report, {**wanted, CATEGORY: CATEGORY}, EVERY, FIELDS)
    place_of("behavior", table, report.source)
    chosen = "behavior", np.array(sorted(one.encode() for one in behaviors))
    return _assembled(read_fields(table, report, named, chosen=chosen, unusable=unusable), report), report


def _assembled(found: "Found", report: LoadReport) -> Interactions:
    label = found.label if found.label is not None else np.ones(len(found.time), np.int8)
    if not (label == 1).any():
        raise InputError(
            f"{report.source}: by its labels no line is a click, so that nothing can be learned; give the "
            'rule that says what is one, such as --label "rating>=4"'
        )
    ids = found.ids
    return assemble(
        ids["user"], ids[ITEM], label, found.time, ids.get(CATEGORY), report=report, names=found.names
    )


@dataclass(frozen=True)
class Named:
    """Which column each field is in; ``rule`` says what is a click, None: every line is."""

    columns: Mapping[str, str]
    rule: LabelRule | None


def named_columns(
    table: Table,
    report: LoadReport,
    columns: Mapping[str, str],
    label: str,
    fields: Sequence[str],
    optional: Collection[str] = (CATEGORY,),
    *,
    must_label: bool = False,
) -> Named:
    """Find the columns of fields. Nothing is guessed: what is missing is refused, with what may be meant."""
    for given in columns:
        if given not in fields:
            raise InputError(f"{given!r} is no field of these data; there are {', '.join(fields)}")
    found = {
        one: columns.get(one, one)
        for one in fields
        if one != "label" and (one not in optional or one in columns or one in table.names)
    }
    missing = [one for one, name in found.items() if one not in columns and name not in table.names]
    rule = _rule(table, columns, label) if "label" in fields else None
    if must_label and rule is None and telling_column(table.names, [*found.values()]) is None:
        missing.append("label")
    if missing:
        raise InputError(
            f"{report.source} names no column for {', '.join(missing)}; it has {described(table.names)}. "
            f"{_suggested(table, missing)}"
        )
    for name in [*found.values(), *([rule.column] if rule and rule.column else [])]:
        if name != LINE or name in table.names:
            place_of(name, table, report.source)
    if rule is None and "label" in fields and (telling := telling_column(table.names, [*found.values()])):
        raise InputError(
            f"{report.source}: its column {telling!r} seems to say what was liked, and nothing is guessed: "
            f'give the rule, such as --label "{telling}>=4" (--label {telling} where it is 0 or 1), or '
            f"--label {EVERY} if every line counts as a click"
        )
    return Named(found, rule)


def _rule(table: Table, columns: Mapping[str, str], label: str) -> LabelRule | None:
    if label and "label" in columns:
        raise InputError("--label and label= in --columns are two ways to say one thing; give one of them")
    if label:
        return LabelRule.of(label)
    if "label" in columns or "label" in table.names:
        return LabelRule(columns.get("label", "label"))
    return None


def _suggested(table: Table, missing: Sequence[str]) -> str:
    likely = guessed_by_name(table.names)
    shown = {one: likely[one] for one in missing if one in likely}
    said = ",".join(f"{one}={shown.get(one, 'COLUMN')}" for one in missing)
    lines = f"; time={LINE} takes lines in their order" if "time" in missing and not shown.get("time") else ""
    return f"Say which it is: --columns {said}{lines}"


@dataclass(frozen=True)
class Found:
    """What lines say of which all fields can be used. ``ids`` are numbers, or places among ``names``."""

    lines: Indices
    ids: Mapping[str, Indices]
    names: Mapping[str, Column]
    time: Reals
    label: NDArray[np.int8] | None


@dataclass
class _Odd:
    """Values that cannot be read, by their place among all lines."""

    places: list[Indices] = field(default_factory=list)
    words: list[Words] = field(default_factory=list)

    def add(self, start: int, wrong: NDArray[np.bool_], values: Column) -> None:
        if wrong.any():
            self.places.append(start + np.flatnonzero(wrong))
            self.words.append(words_of(values[wrong]))

    def wrong(self, problem: str) -> Wrong:
        if not self.places:
            return {}
        return {problem: (np.concatenate(self.places), np.concatenate(self.words))}


def read_fields(
    table: Table,
    report: LoadReport,
    named: Named,
    *,
    text_ids: bool = False,
    unusable: float = UNUSABLE,
    chosen: tuple[str, Words] | None = None,
) -> Found:
    """Read the fields of all lines, and keep those lines of which every field can be used. ``chosen``: only
    lines with one of these values in this column, the others do not count."""
    rule, columns = named.rule, named.columns
    timed = "time" in columns and (columns["time"] != LINE or LINE in table.names)
    ids = {one: IdColumn(one, text=text_ids) for one in columns if one in _IDS}
    wanted = [columns[one] for one in ids] + ([columns["time"]] if timed else [])
    wanted += ([rule.column] if rule and rule.column else []) + ([chosen[0]] if chosen else [])
    lines, stamps, labels, late, unlabelled = [], [], [], _Odd(), _Odd()
    rows, clicks = 0, rule is not None and bool(rule.column)
    for block in table.read(list(dict.fromkeys(wanted))):
        here, read = block.lines, dict(block.columns)
        if chosen is not None:
            among = np.isin(words_of(read[chosen[0]]), chosen[1])
            report.rows -= int((~among).sum())
            here, read = here[among], {name: values[among] for name, values in read.items()}
        for one, collected in ids.items():
            collected.add(read[columns[one]])
        stamp = times(read[columns["time"]]) if timed else here.astype(np.float64)
        late.add(rows, np.isnan(stamp), read[columns["time"]] if timed else stamp)
        if rule is not None and clicks:
            label = rule(read[rule.column])
            unlabelled.add(rows, label < 0, read[rule.column])
            labels.append(label)
        lines.append(here)
        stamps.append(stamp)
        rows += len(here)
    every = np.concatenate([np.zeros(0, np.int64), *lines])
    usable, finished = np.ones(rows, bool), {one: collected.finish() for one, collected in ids.items()}
    wrongs: dict[str, Wrong] = {one: wrong for one, (_, _, wrong) in finished.items()}
    wrongs["label"] = unlabelled.wrong(rule.problem if rule else "")
    wrongs["time"] = late.wrong(_NOT_A_TIME)
    for one in (*FIELDS,):
        _leave_out(wrongs.get(one, {}), every, usable, report)
    if "user" in ids:
        _note_lost_users(finished["user"], usable, report)
    found = Found(
        every[usable],
        {one: numbers[usable] for one, (numbers, _, _) in finished.items()},
        {one: names for one, (_, names, _) in finished.items() if names is not None},
        np.concatenate([np.zeros(0), *stamps])[usable],
        np.concatenate(labels)[usable] if labels else None,
    )
    require_share(report, len(found.lines), unusable, _stars(rule, wrongs["label"]))
    return found


def _leave_out(wrong: Wrong, lines: Indices, usable: NDArray[np.bool_], report: LoadReport) -> None:
    """Note problems of lines that have none yet, and leave these out."""
    for problem, (places, words) in wrong.items():
        fresh = usable[places]
        if fresh.any():
            first = int(np.argmax(fresh))
            said = f"line {lines[places[first]]}: {problem}: {shown_word(words[first])}"
            report.note(problem, said, int(fresh.sum()))
    for places, _ in wrong.values():
        usable[places] = False


def _note_lost_users(
    users: tuple[Indices, Column | None, Wrong], usable: NDArray[np.bool_], report: LoadReport
) -> None:
    numbers, names, _ = users
    lost = np.setdiff1d(numbers[~usable & (numbers >= 0)], numbers[usable])
    if len(lost):
        first = lost[0] if names is None else names[lost[0]]
        report.note("user without a usable sample", f"user {str(first)!r}", len(lost))


def _stars(rule: LabelRule | None, wrong: Wrong) -> str:
    """What to do about a column of labels that are not 0 and 1."""
    if rule is None or rule.compared or not wrong:
        return ""
    words = next(iter(wrong.values()))[1]
    numbers = reals(words)
    if np.isnan(numbers).mean() > 0.5:
        telling = [word for word in words if word not in NOTHING]
        if not telling:
            return "every line needs a 0 or a 1; or name another column in --label"
        example = shown_word(telling[0])[1:-1]
        return f'say which values are clicks: --label "{rule.column}={example}"'
    low, high = float(np.nanmin(numbers)), float(np.nanmax(numbers))
    limit = np.ceil(min(low, 1.0) + 0.75 * (high - min(low, 1.0)))
    return (
        f"its column {rule.column!r} has values up to {high:g}, and nothing is guessed: say which are "
        f'clicks, such as --label "{rule.column}>={limit:g}", or --label {EVERY} if every line is one'
    )


# What helps against a problem, by words in its name.
_ADVICE = {
    BREAKS_OFF: "fetch or copy the file again",
    "too few": "every line needs the fields that the first one names, with the same sign between them",
    "too many": "a text or number with a separator in it must stand in quotes",
    "quote": "a text with a quote or a new line in it cannot be read; leave its column out, or write the "
    "table as Parquet or JSON lines",
    _NOT_A_TIME: "write times as numbers, or as dates such as 2026-05-31 or 2026-05-31T20:15:00Z, or name "
    "another column with --columns time=COLUMN",
    "is not a number": "name a column of numbers in --label",
    "whole number": "name the right column with --columns, or take ids as texts: --text-ids (in a run: --set "
    "data.text_ids=true)",
    "too large": "take ids as texts: --text-ids (in a run: --set data.text_ids=true)",
    "UTF-8": "save the file as UTF-8",
    "JSON": "write one JSON object per line",
    "empty": "name the right column with --columns, or remove these lines",
}


def require_share(report: LoadReport, samples: int, unusable: float = UNUSABLE, advice: str = "") -> None:
    """Note how many samples there are. Refuse a source of which too little can be used."""
    report.samples = samples
    lost = report.rows - samples
    breaks = BREAKS_OFF in report.problems and unusable < 1
    if samples and lost <= unusable * report.rows and not breaks:
        return
    counted = {kind: count for kind, count in report.problems.items() if kind in report.examples}
    counted.pop("user without a usable sample", None)
    worst = BREAKS_OFF if breaks else max(counted, key=lambda kind: counted[kind], default="")
    example = report.examples.get(worst, "it has no lines with samples")
    advice = advice or next((text for words, text in _ADVICE.items() if words in worst), "correct them")
    if not samples:
        raise InputError(f"{report.source}: nothing in it can be used: {example}; {advice}")
    if breaks:
        raise InputError(
            f"{report.source}: {worst} {example}; {advice}, or take what is there with --unusable 1"
        )
    share = lost / report.rows
    raise InputError(
        f"{report.source}: {lost:,} of {report.rows:,} lines ({share:.1%}) cannot be used, more than the "
        f"{unusable:.0%} that may be; {counted[worst]:,} of them because {example}; {advice}; or leave them "
        f"out with --unusable {np.ceil(share * 100) / 100:g}"
    )


def is_item_list(path: str | Path, columns: Mapping[str, str] | None = None) -> bool:
    """Whether a table has items and says of no user that it had them."""
    given, names = columns or {}, open_table(path, LoadReport(str(path))).names
    return given.get(ITEM, ITEM) in names and "user" not in given and "user" not in names


def load_item_list(
    path: str | Path,
    *,
    columns: Mapping[str, str] | None = None,
    text_ids: bool = False,
    unusable: float = UNUSABLE,
) -> tuple[Catalogue, LoadReport]:
    """Items get rows in the order of their ids. A line that cannot be used is left out and counted."""
    report = LoadReport(str(path))
    table = open_table(path, report)
    named = named_columns(table, report, columns or {}, "", (ITEM, CATEGORY))
    found = read_fields(table, report, named, text_ids=text_ids, unusable=unusable)
    read = {one: found.names[one][ids] if one in found.names else ids for one, ids in found.ids.items()}
    items, row_of = np.unique(read[ITEM], return_inverse=True)
    if CATEGORY not in read:
        return Catalogue.of_items(items), report
    category_of, categories = category_map(row_of, read[CATEGORY], items, report)
    return Catalogue.of_items(items, categories, category_of), report
