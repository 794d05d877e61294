"""Rows in CSV files: a kind of row is a struct whose fields are the columns, and a file is always whole."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from sfsl.durable import write_whole
from sfsl.errors import InputError
from sfsl_research.summed_lines import with_sums, without_sums

Row = TypeVar("Row", bound=msgspec.Struct)


def columns(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    return kind.__struct_fields__


def read_sheet(path: Path, kind: type[Row]) -> list[Row]:
    """No rows where there is no such file. An empty cell is what was not measured or not printed."""
    try:
        reader = csv.DictReader(_lines(path))
        if tuple(reader.fieldnames or ()) != columns(kind):
            raise InputError(_unreadable(path, f"its columns are not {', '.join(columns(kind))}"))
        return [_row(path, number, cells, kind) for number, cells in enumerate(reader, 2)]
    except FileNotFoundError:
        return []
    except (OSError, csv.Error) as error:
        raise InputError(_unreadable(path, str(error))) from None


def _lines(path: Path) -> list[str]:
    try:
        return without_sums(path.read_bytes().decode())
    except ValueError as error:
        raise InputError(_unreadable(path, str(error))) from None


def write_sheet(path: Path, kind: type[Row], rows: Sequence[Row]) -> None:
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(columns(kind))
    lines.writerows([_cell(getattr(row, name)) for name in columns(kind)] for row in rows)
    put(path, with_sums(text.getvalue()))


def put(path: Path, data: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, data)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}; choose another folder with --out") from None


def _row(path: Path, number: int, cells: dict[str, str], kind: type[Row]) -> Row:
    known = {name: value for name, value in cells.items() if value != ""}
    try:
        return msgspec.convert(known, kind, strict=False)
    except msgspec.ValidationError as error:
        raise InputError(_unreadable(path, f"line {number}: {error}")) from None


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _unreadable(path: Path, why: str) -> str:
    return f"cannot read {path}: {why}. Remove the file and run its target again, or choose another --out"
