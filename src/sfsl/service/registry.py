"""What a server must not forget: its deployment, its clients, whose sets it received, whom it invited
(spec network 1).

Every method that changes something returns when the change would survive a power cut. A server holds its
registry alone; ``Registry.beside`` lets an operator look and revoke while it runs.
"""

import os
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sfsl.crypto.secret import Randomness, SystemRandomness
from sfsl.durable.lock import Closing, FileLock
from sfsl.errors import InputError, InvalidMessage, Revoked, StoreCorrupt, UnknownClient
from sfsl.service.identities import Enrolment
from sfsl.service.registry_file import RegistryFile
from sfsl.service.signing import DEPLOYMENT_BYTES, client_id

__all__ = ["ClientRecord", "Enrolment", "Registry"]

_COLUMNS = "id, public, enrolled_ms, revoked_ms, acknowledged"
_ONE = f"SELECT {_COLUMNS} FROM clients WHERE id = ?"  # noqa: S608 -- nothing in it comes from outside
_PAGE = f"SELECT {_COLUMNS} FROM clients WHERE id > ? ORDER BY id LIMIT 1000"  # noqa: S608
_MOST_ROUND_ID = 64


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
        try:
            if not real.exists():
                RegistryFile.create(real, (randomness or SystemRandomness()).bytes(DEPLOYMENT_BYTES))
            self._open(real)
        except BaseException:
            self._lock.close()
            raise

    @classmethod
    def beside(cls, path: str | os.PathLike[str]) -> "Registry":
        """Open what is there, without the server's lock: to look and to revoke, never to serve from."""
        registry = cls.__new__(cls)
        registry._lock = None
        registry._open(Path(os.path.realpath(path)))
        return registry

    def _open(self, path: Path) -> None:
        self._file = RegistryFile(path, self._lock)
        try:
            rows = self._file.read("SELECT id FROM deployment")
            if len(rows) != 1:
                raise StoreCorrupt(f"{path} lacks its deployment id; restore a backup")
        except BaseException:
            self._file.close()
            raise
        self._deployment: bytes = rows[0][0]

    @property
    def deployment(self) -> bytes:
        """16 random bytes, made once: what is signed for one deployment means nothing at another."""
        return self._deployment

    def enrol(self, public: bytes, now_ms: int) -> str:
        """Take a client in, or find it there already. Whether it may come is for ``Enrolment`` to say."""
        client = client_id(public)
        _require_whole(now_ms)
        with self._file.write() as db:
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
