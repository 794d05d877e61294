"""Catalogues as bytes: read strictly and bounded, written whole (spec catalogue 2)."""

import gzip
import re
import zlib
from pathlib import Path

import msgspec
import numpy as np

from sfsl.checksums import with_json_sum, without_json_sum
from sfsl.data.catalogue import (
    FORMAT,
    Catalogue,
    CatalogueContent,
    CatalogueStatistics,
    CatalogueTable,
    Ids,
    TableContent,
    unless_plain,
)
from sfsl.data.lines import GZIP_MAGIC, LARGEST_ID
from sfsl.durable import system_errors_as, write_whole
from sfsl.errors import InputError

MOST_BYTES = 1 << 29  # of a file, unpacked
MOST_SERVED = 1 << 26  # of what a server gives to clients
MOST_TABLES = 64
LONGEST_ID = 256
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
_PARENT = re.compile(r"[0-9a-f]{64}")


def read_catalogue(path: str | Path) -> Catalogue:
    path = Path(path)
    try:
        with path.open("rb") as raw:
            packed = raw.peek(2)[:2] == GZIP_MAGIC
            data = (gzip.GzipFile(fileobj=raw) if packed else raw).read(MOST_BYTES + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path} breaks off or is damaged: {error}") from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None
    return decode_catalogue(without_json_sum(data, str(path), "restore it, or make it again"), str(path))


def write_catalogue(catalogue: Catalogue, path: str | Path, mode: int | None = None) -> None:
    """Write a file whole, with rights ``mode``; a name that ends in .gz has it compressed, always alike."""
    path, data = Path(path), with_json_sum(catalogue.whole)
    with system_errors_as(InputError, f"write {path}"):
        packed = gzip.compress(data, mtime=0) if path.suffix == ".gz" else data + b"\n"
        write_whole(path, packed, mode=mode)


def decode_catalogue(data: bytes, where: str, limit: int = MOST_BYTES) -> Catalogue:
    """The catalogue in these bytes. Raises ``InputError`` with what is wrong and what ``where`` it is in."""
    if len(data) > limit:
        raise InputError(f"{where} has more than {limit:,} bytes, which is more than a catalogue may have")
    try:
        found = msgspec.json.decode(data, type=CatalogueContent)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise InputError(f"{where} is no catalogue: {error}. sfsl catalogue make makes one") from None
    if found.format != FORMAT:
        raise InputError(f"{where} has the format {found.format[:40]!r}; this version reads {FORMAT!r}")
    if len(found.tables) > MOST_TABLES or not 1 <= found.version < 2**32:
        raise InputError(f"{where}: {len(found.tables)} tables, version {found.version}; that cannot be")
    if found.parent is not None and not _PARENT.fullmatch(found.parent):
        raise InputError(f"{where}: its parent is no digest of 64 hexadecimal digits")
    try:
        if found.statistics is not None:
            _require_statistics(found.statistics, found.tables)
        tables = tuple(_table(table) for table in found.tables)
        parent = None if found.parent is None else bytes.fromhex(found.parent)
        return Catalogue(tables, found.users, found.version, parent, found.statistics)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _table(given: TableContent) -> CatalogueTable:
    if not _NAME.fullmatch(given.name):
        raise InputError(f"{given.name[:64]!r} is no name of a table")
    follows = None
    if given.map is not None:
        # A number too large for any row must not overflow, but be refused like any other.
        follows = np.array([min(max(row, -1), LARGEST_ID) for row in given.map], np.int64)
    return CatalogueTable(given.name, given.rows, _ids(given), given.source, follows)


def _ids(given: TableContent) -> Ids | None:
    if given.ids is None:
        return None
    numbers = [one for one in given.ids if isinstance(one, int)]
    texts = [one for one in given.ids if isinstance(one, str)]
    if numbers and texts:
        raise InputError(f"ids of table {given.name!r} are whole numbers or text, and not some of each")
    if any(not 0 <= one <= LARGEST_ID for one in numbers):
        raise InputError(f"ids of table {given.name!r}: numbers from 0 to 2^62")
    if any(not one or one != one.strip() or len(one) > LONGEST_ID for one in texts):
        raise InputError(
            f"ids of table {given.name!r}: texts of 1 to {LONGEST_ID} characters, without space around them"
        )
    if len(set(given.ids)) != len(given.ids):
        raise InputError(f"ids of table {given.name!r}: two rows have the same")
    return tuple(texts) if texts else unless_plain(np.array(numbers, np.int64))


def _require_statistics(given: CatalogueStatistics, tables: list[TableContent]) -> None:
    counts = [given.clients, *given.rows.values()]
    pairs = [pair for some in given.owners.values() for pair in some]
    known = {table.name: table.rows for table in tables}
    sound = given.clients >= 1 and min(counts) >= 0 and max(counts) < 2**53 and "most" in given.rows
    sound &= all(1 <= owners <= given.clients and rows >= 1 for owners, rows in pairs)
    sound &= all(
        name in known and sum(rows for _, rows in some) <= known[name] for name, some in given.owners.items()
    )
    if not sound:
        raise InputError(
            "its statistics cannot be: clients and rows from 1 up, owners at most as many as clients, rows "
            "at most as many as their table has"
        )
