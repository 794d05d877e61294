"""Lines of a text file, and what is said about those that cannot be used."""

import gzip
import io
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from sfsl.errors import InputError


@dataclass
class LoadReport:
    """``problems`` counts what was wrong by kind; ``examples`` keeps the first of each kind. ``lines`` are
    all of a file, ``rows`` those of a table that should be samples.

    A problem in one line does not always cost a sample: a bad id in a history only shortens it.
    """

    source: str
    lines: int = 0
    samples: int = 0
    problems: dict[str, int] = field(default_factory=dict)
    examples: dict[str, str] = field(default_factory=dict)
    rows: int = 0
    drawn: str = ""

    def note(self, problem: str, example: str, count: int = 1) -> None:
        self.problems[problem] = self.problems.get(problem, 0) + count
        self.examples.setdefault(problem, example)

    def __str__(self) -> str:
        head = f"{self.source}: {self.samples:,} samples from {self.lines:,} lines"
        kinds = (f"{count:,} x {kind} ({self.examples[kind]})" for kind, count in self.problems.items())
        return "; ".join([head, *kinds, *([self.drawn] if self.drawn else [])])


GZIP_MAGIC = b"\x1f\x8b"
SHOWN = 60
LARGEST_ID = 2**62

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


def reader(field: str) -> Reader:
    """What reads a field: an id, unless it is a label."""
    return binary_label if field == "label" else partial(number_id, what=field)


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


def _real(text: str) -> float:
    """The number that a text says, NaN where it says none."""
    try:
        return float(text)
    except ValueError:
        return math.nan
