"""Tables of other people: files with separators, Parquet, JSON lines, frames. They are read a block of lines
at a time, each column of it as one array, so that millions of lines take seconds."""

import gzip
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BufferedReader
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from sfsl.arrays import Indices
from sfsl.data.fetched import require_as_fetched
from sfsl.data.lines import GZIP_MAGIC, LoadReport, shown
from sfsl.data.samples import Column
from sfsl.errors import InputError

# A path, or whatever has named columns: a frame of pandas or polars, a mapping of arrays.
Source = Any

BLOCK = 4 << 20  # bytes of a text that are looked at together
LONGEST_LINE = 64 << 20
LONGEST_VALUE = 256  # of a value in bytes; a longer one is cut here, so that it is seen to be too long
SEPARATORS = (",", "\t", ";", "|")
_FIRST = 1000  # lines of JSON whose keys are the columns
_PADDING = 32  # spaces and quotes around a value that are taken off, at the most
_NEWLINE, _QUOTE = ord("\n"), ord('"')
# How files begin that are taken for tables by mistake.
_OTHERS = {
    b"PK\x03\x04": "a zip archive, as workbooks of spreadsheets are too; unpack it, or save the sheet as CSV",
    b"\xff\xfe": "text in UTF-16; save it as UTF-8",
    b"\xfe\xff": "text in UTF-16; save it as UTF-8",
    b"BZh": "packed with bzip2; unpack it, or pack it with gzip",
    b"\xfd7zXZ": "packed with xz; unpack it, or pack it with gzip",
    b"\x28\xb5\x2f\xfd": "packed with zstd; unpack it, or pack it with gzip",
    b"%PDF": "a PDF, which is no table; export the data as CSV",
    b"SQLite format 3": "a database; export the table as CSV",
    b"\x89HDF": "HDF5; write the table as CSV or Parquet",
    b"\x93NUMPY": "an array without names; write the columns as CSV or Parquet",
    b"<": "a web page or XML, perhaps of a login instead of the file; fetch it again, or export it as CSV",
    b"[": "one list of JSON; write one object per line instead",
}


@dataclass(frozen=True)
class Block:
    """Some lines: their numbers, and what they say in each column that was asked for."""

    lines: Indices
    columns: Mapping[str, Column]


@dataclass(frozen=True)
class Table:
    """``names`` are its columns; ``read`` gives some of them block by block. Lines that are no lines of this
    table are left out, and noted in the report that it was opened with."""

    kind: str
    names: Sequence[str]
    read: Callable[[Sequence[str]], Iterator[Block]]


def open_table(source: Source, report: LoadReport, separator: str = "") -> Table:
    """Open a file, recognised by its content, or a frame. The separator of a text is the one that its first
    line has most of, unless one is given."""
    if not isinstance(source, str | Path):
        return _frame(source, report)
    path = Path(source)
    try:
        with path.open("rb") as file:
            start = file.read(16)
    except OSError as error:
        raise InputError(f"{report.source}: cannot be read: {error.strerror or error}") from None
    require_as_fetched(path)
    if start.startswith(b"PAR1"):
        return _parquet(path, report)
    return _text(path, report, separator)


def place_of(name: str, table: Table, where: str) -> int:
    """The place of a column. Raises where there is none of this name, or there are two."""
    if (count := list(table.names).count(name)) != 1:
        what = "no column" if not count else f"{count} columns"
        raise InputError(f"{where} has {what} named {name!r}; it has {described(table.names)}")
    return list(table.names).index(name)


def described(names: Sequence[str]) -> str:
    """Names in a message: not more than a dozen."""
    more = f" and {len(names) - 12} more" if len(names) > 12 else ""
    return ", ".join(shown(one)[1:-1] for one in names[:12]) + more


# -- text ----------------------------------------------------------------------------------------------


def _whole_lines(path: Path, report: LoadReport) -> Iterator[bytes]:
    """The bytes of a text, unpacked, some whole lines at a time, each ended by a newline alone."""
    rest = b""
    try:
        with path.open("rb") as raw:
            stream = gzip.GzipFile(fileobj=raw) if raw.peek(2)[:2] == GZIP_MAGIC else raw
            while piece := _next(stream, report, BLOCK):
                text = (rest + piece).replace(b"\r\n", b"\n").replace(b"\0", b"\x01")
                # A carriage return alone ends a line too; the last one may belong to a newline to come.
                head, last = (text[:-1], b"\r") if text.endswith(b"\r") else (text, b"")
                head = head.replace(b"\r", b"\n")
                cut = head.rfind(b"\n") + 1
                if cut:
                    yield head[:cut]
                rest = head[cut:] + last
                if len(rest) > LONGEST_LINE:
                    raise InputError(
                        f"{report.source}: a line has more than {LONGEST_LINE >> 20} MiB; it must be a text "
                        "with one sample per line"
                    )
    except OSError as error:
        raise InputError(f"{report.source}: cannot be read: {error.strerror or error}") from None
    if rest.strip():
        yield rest.rstrip(b"\r") + b"\n"


def _next(stream: BufferedReader | gzip.GzipFile, report: LoadReport, size: int) -> bytes:
    """About ``size`` bytes; what there is of them where the file breaks off."""
    pieces, got = [], 0
    try:
        while got < size and BREAKS_OFF not in report.problems and (piece := stream.read1(size - got)):
            pieces.append(piece)
            got += len(piece)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        lines = report.lines + sum(piece.count(b"\n") for piece in pieces)
        report.note(BREAKS_OFF, f"after line {lines}: {error}")
    return b"".join(pieces)


BREAKS_OFF = "the file breaks off"


def _text(path: Path, report: LoadReport, separator: str) -> Table:
    blocks = _whole_lines(path, report)
    first = next(blocks, b"").removeprefix(b"\xef\xbb\xbf")
    for begin, what in _OTHERS.items():
        if first.startswith(begin):
            raise InputError(f"{report.source} is {what}")
    stripped = first.lstrip()
    if not stripped:
        broken = f" ({report.examples[BREAKS_OFF]})" if BREAKS_OFF in report.problems else ""
        raise InputError(f"{report.source}: it is empty{broken}; its first line should name its columns")
    skipped = len(first) - len(stripped)
    header = first[: skipped + stripped.index(b"\n")]
    number = header.count(b"\n") + 1
    if stripped.startswith(b"{"):
        return _json_lines(report, first, blocks)
    try:
        line = header[skipped:].decode()
    except UnicodeDecodeError:
        line = "\x01"
    if "\x01" in line:
        raise InputError(f"{report.source} is not text in UTF-8; it must be a CSV with names of columns")
    separator = separator or max(SEPARATORS, key=lambda one: _count(line, one))
    names = [one.strip().strip('"').strip() for one in _split(line, separator)]
    if all(_is_number(one) for one in names):
        such = separator.join(("user", "item", "rating", "time")[: len(names)])
        raise InputError(
            f"{report.source}: its first line {shown(line)} names no columns; put a line before it that "
            f"names all {len(names)}, such as {such}"
        )
    report.lines = number

    def read(wanted: Sequence[str]) -> Iterator[Block]:
        places = {one: names.index(one) for one in wanted}
        yield _parsed(first[len(header) + 1 :], separator, places, len(names), report)
        for block in blocks:
            yield _parsed(block, separator, places, len(names), report)

    return Table("text", names, read)


def _count(line: str, separator: str) -> int:
    return len(_split(line, separator))


def _split(line: str, separator: str) -> list[str]:
    """The fields of a header: a separator in quotes is none."""
    parts, fields = line.split(separator), [""]
    for part in parts:
        fields[-1] += part
        if fields[-1].count('"') % 2 == 0:
            fields.append("")
        else:
            fields[-1] += separator
    return fields[:-1] or [line]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


_PADS = np.zeros(256, bool)
_PADS[[ord(one) for one in ' "\t\n']] = True


def _parsed(text: bytes, separator: str, places: Mapping[str, int], width: int, report: LoadReport) -> Block:
    """Cut lines into fields with array operations: where separators, quotes and ends of lines stand."""
    if len(separator) > 1:
        text, separator = text.replace(separator.encode(), b"\x1f"), "\x1f"
    buffer = np.frombuffer(text + b"\n" * (LONGEST_VALUE + 1), np.uint8)  # room for a window at the end
    ends = np.flatnonzero(buffer[: len(text)] == _NEWLINE)
    starts = np.concatenate([[0], ends[:-1] + 1]).astype(np.int64)[: len(ends)]
    first, report.lines = report.lines + 1, report.lines + len(ends)
    marks = np.flatnonzero(buffer[: len(text)] == ord(separator))
    unclosed = np.zeros(len(ends), bool)
    if b'"' in text:
        quotes = np.cumsum(buffer == _QUOTE)
        before = quotes[starts] - (buffer[starts] == _QUOTE)
        unclosed = (quotes[ends] - before) % 2 == 1
        marks = marks[(quotes[marks] - before[np.searchsorted(ends, marks)]) % 2 == 0]
    begin, stop = _trimmed(buffer, starts, ends)
    blank = begin == stop
    mark = np.searchsorted(marks, starts)
    count = np.searchsorted(marks, ends) - mark
    few = count < max(places.values(), default=0)
    many = count >= width
    if many.any():  # a field too many is none if nothing is in it
        solid = np.cumsum(~_PADS[buffer] & (buffer != ord(separator)))
        many[many] = solid[ends[many] - 1] > solid[marks[mark[many] + width - 1]]
    wrong = {"a quote is not closed": unclosed, "too few fields": few, "too many fields": many}
    good = ~blank
    report.rows += int(good.sum())
    for problem, which in wrong.items():
        if (lost := np.flatnonzero(which & good)).size:
            line = text[starts[lost[0]] : ends[lost[0]]].decode(errors="replace")
            report.note(problem, f"line {first + lost[0]}: {problem}: {shown(line)}", len(lost))
        good &= ~which
    kept = np.flatnonzero(good)
    columns = {}
    for name, place in places.items():
        left = marks[mark[kept] + place - 1] + 1 if place else starts[kept]
        inside = place < count[kept]
        right = ends[kept].copy()
        right[inside] = marks[mark[kept][inside] + place]
        columns[name] = _gathered(buffer, *_trimmed(buffer, left, right))
    return Block(first + kept, columns)


def _trimmed(buffer: NDArray[np.uint8], start: Indices, stop: Indices) -> tuple[Indices, Indices]:
    """Where fields begin and end without the spaces and quotes around them."""
    for _ in range(_PADDING):
        more = (start < stop) & _PADS[buffer[start]]
        if not more.any():
            break
        start = start + more
    for _ in range(_PADDING):
        more = (start < stop) & _PADS[buffer[stop - 1]]
        if not more.any():
            break
        stop = stop - more
    return start, stop


def _gathered(buffer: NDArray[np.uint8], start: Indices, stop: Indices) -> Column:
    """The bytes of fields, one text each."""
    width = int(min(max((stop - start).max(initial=1), 1), LONGEST_VALUE + 1))
    taken = np.lib.stride_tricks.sliding_window_view(buffer, width)[start]
    taken[np.arange(width) >= (stop - start)[:, None]] = 0
    return taken.reshape(-1).view(f"S{width}")


# -- JSON lines ----------------------------------------------------------------------------------------


def _json_lines(report: LoadReport, first: bytes, rest: Iterator[bytes]) -> Table:
    names: dict[str, None] = {}
    for line in first.splitlines()[:_FIRST]:
        try:
            names |= dict.fromkeys(msgspec.json.decode(line, type=dict[str, Any]))
        except msgspec.MsgspecError:
            continue
    if not names:
        begin = first.lstrip().splitlines()[0].decode(errors="replace")
        raise InputError(
            f"{report.source}: its first line {shown(begin)} is no whole JSON object; write one per line"
        )

    def read(wanted: Sequence[str]) -> Iterator[Block]:
        keys = {f"field{place}": name for place, name in enumerate(wanted)}
        made = msgspec.defstruct("Line", [(key, Any, None) for key in keys], rename=keys)
        decoder, values = msgspec.json.Decoder(made), attrgetter(*keys)
        yield _json_block(first, decoder, values, keys, report)
        for text in rest:
            yield _json_block(text, decoder, values, keys, report)

    return Table("JSON lines", list(names), read)


def _json_block(
    text: bytes, decoder: Any, values: Callable[[Any], Any], keys: Mapping[str, str], report: LoadReport
) -> Block:
    first, report.lines = report.lines + 1, report.lines + text.count(b"\n")
    try:
        # Blank lines would shift the numbers of those that follow.
        rows = decoder.decode_lines(text)
        lines = np.arange(first, first + len(rows))
        if len(rows) != text.count(b"\n"):
            raise msgspec.DecodeError("blank lines")
    except msgspec.MsgspecError:
        rows, lines = _json_line_by_line(text, decoder, first, report)
    report.rows += len(rows)
    columns = zip(*map(values, rows), strict=True) if len(keys) > 1 else [map(values, rows)]
    read = {name: objects(column) for name, column in zip(keys.values(), columns, strict=False)}
    return Block(lines, read or {name: objects([]) for name in keys.values()})


def _json_line_by_line(
    text: bytes, decoder: Any, first: int, report: LoadReport
) -> tuple[list[Any], Indices]:
    """A block in which some line is no JSON object."""
    rows, lines = [], []
    for number, line in enumerate(text.splitlines(), start=first):
        if not line.strip():
            continue
        try:
            rows.append(decoder.decode(line))
            lines.append(number)
        except msgspec.MsgspecError:
            report.rows += 1
            said = shown(line.decode(errors="replace"))
            report.note("not a JSON object", f"line {number}: not a JSON object: {said}")
    return rows, np.array(lines, np.int64)


# -- Parquet and frames --------------------------------------------------------------------------------


def _parquet(path: Path, report: LoadReport) -> Table:
    try:
        import pyarrow.parquet as parquet  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        raise InputError(
            f"{report.source}: reading Parquet needs pyarrow; install sfsl[parquet], or write the file as CSV"
        ) from None
    try:
        file = parquet.ParquetFile(path)
    except (OSError, ValueError) as error:  # pyarrow's own errors derive from these
        raise InputError(f"{report.source}: cannot be read as Parquet: {error}") from None

    def read(wanted: Sequence[str]) -> Iterator[Block]:
        try:
            for batch in file.iter_batches(columns=list(dict.fromkeys(wanted))):
                columns = {name: _from_arrow(batch.column(name), name, report) for name in wanted}
                yield _rows(columns, batch.num_rows, report)
        except (OSError, ValueError) as error:
            raise InputError(f"{report.source}: cannot be read as Parquet: {error}") from None

    return Table("Parquet", file.schema_arrow.names, read)


def _rows(columns: Mapping[str, Column], rows: int, report: LoadReport) -> Block:
    first, report.lines, report.rows = report.lines + 1, report.lines + rows, report.rows + rows
    return Block(np.arange(first, first + rows), columns)


def _from_arrow(array: Any, name: str, report: LoadReport) -> Column:
    import pyarrow as arrow  # type: ignore[import-not-found,import-untyped,unused-ignore]

    kind = arrow.types
    if kind.is_dictionary(array.type):
        array = array.dictionary_decode()
    if kind.is_nested(array.type):
        raise InputError(f"{report.source}: column {name!r} holds {array.type}; a field is one value")
    has_gaps = kind.is_floating(array.type) or kind.is_timestamp(array.type) or kind.is_date(array.type)
    if has_gaps or (not array.null_count and (kind.is_integer(array.type) or kind.is_boolean(array.type))):
        found: Column = array.to_numpy(zero_copy_only=False)
        return found
    return np.asarray(array.cast(arrow.string()).fill_null("").to_numpy(zero_copy_only=False))


def _frame(source: Any, report: LoadReport) -> Table:
    names = getattr(source, "columns", None)
    names = list(source) if names is None and isinstance(source, Mapping) else names
    if names is None:
        raise InputError(
            f"{type(source).__name__} is no table; give a file, a frame of pandas or polars, or a mapping "
            "from names to arrays"
        )

    def read(wanted: Sequence[str]) -> Iterator[Block]:
        columns = {name: np.asarray(source[name]) for name in wanted}
        sizes = {column.shape for column in columns.values()}
        if len(sizes) != 1 or len(min(sizes)) != 1:
            raise InputError(f"{report.source}: columns of one length are needed")
        yield _rows(columns, min(sizes)[0], report)

    return Table(type(source).__name__, [str(one) for one in names], read)


def objects(values: Any) -> Column:
    """Objects of Python as an array of them."""
    return np.fromiter(values, object)
