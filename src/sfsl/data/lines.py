"""Lines of a text file, and what is said about those that cannot be used."""

import csv
import gzip
import io
import math
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sfsl.errors import InputError


@dataclass
class LoadReport:
    """``problems`` counts what was wrong by kind; ``examples`` keeps the first of each kind.

    A problem in one line does not always cost a sample: a bad id in a history only shortens it.
    """

    source: str
    lines: int = 0
    samples: int = 0
    problems: dict[str, int] = field(default_factory=dict)
    examples: dict[str, str] = field(default_factory=dict)

    def note(self, problem: str, example: str, count: int = 1) -> None:
        self.problems[problem] = self.problems.get(problem, 0) + count
        self.examples.setdefault(problem, example)

    def __str__(self) -> str:
        head = f"{self.source}: {self.samples:,} samples from {self.lines:,} lines"
        kinds = (f"{count:,} x {kind} ({self.examples[kind]})" for kind, count in self.problems.items())
        return "; ".join([head, *kinds])


GZIP_MAGIC = b"\x1f\x8b"
SHOWN = 60
LARGEST_ID = 2**62

Columns = Mapping[str, str]
Reader = Callable[[str], Any]
Rows = Iterable[tuple[int, Sequence[str]]]  # with their numbers


def numbered_lines(path: Path, report: LoadReport) -> Iterator[tuple[int, str]]:
    """Every line that is not blank, with its number from 1. gzip is recognised by content, not by name."""
    try:
        with path.open("rb") as raw:
            stream = gzip.GzipFile(fileobj=raw) if raw.peek(2)[:2] == GZIP_MAGIC else raw
            # Undecodable bytes become a replacement character: that line fails to parse, not the file.
            text = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="replace", newline=None)
            for number, line in enumerate(text, start=1):
                report.lines = number
                if line.strip():
                    yield number, line.rstrip("\n")
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        report.note("the file breaks off", f"after line {report.lines}: {error}")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None


def shown(text: str) -> str:
    """A piece of foreign text, fit to stand in a message."""
    printable = "".join(one if one.isprintable() or one == "\t" else "?" for one in text[: SHOWN + 1])
    return repr(printable if len(text) <= SHOWN else printable[:SHOWN] + "…")


class BadField(Exception):
    """A field that cannot be used: its kind of problem, and the offending text in words."""

    def __init__(self, problem: str, text: str) -> None:
        super().__init__(f"{problem}: {shown(text)}")
        self.problem = problem


def split_fields(line: str, separator: str, needed: int, most: int) -> list[str]:
    """The fields of a line that should have ``most`` and must have ``needed``. A separator in quotes is none;
    one that is not, and makes a field too many, would put every field behind it in the wrong place."""
    fields = line.split(separator)
    if '"' in line and len(separator) == 1:
        try:
            fields = next(csv.reader([line], delimiter=separator, skipinitialspace=True, strict=True))
        except csv.Error:
            raise BadField("a quote is not closed", line) from None
    if len(fields) < needed:
        raise BadField("too few fields", line)
    if len(fields) > most and any(map(str.strip, fields[most:])):
        raise BadField("too many fields", line)
    return fields


def column_names(line: str, separator: str = ",") -> list[str]:
    """The names in a header."""
    return [name.strip().strip('"') for name in line.split(separator)]


def column_places(
    names: Sequence[str], where: str, fields: Sequence[str], optional: Collection[str], columns: Columns
) -> dict[str, int]:
    """Where each field stands among ``names``. Only an optional one that the caller does not name, in
    ``columns``, may be missing."""
    wanted = [one for one in fields if one not in optional or one in columns or one in names]
    missing = [one for one in wanted if columns.get(one, one) not in names]
    if missing:
        raise InputError(f"{where} names no column for {', '.join(missing)}")
    return {one: names.index(columns.get(one, one)) for one in wanted}


def read_table(
    path: str | Path,
    report: LoadReport,
    fields: Sequence[str],
    optional: Collection[str] = (),
    columns: Columns = MappingProxyType({}),
    separator: str = ",",
) -> tuple[list[str], Rows]:
    """Which of these fields a file with a header has, and what each line says in them. ``columns`` says what
    fields are called there, if not as here. The report takes note of a line that lacks some."""
    lines = numbered_lines(Path(path), report)
    number, first = next(lines, (0, ""))
    needed = [columns.get(one, one) for one in fields if one not in optional]
    if not number:
        raise InputError(f"{report.source}: it is empty; its first line should name {', '.join(needed)}")
    names = column_names(first, separator)
    if not {*needed} <= {*names} and ("\0" in first or "\ufffd" in first):
        raise InputError(f"{report.source} is not text in UTF-8; it must be a CSV with {', '.join(needed)}")
    where = f"{report.source}: line {number} {shown(first)}"
    places = column_places(names, where, fields, optional, columns)

    def rows() -> Rows:
        for number, line in lines:
            try:
                values = split_fields(line, separator, max(places.values()) + 1, len(names))
            except BadField as bad:
                report.note(bad.problem, f"line {number}: {shown(line)}")
            else:
                yield number, [values[place].strip('" ') for place in places.values()]

    return list(places), rows()


def checked_rows(
    rows: Rows, readers: Mapping[str, Reader], report: LoadReport
) -> Iterator[tuple[int, list[Any]]]:
    """What the reader of each field makes of it, row by row. The report takes note of rows that one refuses,
    and of users who are left with none."""
    user = [*readers].index("user") if "user" in readers else None
    named, usable = set(), set()
    for number, fields in rows:
        try:
            values = [read(text) for read, text in zip(readers.values(), fields, strict=True)]
        except BadField as bad:
            report.note(bad.problem, f"line {number}: {bad}")
            if user is not None:
                named.add(fields[user])
            continue
        if user is not None:
            usable.add(fields[user])
        yield number, values
    for lost in sorted(named - usable):
        report.note("user without a usable sample", f"user {shown(lost)}")


def reader(field: str, text_ids: bool = False) -> Reader:
    """What reads a field: an id, unless it is a label or a time."""
    match field:
        case "label":
            return binary_label
        case "time":
            return finite_time
    return partial(text_id if text_ids else number_id, what=field)


def number_id(text: str, what: str) -> int:
    try:
        value = int(text)
    except ValueError:
        raise BadField(f"{what} is not a whole number", text) from None
    if not 0 <= value <= LARGEST_ID:
        raise BadField(f"{what} is negative or too large", text)
    return value


def text_id(text: str, what: str) -> str:
    value = text.strip()
    if not value:
        raise BadField(f"{what} is empty", text)
    return value


def binary_label(text: str) -> int:
    value = _real(text)
    if value not in (0, 1):
        raise BadField("label is not 0 or 1", text)
    return int(value)


def finite_time(text: str) -> float:
    value = _real(text)
    if not math.isfinite(value):
        raise BadField("time is not a finite number", text)
    return value


def _real(text: str) -> float:
    """The number that a text says, NaN where it says none."""
    try:
        return float(text)
    except ValueError:
        return math.nan
