"""Sums over the rows of a registry, which find what SQLite's own checks do not: a number that became another.

Every table has a count of its rows and a sum, modulo 2^128, of a digest of each. A transaction adds and
subtracts those of the rows that it changes, and whoever opens the file adds up all of them. Triggers tell
which rows these are; they belong to the connection, not to the file, and nothing in it can leave them out.
"""

import contextlib
import hashlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from sfsl.errors import StoreCorrupt

TABLE = """
CREATE TABLE sums (
    name TEXT PRIMARY KEY,
    rows INTEGER NOT NULL CHECK (typeof(rows) = 'integer'),
    sum BLOB NOT NULL CHECK (typeof(sum) = 'blob' AND length(sum) = 16)
) WITHOUT ROWID;
"""
_COLUMNS = {
    "deployment": "one, id",
    "clients": "number, id, public, enrolled_ms, revoked_ms, acknowledged",
    "rounds": "number, id",
    "acknowledgements": "round, client",
    "invitations": "period, client, round",
}
_BYTES = 16
_MODULUS = 1 << (8 * _BYTES)


class RegistrySums:
    """Watches one connection. ``kept`` holds within a transaction that changes rows, before its commit."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection
        self._changes: dict[str, tuple[int, int]] = {}
        connection.create_function("sfsl_row_changed", -1, self._changed)
        for table, columns in _COLUMNS.items():
            for event, sign, row in (
                ("INSERT", 1, "NEW"), ("DELETE", -1, "OLD"), ("UPDATE", -1, "OLD"), ("UPDATE", 1, "NEW"),
            ):  # fmt: skip
                values = ", ".join(f"{row}.{name}" for name in columns.split(", "))
                connection.execute(
                    f"CREATE TEMP TRIGGER sfsl_{event}_{table}_{row} AFTER {event} ON main.{table} BEGIN "
                    f"SELECT sfsl_row_changed('{table}', {sign}, {values}); END"
                )

    def _changed(self, table: str, sign: int, *row: object) -> None:
        rows, total = self._changes.get(table, (0, 0))
        self._changes[table] = (rows + sign, total + sign * _digest(table, row))

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        self._changes.clear()
        yield
        for table, (rows, total) in self._changes.items():
            known, before = self._db.execute(
                "SELECT rows, sum FROM sums WHERE name = ?", (table,)
            ).fetchone() or (0, bytes(_BYTES))
            after = (int.from_bytes(before) + total) % _MODULUS
            self._db.execute(
                "INSERT OR REPLACE INTO sums VALUES (?, ?, ?)",
                (table, known + rows, after.to_bytes(_BYTES)),
            )

    def add_to_old(self, schema: int) -> None:
        """Give sums to a file of an earlier version, all at once."""
        self._db.executescript(f"BEGIN IMMEDIATE; {TABLE}")
        try:
            self._db.executemany("INSERT INTO sums VALUES (?, ?, ?)", self._counted())
            self._db.execute(f"PRAGMA user_version = {schema}")
            self._db.execute("COMMIT")
        except BaseException:
            self._db.execute("ROLLBACK")
            raise

    def require(self, path: Path) -> None:
        """Refuse a file of which some row is not what was written."""
        self._db.execute("BEGIN")  # one view of it, also while a server writes
        try:
            found = {one for one in self._counted() if one[1]}
            kept = {one for one in self._db.execute("SELECT name, rows, sum FROM sums") if one[1]}
        finally:
            self._db.execute("ROLLBACK")
        if found != kept:
            tables = sorted({str(one[0]) for one in found ^ kept})
            raise StoreCorrupt(f"{path} is damaged: rows of {', '.join(tables)} changed. Restore a backup")

    def _counted(self) -> list[tuple[str, int, bytes]]:
        counted = []
        for table, columns in _COLUMNS.items():
            rows = total = 0
            for row in self._db.execute(f"SELECT {columns} FROM {table}"):  # noqa: S608 -- our own names
                rows, total = rows + 1, total + _digest(table, row)
            counted.append((table, rows, (total % _MODULUS).to_bytes(_BYTES)))
        return counted


def _digest(table: str, row: tuple[object, ...]) -> int:
    return int.from_bytes(hashlib.sha256(repr((table, *row)).encode()).digest()[:_BYTES])
