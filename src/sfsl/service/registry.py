"""What a server must not forget: its deployment, its clients, whose sets it received, whom it invited
(spec network 1).

Every method that changes something returns when the change would survive a power cut. A server holds its
registry alone; ``Registry.beside`` lets an operator look and revoke while it runs. Its SQLite file is
made whole or not at all, and checked before it is trusted.
"""

import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sfsl.crypto.secret import Randomness, SystemRandomness
from sfsl.durable import (
    LITTLE_ROOM,
    Closing,
    FileLock,
    closed_on_error,
    put_in_place,
    room_for,
    system_errors_as,
)
from sfsl.errors import (
    InputError,
    InvalidMessage,
    Revoked,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreInUse,
    UnknownClient,
)
from sfsl.service.identities import Enrolment
from sfsl.service.registry_log import require_log
from sfsl.service.registry_sums import TABLE as SUMS
from sfsl.service.registry_sums import RegistrySums
from sfsl.service.signing import DEPLOYMENT_BYTES, client_id

__all__ = ["ClientRecord", "Enrolment", "Registry"]

APPLICATION = 0x5346534C  # "SFSL"
SCHEMA = 2
_WITHOUT_SUMS = 1  # the schema before; a server's file is brought to this one when it is opened
_MAGIC = b"SQLite format 3\0"
_BUSY_SECONDS = 5.0
_READ_SECONDS = 0.1
_PRAGMAS = (
    "journal_mode = WAL", "synchronous = FULL", "fullfsync = ON", "checkpoint_fullfsync = ON",
    "foreign_keys = ON", "trusted_schema = OFF", "cell_size_check = ON",
)  # fmt: skip

_TABLES = """
CREATE TABLE deployment (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    id BLOB NOT NULL CHECK (typeof(id) = 'blob' AND length(id) = 16)
);
CREATE TABLE clients (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE CHECK (length(id) = 32),
    public BLOB NOT NULL UNIQUE CHECK (typeof(public) = 'blob' AND length(public) = 32),
    enrolled_ms INTEGER NOT NULL CHECK (typeof(enrolled_ms) = 'integer'),
    revoked_ms INTEGER CHECK (typeof(revoked_ms) IN ('integer', 'null')),
    acknowledged INTEGER NOT NULL DEFAULT 0 CHECK (typeof(acknowledged) = 'integer' AND acknowledged >= 0)
);
CREATE TABLE rounds (
    number INTEGER PRIMARY KEY,
    id BLOB NOT NULL UNIQUE CHECK (typeof(id) = 'blob')
);
CREATE TABLE acknowledgements (
    round INTEGER NOT NULL REFERENCES rounds,
    client INTEGER NOT NULL REFERENCES clients,
    PRIMARY KEY (round, client)
) WITHOUT ROWID;
CREATE TABLE invitations (
    period INTEGER NOT NULL CHECK (typeof(period) = 'integer'),
    client INTEGER NOT NULL REFERENCES clients,
    round INTEGER NOT NULL REFERENCES rounds,
    PRIMARY KEY (period, client, round)
) WITHOUT ROWID;
"""
_COLUMNS = "id, public, enrolled_ms, revoked_ms, acknowledged"
_ONE = f"SELECT {_COLUMNS} FROM clients WHERE id = ?"  # noqa: S608 -- nothing in it comes from outside
_PAGE = f"SELECT {_COLUMNS} FROM clients WHERE id > ? ORDER BY id LIMIT 1000"  # noqa: S608
_MOST_ROUND_ID = 64


class RegistryFile:
    """Holds two connections to one file: who reads waits for nobody who writes. A write is one transaction,
    durable when it returns. ``lock`` is None for a visitor beside the server: SQLite keeps the two apart for
    each transaction."""

    def __init__(self, path: Path, lock: FileLock | None) -> None:
        self.path = path
        self._locked = False
        self._lock = lock
        self._process = os.getpid()
        self._one_writes, self._one_reads = threading.Lock(), threading.Lock()
        _require_registry(path)
        if lock is not None:  # otherwise somebody may be writing
            require_log(path)
        with typed(path, "open"):
            self._connection = _connect(path, _BUSY_SECONDS)
        with closed_on_error(self._connection), typed(path, "open"):
            self._sums: RegistrySums | None = None
            self._check()
            # Handlers of requests read, and must not wait: a server has others to answer meanwhile.
            self._reading = _connect(path, _BUSY_SECONDS if lock is None else _READ_SECONDS)

    @classmethod
    def create(cls, path: Path, deployment: bytes) -> None:
        """Make a file at ``path`` whole or not at all: made aside, then renamed."""
        if leftovers := [f"{path}{end}" for end in ("-wal", "-shm") if os.path.exists(f"{path}{end}")]:
            raise StoreError(
                f"{path} is missing, but {' and '.join(leftovers)} are there: a registry was taken away "
                "without them. Put it back, or move them away too if every client is to enrol again"
            )
        aside = path.with_name(path.name + ".new")
        with system_errors_as(StoreError, f"create {path}", "; its folder must be writable"):
            for end in ("", "-wal", "-shm", "-journal"):  # of an earlier attempt that was cut short
                Path(f"{aside}{end}").unlink(missing_ok=True)
            os.close(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            # The last one to close puts all into the one file.
            with typed(path, "create"), contextlib.closing(_connect(aside, _BUSY_SECONDS)) as connection:
                connection.executescript(
                    f"BEGIN IMMEDIATE; PRAGMA application_id = {APPLICATION}; "
                    f"PRAGMA user_version = {SCHEMA}; {_TABLES} {SUMS}"
                )
                with RegistrySums(connection).kept():
                    connection.execute("INSERT INTO deployment VALUES (1, ?)", (deployment,))
                connection.execute("COMMIT")
            put_in_place(aside, path)

    def _check(self) -> None:
        """Refuse another program's file, a later version's, and a damaged one."""
        application, schema = self._number("PRAGMA application_id"), self._number("PRAGMA user_version")
        if application != APPLICATION:
            raise StoreCorrupt(f"{self.path} is no registry of this package, or damaged; restore a backup")
        if schema > SCHEMA:
            raise StoreError(
                f"{self.path} was written by a later version (schema {schema}, this one reads {SCHEMA}); "
                "upgrade sfsl"
            )
        if schema not in (SCHEMA, _WITHOUT_SUMS):
            raise StoreCorrupt(f"{self.path} has schema {schema}, which never was; restore a backup")
        for check, sound in (("integrity_check(1)", [("ok",)]), ("foreign_key_check", [])):
            if (found := self._connection.execute(f"PRAGMA {check}").fetchall()) != sound:
                raise StoreCorrupt(f"{self.path} is damaged: {check} gives {found[0][0]}. Restore a backup")
        if self._lock is not None:
            self._check_length()
        if schema == SCHEMA or self._lock is not None:  # an earlier version's server keeps none
            self._sums = RegistrySums(self._connection)
            if schema == _WITHOUT_SUMS:
                self._sums.add_to_old(SCHEMA)
            self._sums.require(self.path)

    def _check_length(self) -> None:
        """Refuse a file that was cut: SQLite reads what is gone from the last page as zeros. With the log put
        in, it must have its whole length; while a visitor reads, that has to wait for another time."""
        busy, *_ = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        due = self._number("PRAGMA page_count") * self._number("PRAGMA page_size")
        if not busy and self.path.stat().st_size != due:
            raise StoreCorrupt(f"{self.path} is cut short or has bytes too many. Restore a backup")

    def _number(self, query: str) -> int:
        return int(self._connection.execute(query).fetchone()[0])

    @contextlib.contextmanager
    def write(self, seconds: float | None = None) -> Iterator[sqlite3.Connection]:
        """Hold one transaction: all of it is done, durably, or nothing. ``seconds``: how long to wait for
        whoever else writes, 5 where it does not say; then ``StoreInUse``."""
        self._require_open()
        seconds = _BUSY_SECONDS if seconds is None else seconds
        if not self._one_writes.acquire(timeout=seconds):
            raise StoreInUse(f"cannot write {self.path}: another write takes long; try again")
        with contextlib.ExitStack() as held, typed(self.path, "write"):
            held.callback(self._one_writes.release)
            self._locked = True  # until it shows that it is not
            self._connection.execute(f"PRAGMA busy_timeout = {round(1000 * seconds)}")
            self._connection.execute("BEGIN IMMEDIATE")
            self._locked = False
            try:
                with contextlib.nullcontext() if self._sums is None else self._sums.kept():
                    yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:  # a full disk may have ended it already
                    self._connection.execute("ROLLBACK")
                raise

    def read(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        self._require_open()
        with self._one_reads, typed(self.path, "read"):
            return self._reading.execute(query, values).fetchall()

    @property
    def locked(self) -> bool:
        """Whether another process keeps this one from writing."""
        if self._locked:
            with contextlib.suppress(StoreInUse), self.write(seconds=0):
                pass
        return self._locked

    def copy_to(self, path: Path) -> None:
        self._require_open()
        with self._one_writes, typed(self.path, "copy"):
            self._connection.execute("VACUUM INTO ?", (str(path),))

    def _require_open(self) -> None:
        if self._lock is not None:
            self._lock.require()
        elif os.getpid() != self._process:
            raise StoreInUse(f"{self.path} was opened before a fork; open it again in this process")

    def close(self) -> None:
        with self._one_writes, self._one_reads, typed(self.path, "close"):
            self._reading.close()
            self._connection.close()


def _connect(path: Path, seconds: float) -> sqlite3.Connection:
    # Opened, never made: an empty file in place of a lost one would forget who was revoked.
    place = f"{path.as_uri()}?mode=rw"
    connection = sqlite3.connect(
        place, uri=True, timeout=seconds, isolation_level=None, check_same_thread=False
    )
    with closed_on_error(connection):
        for setting in _PRAGMAS:
            connection.execute(f"PRAGMA {setting}")
    return connection


def _require_registry(path: Path) -> None:
    """Refuse what is no registry: SQLite would take an empty file for a new database."""
    try:
        with open(path, "rb") as file:
            start = file.read(len(_MAGIC))
    except FileNotFoundError:
        raise StoreError(f"no registry at {path}; look for it elsewhere, or let a server make one") from None
    except OSError as error:
        raise StoreError(f"cannot open {path}: {error.strerror}") from None
    if start != _MAGIC:
        raise StoreCorrupt(f"{path} is no registry of this package, or damaged; restore a backup")


@contextlib.contextmanager
def typed(path: Path, doing: str) -> Iterator[None]:
    """Raise SQLite's errors as ours."""
    try:
        yield
    except sqlite3.Error as error:
        raise _as_ours(error, path, doing) from None
    except UnicodeDecodeError:  # of a text in a row, or of a name that SQLite's own message quotes
        raise StoreCorrupt(f"cannot {doing} {path}: a text in it is damaged. Restore a backup") from None


def _as_ours(error: sqlite3.Error, path: Path, doing: str) -> StoreError:
    what = f"{doing} {path}"
    match getattr(error, "sqlite_errorcode", 0) & 0xFF:  # the low byte is the kind; what lies above says more
        # SQLITE_ERROR: our queries are fixed, so it is the tables that are not what they should be.
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB | sqlite3.SQLITE_ERROR:
            return StoreCorrupt(f"cannot {what}: {error}. Restore a backup")
        case sqlite3.SQLITE_FULL:
            return _no_room(error, what)
        # The file through which its processes share the log cannot grow, say.
        case sqlite3.SQLITE_IOERR if doing == "write" and room_for(path) < LITTLE_ROOM:
            return _no_room(error, what)
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return StoreInUse(f"cannot {what}: another process holds it; try again")
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM:
            return StoreError(f"cannot {what}: {error}; the file and its folder must be writable")
        case _:
            return StoreError(f"cannot {what}: {error}. What was committed stands; check the disk")


def _no_room(error: sqlite3.Error, what: str) -> StoreFull:
    return StoreFull(f"no room to {what}: {error}. What was committed stands; free some space")


@dataclass(frozen=True)
class ClientRecord:
    id: str
    public: bytes
    enrolled_ms: int
    revoked_ms: int | None
    acknowledged: int


class Registry(Closing):
    """Keeps one file, opened or made. It is safe for several threads of one process."""

    def __init__(self, path: str | os.PathLike[str], *, randomness: Randomness | None = None) -> None:
        self._lock: FileLock | None = FileLock(path)
        real = self._lock.path
        with closed_on_error(self._lock):
            if not real.exists():
                RegistryFile.create(real, (randomness or SystemRandomness()).bytes(DEPLOYMENT_BYTES))
            self._open(real)

    @classmethod
    def beside(cls, path: str | os.PathLike[str]) -> "Registry":
        """Open what is there, without the server's lock: to look and to revoke, never to serve from."""
        registry = cls.__new__(cls)
        registry._lock = None
        registry._open(Path(os.path.realpath(path)))
        return registry

    def _open(self, path: Path) -> None:
        self._file = RegistryFile(path, self._lock)
        with closed_on_error(self._file):
            rows = self._file.read("SELECT id FROM deployment")
            if len(rows) != 1:
                raise StoreCorrupt(f"{path} lacks its deployment id; restore a backup")
        self._deployment: bytes = rows[0][0]

    @property
    def deployment(self) -> bytes:
        """16 random bytes, made once: what is signed for one deployment means nothing at another."""
        return self._deployment

    def enrol(self, public: bytes, now_ms: int) -> str:
        """Take a client in, or find it there already. Whether it may come is for ``Enrolment`` to say."""
        client = client_id(public)
        _require_whole(now_ms)
        with contextlib.suppress(UnknownClient, Revoked):
            self.public_key(client)
            return client  # without a write, for which someone might have to be waited for
        with self._file.write(_READ_SECONDS) as db:  # at a request, which may come back
            known = db.execute("SELECT revoked_ms FROM clients WHERE id = ?", (client,)).fetchone()
            if known is not None and known[0] is not None:
                raise Revoked(f"client {client} was revoked; it needs a new identity")
            if known is None:
                row = (client, bytes(public), now_ms)
                db.execute("INSERT INTO clients (id, public, enrolled_ms) VALUES (?, ?, ?)", row)
        return client

    def revoke(self, client: str, now_ms: int) -> None:
        """Refuse a client from now on, for good. Again changes nothing."""
        _require_whole(now_ms)
        with self._file.write() as db:
            row = (now_ms, _number(db, client))
            db.execute("UPDATE clients SET revoked_ms = ? WHERE number = ? AND revoked_ms IS NULL", row)

    @property
    def locked(self) -> bool:
        """Whether another process keeps this one from writing."""
        return self._file.locked

    def public_key(self, client: str) -> bytes:
        """Return the key of a client that may act, else raise ``UnknownClient`` or ``Revoked``."""
        record = self.client(client)
        if record.revoked_ms is not None:
            raise Revoked(f"client {client} was revoked")
        return record.public

    def client(self, client: str) -> ClientRecord:
        """Return all that is known of a client, revoked or not."""
        rows = self._file.read(_ONE, (client,))
        if not rows:
            raise UnknownClient(f"client {client} is not enrolled here")
        return self._record(rows[0])

    def clients(self) -> Iterator[ClientRecord]:
        """Yield everyone ever enrolled, in order of id."""
        last = ""
        while rows := self._file.read(_PAGE, (last,)):
            yield from map(self._record, rows)
            last = rows[-1][0]

    def count(self) -> int:
        """Return how many clients are enrolled and not revoked."""
        return int(self._file.read("SELECT count(*) FROM clients WHERE revoked_ms IS NULL")[0][0])

    def exposures(self) -> tuple[tuple[int, int], ...]:
        """Return how many enrolled clients were in so many rounds, as pairs (rounds, clients), by rounds."""
        query = "SELECT acknowledged, count(*) FROM clients WHERE revoked_ms IS NULL GROUP BY acknowledged"
        return tuple(sorted((int(rounds), int(clients)) for rounds, clients in self._file.read(query)))

    def acknowledged(self, client: str) -> int:
        """Return in how many rounds this server received the client's masked set. More than the client
        itself remembers means that its state is an old copy (spec privacy 5.5)."""
        return self.client(client).acknowledged

    def acknowledge(self, round_id: bytes, clients: Iterable[str]) -> None:
        """Count a round for these clients; for each of them once, however often it is said."""
        with self._file.write() as db:
            number = _round(db, round_id)
            for client in clients:
                pair = (number, _number(db, client))
                if db.execute("INSERT OR IGNORE INTO acknowledgements VALUES (?, ?)", pair).rowcount:
                    db.execute(
                        "UPDATE clients SET acknowledged = acknowledged + 1 WHERE number = ?", pair[1:]
                    )

    def invite(self, period: int, round_id: bytes, clients: Iterable[str]) -> None:
        """Note that these are invited, all or none. Invitations leave afterwards, so that a crash cannot
        make the server invite someone twice. A revoked client is not invited."""
        _require_whole(period)
        with self._file.write() as db:
            number = _round(db, round_id)
            for client in clients:
                one = (period, _number(db, client, active=True), number)
                db.execute("INSERT OR IGNORE INTO invitations VALUES (?, ?, ?)", one)

    def invited(self, period: int) -> frozenset[str]:
        rows = self._file.read(
            "SELECT DISTINCT id FROM invitations JOIN clients ON client = number WHERE period = ?", (period,)
        )
        return frozenset(row[0] for row in rows)

    def copy_to(self, path: Path) -> None:
        """Write a copy as of now into a new file, whoever else writes meanwhile."""
        self._file.copy_to(path)

    def _record(self, row: tuple[str, bytes, int, int | None, int]) -> ClientRecord:
        record = ClientRecord(*row)
        try:
            sound = client_id(record.public) == record.id
        except InvalidMessage:
            sound = False
        if not sound:
            raise StoreCorrupt(
                f"{self._file.path} is damaged: a client's key and id differ; restore a backup"
            )
        return record

    def close(self) -> None:
        self._file.close()
        if self._lock is not None:
            self._lock.close()


def _number(db: sqlite3.Connection, client: str, *, active: bool = False) -> int:
    """Return the row of a client. ``active``: which must not be revoked."""
    row = db.execute("SELECT number, revoked_ms FROM clients WHERE id = ?", (client,)).fetchone()
    if row is None:
        raise UnknownClient(f"client {client} is not enrolled here")
    if active and row[1] is not None:
        raise Revoked(f"client {client} was revoked")
    return int(row[0])


def _require_whole(number: int) -> None:
    if not -(2**63) <= number < 2**63:
        raise InputError(f"{number} is no period or time that a registry can keep")


def _round(db: sqlite3.Connection, round_id: bytes) -> int:
    if not 1 <= len(round_id) <= _MOST_ROUND_ID:
        raise InputError(f"a round id has 1 to {_MOST_ROUND_ID} bytes, not {len(round_id)}")
    db.execute("INSERT OR IGNORE INTO rounds (id) VALUES (?)", (bytes(round_id),))
    return int(db.execute("SELECT number FROM rounds WHERE id = ?", (bytes(round_id),)).fetchone()[0])
