"""Lines of a text file, compressed or not, and the fields in them."""

import csv
import gzip
import io
import math
import zlib
from collections.abc import Iterator
from pathlib import Path

from sfsl.data.report import LoadReport
from sfsl.errors import InputError

GZIP_MAGIC = b"\x1f\x8b"
SHOWN = 60
LARGEST_ID = 2**62


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
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if value not in (0, 1):
        raise BadField("label is not 0 or 1", text)
    return int(value)


def finite_time(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise BadField("time is not a finite number", text)
    return value
