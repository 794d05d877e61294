"""The registry: enrolled once, revoked for good, counted once per round, durable; and who may enrol."""

import contextlib
import sqlite3
import threading
from pathlib import Path

import pytest

from sfsl.crypto.secret import Identity
from sfsl.errors import (
    InputError,
    InvalidMessage,
    ParameterError,
    Refused,
    Revoked,
    StoreCorrupt,
    StoreError,
    StoreInUse,
    UnknownClient,
)
from sfsl.service import registry as registry_module
from sfsl.service.registry import Enrolment, Registry
from sfsl.service.signing import client_id
from sfsl.testing import SeededRandomness

RANDOM = SeededRandomness("registry")
ADA, BOB, EVE = (Identity.generate(RANDOM).public for _ in range(3))
NOW = 1_800_000_000_000
R1, R2 = bytes(16), bytes([1]) * 16


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "registry.db"


def test_a_deployment_id_is_made_once(path: Path, tmp_path: Path) -> None:
    with Registry(path) as registry:
        made = registry.deployment
        assert len(made) == 16
    with Registry(path) as registry:
        assert registry.deployment == made
    with Registry(tmp_path / "other.db") as other:
        assert other.deployment != made
    with Registry(tmp_path / "seeded.db", randomness=SeededRandomness(5)) as seeded:
        assert seeded.deployment == SeededRandomness(5).bytes(16)


def test_enrolling_is_idempotent_and_durable(path: Path) -> None:
    with Registry(path) as registry:
        ada = registry.enrol(ADA, NOW)
        assert ada == client_id(ADA)
        assert registry.enrol(ADA, NOW + 5) == ada
        registry.enrol(BOB, NOW + 9)
    with Registry(path) as registry:
        assert registry.public_key(ada) == ADA
        assert registry.client(ada).enrolled_ms == NOW
        assert {one.public for one in registry.clients()} == {ADA, BOB}
        assert registry.count() == 2
        with pytest.raises(UnknownClient, match="not enrolled"):
            registry.public_key(client_id(EVE))
    for wrong in (b"", ADA[:31], bytes(32)):
        with Registry(path) as registry, pytest.raises(InvalidMessage):
            registry.enrol(wrong, NOW)


def test_a_revoked_client_stays_out(path: Path) -> None:
    with Registry(path) as registry:
        ada, bob = registry.enrol(ADA, NOW), registry.enrol(BOB, NOW)
        registry.revoke(ada, NOW + 1)
        registry.revoke(ada, NOW + 2)
        with pytest.raises(UnknownClient):
            registry.revoke(client_id(EVE), NOW)
    with Registry(path) as registry:
        for refused in (lambda: registry.public_key(ada), lambda: registry.enrol(ADA, NOW + 3)):
            with pytest.raises(Revoked, match=ada):
                refused()
        assert registry.client(ada).revoked_ms == NOW + 1
        assert registry.public_key(bob) == BOB
        assert registry.count() == 1
        assert len(list(registry.clients())) == 2


def test_a_round_counts_once_for_each_client(path: Path) -> None:
    with Registry(path) as registry:
        ada, bob = registry.enrol(ADA, NOW), registry.enrol(BOB, NOW)
        registry.acknowledge(R1, [ada])
        registry.acknowledge(R1, [ada, bob, ada])
        registry.acknowledge(R2, [bob])
        registry.acknowledge(R1, [ada])
        assert (registry.acknowledged(ada), registry.acknowledged(bob)) == (1, 2)
        with pytest.raises(UnknownClient):
            registry.acknowledge(bytes([2]) * 16, [ada, client_id(EVE)])
        registry.revoke(ada, NOW)
        registry.acknowledge(bytes([3]) * 16, [ada])  # received is received
    with Registry(path) as registry:
        assert (registry.acknowledged(ada), registry.acknowledged(bob)) == (2, 2)
        with pytest.raises(UnknownClient):
            registry.acknowledged(client_id(EVE))


def test_invitations_are_all_or_none(path: Path) -> None:
    with Registry(path) as registry:
        ada, bob = registry.enrol(ADA, NOW), registry.enrol(BOB, NOW)
        registry.invite(7, R1, [ada])
        registry.invite(7, R1, [ada])
        registry.invite(7, R2, [ada])
        with pytest.raises(UnknownClient):
            registry.invite(7, R2, [bob, client_id(EVE)])
        assert registry.invited(7) == {ada}
        assert registry.invited(8) == frozenset()
        registry.invite(8, R2, [ada, bob])
        registry.revoke(bob, NOW)
        with pytest.raises(Revoked):
            registry.invite(9, R2, [ada, bob])
    with Registry(path) as registry:
        assert registry.invited(8) == {ada, bob}
        assert registry.invited(9) == frozenset()


def test_numbers_and_ids_that_cannot_be_kept(path: Path) -> None:
    with Registry(path) as registry:
        ada = registry.enrol(ADA, NOW)
        for call in (
            lambda: registry.enrol(BOB, 2**63),
            lambda: registry.revoke(ada, 2**63),
            lambda: registry.invite(-(2**63) - 1, R1, [ada]),
            lambda: registry.invite(1, b"", [ada]),
            lambda: registry.acknowledge(bytes(65), [ada]),
        ):
            with pytest.raises(InputError):
                call()
        assert registry.count() == 1
        assert not registry.invited(1)


def test_many_clients_come_page_by_page(path: Path) -> None:
    publics = [SeededRandomness(number).bytes(32) for number in range(2300)]
    publics = [key for key in publics if key[31] & 127 != 127]
    with Registry(path) as registry:
        with registry._file.write() as db:
            db.executemany(
                "INSERT INTO clients (id, public, enrolled_ms) VALUES (?, ?, ?)",
                [(client_id(key), key, NOW) for key in publics],
            )
        assert {one.public for one in registry.clients()} == set(publics)
        assert registry.count() == len(publics) > 2000


def test_a_registry_is_private_and_closes_into_one_file(path: Path) -> None:
    with Registry(path) as registry:
        registry.enrol(ADA, NOW)
        for file in path.parent.iterdir():
            assert file.stat().st_mode & 0o077 == 0, file
    assert {file.name for file in path.parent.iterdir()} == {"registry.db", "registry.db.lock"}
    with pytest.raises(StoreError, match="closed"):
        registry.count()


def test_settings_of_the_file(path: Path) -> None:
    with Registry(path) as registry:
        for setting, value in (
            ("journal_mode", "wal"),
            ("synchronous", 2),
            ("foreign_keys", 1),
            ("user_version", 2),
            ("application_id", 0x5346534C),
        ):
            assert registry._file.read(f"PRAGMA {setting}") == [(value,)]
        with pytest.raises(StoreError), registry._file.write() as db:
            db.execute("INSERT INTO acknowledgements VALUES (17, 4)")


def test_threads_take_turns(path: Path) -> None:
    with Registry(path) as registry:
        ada = registry.enrol(ADA, NOW)

        def count(start: int) -> None:
            for number in range(20):
                registry.acknowledge(bytes([start, number]), [ada])

        threads = [threading.Thread(target=count, args=(start,)) for start in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert registry.acknowledged(ada) == 80


def test_an_operator_beside_the_server(path: Path) -> None:
    with pytest.raises(StoreError, match="no registry at"):
        Registry.beside(path)
    assert not path.exists()
    with Registry(path) as server:
        ada = server.enrol(ADA, NOW)
        with Registry.beside(path) as operator:
            assert operator.deployment == server.deployment
            operator.revoke(ada, NOW)
            with pytest.raises(Revoked):  # the server sees it at once
                server.public_key(ada)
        assert server.enrol(BOB, NOW)
        with pytest.raises(StoreInUse):
            Registry(path)


# -- opening what is not whole --------------------------------------------------------------------------


def change(path: Path, *statements: str) -> None:
    with sqlite3.connect(path) as db:
        for statement in statements:
            db.execute(statement)
    db.close()


@pytest.fixture
def filled(path: Path) -> Path:
    with Registry(path) as registry:
        registry.invite(1, R1, [registry.enrol(ADA, NOW)])
    return path


def test_a_later_schema_is_not_guessed_at(filled: Path) -> None:
    change(filled, "PRAGMA user_version = 3")
    with pytest.raises(StoreError, match=r"later version.*upgrade") as caught:
        Registry(filled)
    assert type(caught.value) is StoreError


@pytest.mark.parametrize(
    "statements",
    [
        ["PRAGMA user_version = 0"],
        ["PRAGMA application_id = 7"],
        ["DELETE FROM deployment"],
        ["DROP TABLE deployment"],
        ["PRAGMA foreign_keys = OFF", "DELETE FROM clients"],
    ],
)
def test_a_registry_that_lacks_something(filled: Path, statements: list[str]) -> None:
    change(filled, *statements)
    with pytest.raises(StoreCorrupt):
        Registry(filled)
    with pytest.raises(StoreCorrupt):
        Registry.beside(filled)


def test_a_key_that_is_not_its_clients(filled: Path) -> None:
    without_sums(filled)
    change(filled, f"UPDATE clients SET public = x'{EVE.hex()}'")  # noqa: S608
    with Registry(filled) as registry:
        for look in (lambda: registry.public_key(client_id(ADA)), lambda: list(registry.clients())):
            with pytest.raises(StoreCorrupt, match="key and id differ"):
                look()
        assert registry.count() == 1


def without_sums(path: Path) -> None:
    """Make of a registry what the version before sums wrote."""
    change(path, "DROP TABLE sums", "PRAGMA user_version = 1")


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE clients SET acknowledged = acknowledged + 4",
        "UPDATE clients SET enrolled_ms = enrolled_ms + 1",
        "UPDATE clients SET revoked_ms = 7 WHERE revoked_ms IS NULL",
        "UPDATE deployment SET id = x'00112233445566778899aabbccddeeff'",
        "UPDATE rounds SET id = x'01'",
        "UPDATE invitations SET period = 9",
        "DELETE FROM acknowledgements",
        "DELETE FROM invitations",
        "UPDATE sums SET rows = rows + 1 WHERE name = 'clients'",
        "DELETE FROM sums WHERE name = 'rounds'",
    ],
)
def test_a_row_that_became_another_is_found(path: Path, statement: str) -> None:
    """SQLite finds nothing wrong with any of these."""
    with Registry(path) as registry:
        ada = registry.enrol(ADA, NOW)
        registry.invite(3, b"round", [ada])
        registry.acknowledge(b"round", [ada])
    with Registry(path) as registry:
        assert registry.acknowledged(ada) == 1
    change(path, statement)
    for opened in (Registry, Registry.beside):
        with pytest.raises(StoreCorrupt, match=r"rows of \w+ changed"):
            opened(path)


def test_sums_follow_every_change_of_whoever_makes_it(path: Path) -> None:
    with Registry(path) as registry:
        ada, eve = registry.enrol(ADA, NOW), registry.enrol(EVE, NOW)
        for number in range(3):
            registry.invite(number, bytes([number, 1]), [ada, eve])
            registry.acknowledge(bytes([number, 1]), [ada, ada, eve])
        registry.acknowledge(bytes([0, 1]), [ada])  # again, which changes nothing
        with Registry.beside(path) as beside:
            beside.revoke(eve, NOW)
            with pytest.raises(Revoked):
                beside.enrol(EVE, NOW)  # which is undone
        Registry.beside(path).close()
    with Registry(path) as again:
        assert again.acknowledged(ada) == 3


def test_a_registry_of_the_version_before_gets_sums(path: Path) -> None:
    with Registry(path) as registry:
        ada = registry.enrol(ADA, NOW)
    without_sums(path)
    with Registry.beside(path) as visitor:  # of a server of that version, which knows no sums
        visitor.revoke(ada, NOW)
    with Registry(path) as registry:
        assert registry.client(ada).revoked_ms == NOW
    change(path, "UPDATE clients SET revoked_ms = NULL")
    with pytest.raises(StoreCorrupt, match="rows of clients changed"):
        Registry(path)


def test_a_failed_opening_lets_go_of_the_lock(path: Path) -> None:
    path.write_bytes(b"")
    for _ in range(2):
        with pytest.raises(StoreCorrupt, match="restore a backup"):
            Registry(path)
    assert path.read_bytes() == b""  # not taken for a new one
    path.unlink()
    Registry(path).close()


def test_a_missing_file_with_its_log_still_there(filled: Path) -> None:
    """SQLite would play the old log into the new file."""
    filled.unlink()
    log = Path(f"{filled}-wal")
    log.write_bytes(b"the last transactions")
    with pytest.raises(StoreError, match="-wal"):
        Registry(filled)
    assert log.read_bytes() == b"the last transactions"
    assert not filled.exists()


def test_a_cut_short_creation_starts_again(path: Path) -> None:
    for end in ("", "-wal", "-journal"):
        Path(f"{path}.new{end}").write_bytes(b"half")
    with Registry(path) as registry:
        registry.enrol(ADA, NOW)
    assert not list(path.parent.glob("*.new*"))


def test_where_nothing_can_be_made(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="folder must exist"):
        Registry(tmp_path / "no" / "such" / "registry.db")
    (tmp_path / "folder").mkdir()
    with pytest.raises(StoreError, match="cannot open"):
        Registry(tmp_path / "folder")


def test_a_forked_child_does_not_use_its_parents_registry(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Registry(path) as registry, Registry.beside(path) as visitor:
        with monkeypatch.context() as patch:
            patch.setattr("os.getpid", lambda: 1)
            for one in (registry, visitor):
                with pytest.raises(StoreInUse, match="before a fork"):
                    one.count()
        assert registry.count() == visitor.count() == 0


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (sqlite3.SQLITE_FULL, "StoreFull"),
        (sqlite3.SQLITE_CORRUPT, "StoreCorrupt"),
        (sqlite3.SQLITE_CORRUPT | 1 << 8, "StoreCorrupt"),
        (sqlite3.SQLITE_NOTADB, "StoreCorrupt"),
        (sqlite3.SQLITE_BUSY, "StoreInUse"),
        (sqlite3.SQLITE_READONLY | 3 << 8, "StoreError"),
        (sqlite3.SQLITE_IOERR | 3 << 8, "StoreError"),
        (None, "StoreError"),
    ],
)
def test_what_sqlite_finds_is_typed(path: Path, code: int | None, error: str) -> None:
    found = sqlite3.OperationalError("found")
    if code is not None:
        found.sqlite_errorcode = code
    with pytest.raises(StoreError, match="found" if error != "StoreInUse" else "try again") as caught:  # noqa: SIM117
        with registry_module.typed(path, "write"):
            raise found
    assert type(caught.value).__name__ == error


# -- who may enrol --------------------------------------------------------------------------------------


def test_open_enrolment_has_an_end(path: Path) -> None:
    rule = Enrolment.open(2)
    assert rule.mode == "open"
    with Registry(path) as registry:
        ada = rule.admit(registry, ADA, NOW)
        rule.admit(registry, BOB, NOW)
        with pytest.raises(Refused, match="takes 2 clients"):
            rule.admit(registry, EVE, NOW)
        assert rule.admit(registry, ADA, NOW + 1) == ada  # who is in stays in
        registry.revoke(ada, NOW)
        rule.admit(registry, EVE, NOW)
        with pytest.raises(Revoked):
            rule.admit(registry, ADA, NOW)
    with pytest.raises(ParameterError):
        Enrolment.open(0)


def test_a_list_is_read_again_when_it_changes(path: Path, tmp_path: Path) -> None:
    file = tmp_path / "clients.txt"
    file.write_text(f"# the branch offices\n\n  {ADA.hex().upper()}  # Ada\r\n")
    rule = Enrolment.listed(file)
    assert rule.mode == "list"
    with Registry(path) as registry:
        rule.admit(registry, ADA, NOW)
        with pytest.raises(Refused, match="not on this server's list"):
            rule.admit(registry, BOB, NOW)
        assert registry.count() == 1
        file.write_text(f"{BOB.hex()}")
        rule.admit(registry, BOB, NOW)
        assert rule.admit(registry, ADA, NOW) == client_id(ADA)  # off the list is not revoked
        with pytest.raises(Refused):
            rule.admit(registry, EVE, NOW)
        file.unlink()
        with pytest.raises(InputError, match=r"cannot read.*clients\.txt"):
            rule.admit(registry, EVE, NOW)


def test_a_list_is_not_read_for_each_client(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "clients.txt"
    file.write_text(ADA.hex())
    rule = Enrolment.listed(file)
    monkeypatch.setattr("sfsl.service.identities._keys", lambda *_: pytest.fail("read again"))
    with Registry(path) as registry:
        rule.admit(registry, ADA, NOW)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("nonsense", "64 hexadecimal"),
        (ADA.hex()[:-1], "64 hexadecimal"),
        (f"{ADA.hex()} {BOB.hex()}", "64 hexadecimal"),
        ("é" * 64, "64 hexadecimal"),
        ("00" * 32, "small order"),
        ("a" * 5000, "longer than"),
    ],
)
def test_a_mistake_in_a_list_is_named_and_admits_nobody(
    path: Path, tmp_path: Path, line: str, says: str
) -> None:
    file = tmp_path / "clients.txt"
    file.write_text(f"# fine\n{ADA.hex()}\n{line}\n{BOB.hex()}\n")
    with pytest.raises(InputError, match=f"clients.txt, line 3: .*{says}"):
        Enrolment.listed(file)
    file.write_text(f"{ADA.hex()}\n")
    rule = Enrolment.listed(file)
    file.write_text(f"{BOB.hex()}\n{line}\n")
    with Registry(path) as registry:
        for public in (ADA, BOB, EVE):
            for _ in range(2):
                with pytest.raises(InputError, match="line 2"):
                    rule.admit(registry, public, NOW)
        assert registry.count() == 0


def test_a_text_that_is_no_text_is_damage(path: Path) -> None:
    with pytest.raises(StoreCorrupt, match="a text in it is damaged"), registry_module.typed(path, "read"):
        b"\xff".decode()


def test_a_server_waits_for_readers_less_than_a_visitor_does(path: Path) -> None:
    """A handler of a request has others to answer; an operator's command has time."""

    def patience(file: registry_module.RegistryFile) -> list[int]:
        return [one.execute("PRAGMA busy_timeout").fetchone()[0] for one in (file._connection, file._reading)]

    with Registry(path) as server:
        assert patience(server._file) == [5000, 100]
    with contextlib.closing(registry_module.RegistryFile(path, None)) as visitor:
        assert patience(visitor) == [5000, 5000]
