"""SQLite's log beside a registry: what is read, what is passed over, and which of it is damage. And the sums
over rows, by hand."""

import hashlib
import logging
import sqlite3
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from sfsl.crypto.secret import Identity
from sfsl.errors import StoreCorrupt, StoreError, StoreInUse
from sfsl.service import registry as registries
from sfsl.service.registry import Registry, RegistryFile
from sfsl.service.registry_log import _passed_over, require_log
from sfsl.service.signing import client_id
from sfsl.testing import SeededRandomness

PAGE, HEAD, FRAME = 512, 32, 24
ADA, BOB = (Identity.generate(SeededRandomness(name)).public for name in ("ada", "bob"))


# -- a log by hand -------------------------------------------------------------------------------------


def summed(data: bytes, before: tuple[int, int], order: str) -> tuple[int, int]:
    """As SQLite's description has it."""
    one, two = before
    for at in range(0, len(data), 8):
        first, second = struct.unpack(f"{order}2I", data[at : at + 8])
        one = (one + first + two) % 2**32
        two = (two + second + one) % 2**32
    return one, two


def written(commits: list[int], *, salts: tuple[int, int] = (7, 8), order: str = "<") -> bytes:
    """A log with these frames: the size of the file after a commit, 0 within one."""
    start = struct.pack(">6I", 0x377F0682 | (order == ">"), 3007000, PAGE, 0, *salts)
    total = summed(start, (0, 0), order)
    log = start + struct.pack(">2I", *total)
    for number, pages in enumerate(commits, 1):
        head = struct.pack(">4I", number, pages, *salts)
        body = bytes([number]) * PAGE
        total = summed(head[:8] + body, total, order)
        log += head + struct.pack(">2I", *total) + body
    return log


def frame(log: bytes, number: int) -> int:
    """Where a frame begins, counted from 0."""
    return HEAD + number * (FRAME + PAGE)


def flipped(log: bytes, at: int) -> bytes:
    return log[:at] + bytes([log[at] ^ 1]) + log[at + 1 :]


@pytest.mark.parametrize("order", ["<", ">"])
def test_what_is_whole_is_read_to_its_end(order: str) -> None:
    assert _passed_over(written([0, 2, 3], order=order), PAGE) == []
    # A last write without its commit is one that a crash cut short.
    assert _passed_over(written([0, 2, 0, 0], order=order), PAGE) == [False, False]
    assert _passed_over(written([], order=order), PAGE) == []


@pytest.mark.parametrize("order", ["<", ">"])
def test_behind_damage_all_is_passed_over(order: str) -> None:
    log = written([2, 0, 3, 4], order=order)
    for part in (0, 4, 16, FRAME, FRAME + PAGE - 1):  # its number, size, sum, page
        assert len(_passed_over(flipped(log, frame(log, 1) + part), PAGE)) == 3
    assert _passed_over(flipped(log, frame(log, 1) + FRAME), PAGE) == [False, True, True]
    assert _passed_over(flipped(log, frame(log, 3) + FRAME), PAGE) == [True]
    for part in range(HEAD):  # its head: nothing of it is read
        assert _passed_over(flipped(log, part), PAGE) == [True, False, True, True]


def test_frames_of_before_the_log_began_anew_are_nothing() -> None:
    new, old = written([2], salts=(9, 10)), written([2, 3, 4], salts=(7, 8))
    assert _passed_over(new + old[frame(old, 1) :], PAGE) == []
    # One of its two salts is damaged: it is still one of this log's.
    for at in (8, 12):
        log = flipped(written([2, 3]), frame(b"", 1) + at + 3)
        assert _passed_over(log, PAGE) == [True]


def test_half_a_frame_at_the_end_is_no_frame() -> None:
    log = written([2, 3])
    assert _passed_over(log[:-1], PAGE) == []
    assert _passed_over(log[: frame(log, 1)], PAGE) == []
    assert _passed_over(flipped(log, frame(log, 0) + FRAME)[:-1], PAGE) == [True]


# -- a log beside a file -------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file whose pages have 512 bytes, which a log beside it is read by."""
    path = tmp_path / "registry"
    path.write_bytes(bytes(16) + PAGE.to_bytes(2, "big") + bytes(PAGE - 18))
    return path


def beside(path: Path, log: bytes) -> None:
    path.with_name("registry-wal").write_bytes(log)


def test_commits_behind_damage_are_refused_and_a_last_one_is_logged(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    require_log(path)  # there is no log
    log = written([2, 3, 4])
    for whole in (log, b"", log[: HEAD - 1]):
        beside(path, whole)
        require_log(path)
    assert not caplog.records
    for number in (0, 1):
        beside(path, flipped(log, frame(log, number) + FRAME))
        with pytest.raises(StoreCorrupt, match="registry-wal is damaged before its last commit"):
            require_log(path)
    for cut in (flipped(log, frame(log, 2) + FRAME), written([2, 0])):
        beside(path, cut)
        with caplog.at_level(logging.WARNING):
            require_log(path)
        (said,) = caplog.messages
        assert "registry-wal ends with a write that a crash cut short, or that is damaged" in said
        caplog.clear()
    beside(path, flipped(log[:HEAD], 0))  # a head alone has nothing behind it
    require_log(path)
    path.write_bytes(bytes(16) + (PAGE - 1).to_bytes(2, "big"))
    beside(path, flipped(log, frame(log, 0) + FRAME))
    require_log(path)  # no size of a page: SQLite will say what it is
    path.unlink()
    with pytest.raises(StoreError, match=r"cannot read .*registry-wal"):
        require_log(path)


def test_what_sqlite_writes_is_what_is_read(tmp_path: Path) -> None:
    path = tmp_path / "registry"
    with Registry(path) as registry:
        for number in range(3):
            registry.enrol(ADA if number else BOB, number)
        log = (tmp_path / "registry-wal").read_bytes()
        size = int.from_bytes(path.read_bytes()[16:18], "big")
        assert _passed_over(log, size) == []
        damaged = flipped(log, HEAD + FRAME)
        assert sum(_passed_over(damaged, size)) == 2


# -- sums ----------------------------------------------------------------------------------------------


def sums_in(path: Path) -> dict[str, tuple[int, bytes]]:
    with sqlite3.connect(path) as db:
        found = {name: (rows, total) for name, rows, total in db.execute("SELECT * FROM sums")}
    db.close()
    return found


def total(table: str, *rows: tuple[object, ...]) -> bytes:
    parts = [hashlib.sha256(repr((table, *row)).encode()).digest()[:16] for row in rows]
    return (sum(int.from_bytes(one, "big") for one in parts) % 2**128).to_bytes(16, "big")


def test_sums_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "registry"
    with Registry(path) as registry:
        ada, bob = (registry.enrol(one, 5) for one in (ADA, BOB))
        registry.invite(3, b"r", [ada, bob])
        registry.acknowledge(b"r", [bob])
        registry.revoke(ada, 9)
        deployment = registry.deployment
    found = sums_in(path)
    assert {name: rows for name, (rows, _) in found.items() if rows} == {
        "deployment": 1, "clients": 2, "rounds": 1, "acknowledgements": 1, "invitations": 2,
    }  # fmt: skip
    assert found["deployment"][1] == total("deployment", (1, deployment))
    assert found["clients"][1] == total("clients", (1, ada, ADA, 5, 9, 0), (2, bob, BOB, 5, None, 1))
    assert found["rounds"][1] == total("rounds", (1, b"r"))
    assert found["acknowledgements"][1] == total("acknowledgements", (1, 2))
    assert found["invitations"][1] == total("invitations", (3, 1, 1), (3, 2, 1))


def interrupted(registry: Registry) -> None:
    with registry._file.write() as db:
        db.execute("UPDATE clients SET enrolled_ms = 6")
        raise ValueError("halfway")


def test_what_is_undone_changes_no_sum(tmp_path: Path) -> None:
    path = tmp_path / "registry"
    with Registry(path) as registry:
        registry.enrol(ADA, 5)
        with pytest.raises(ValueError, match="halfway"):
            interrupted(registry)
        registry.enrol(BOB, 7)
    with Registry(path) as registry:
        assert [one.enrolled_ms for one in registry.clients()].count(5) == 1
    assert sums_in(path)["clients"][0] == 2


# -- the file ------------------------------------------------------------------------------------------


@pytest.fixture
def visitor(tmp_path: Path) -> Iterator[RegistryFile]:
    Registry(tmp_path / "registry").close()
    file = RegistryFile(tmp_path / "registry", None)
    yield file
    file.close()


def test_how_long_a_write_waits_for_others(visitor: RegistryFile, monkeypatch: pytest.MonkeyPatch) -> None:
    def patience() -> int:
        return int(visitor._connection.execute("PRAGMA busy_timeout").fetchone()[0])

    assert (registries._BUSY_SECONDS, registries._READ_SECONDS) == (5.0, 0.1)
    for seconds, milliseconds in ((None, 5000), (0.1, 100), (0.0014, 1), (0, 0)):
        with visitor.write(seconds):
            assert patience() == milliseconds
    asked: list[float] = []
    monkeypatch.setattr(
        visitor, "_one_writes", type("Taken", (), {"acquire": lambda _, timeout: asked.append(timeout)})()
    )
    for given, waits in ((None, 5.0), (0.25, 0.25)):
        with pytest.raises(StoreInUse, match="another write takes long"), visitor.write(given):
            pass
        assert asked.pop() == waits
    monkeypatch.undo()


def test_who_cannot_write_knows_until_it_can(tmp_path: Path, visitor: RegistryFile) -> None:
    assert not visitor.locked
    other = sqlite3.connect(tmp_path / "registry", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreInUse, match="another process holds it"), visitor.write(seconds=0):
        pass
    assert visitor.locked
    other.execute("ROLLBACK")
    other.close()
    assert not visitor.locked
    with visitor.write() as db:  # and nothing is left of the write that failed
        assert db.execute("SELECT count(*) FROM clients").fetchone() == (0,)


def test_files_of_other_lengths_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "registry"
    with Registry(path) as registry:
        registry.enrol(ADA, 1)
    whole = path.read_bytes()
    for wrong in (whole + b"\0", whole + bytes(4096), whole[:-1]):
        path.write_bytes(wrong)
        with pytest.raises(StoreCorrupt):
            Registry(path)
    path.write_bytes(whole)
    with Registry(path) as registry:
        assert registry.public_key(client_id(ADA)) == ADA


def test_a_file_that_is_no_database_or_another_programs(tmp_path: Path) -> None:
    path = tmp_path / "registry"
    for wrong in (b"", b"SQLite format 3", b"x" * 100):
        path.write_bytes(wrong)
        with pytest.raises(StoreCorrupt, match="no registry of this package"):
            Registry(path)
    path.unlink()
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE other (x)")
    db.close()
    with pytest.raises(StoreCorrupt, match="no registry of this package"):
        Registry(path)


def test_a_deployment_is_one(tmp_path: Path) -> None:
    path = tmp_path / "registry"
    Registry(path).close()
    with sqlite3.connect(path) as db:
        db.execute("DELETE FROM deployment")
        db.execute("DROP TABLE sums")
        db.execute("PRAGMA user_version = 1")
    db.close()
    for _ in range(2):  # the lock is free again
        with pytest.raises(StoreCorrupt, match="lacks its deployment id"):
            Registry(path)
