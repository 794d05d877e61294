"""Files of a server at their edges: the clock's, the folder's metrics, backups, the log of identities, keys:
what is written when, how much is read, in which order, and what is said of it."""

import contextlib
import errno
import logging
import os
import stat
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from deployment import new_store
from sfsl.crypto.secret import Identity
from sfsl.errors import (
    ConflictingMessage,
    InputError,
    KeyFileError,
    ParameterError,
    Refused,
    StoreCorrupt,
    StoreError,
    StoreInUse,
    Unavailable,
    WrongModel,
)
from sfsl.rounds.record import RoundRecord, RoundTally
from sfsl.service import backup, clock, folder, identities, registry
from sfsl.service import log as logs
from sfsl.service.backup import back_up, restore
from sfsl.service.clock import SigningClock
from sfsl.service.driver import Journal
from sfsl.service.folder import (
    METRICS,
    REGISTRY,
    STORE,
    MetricsFile,
    open_server_folder,
    open_store,
    recover_lines,
    scan_metrics,
)
from sfsl.service.identities import Enrolment, read_secret, write_new
from sfsl.service.log import sign_head, vouch
from sfsl.service.log_file import (
    HEADS,
    KEY,
    LOG,
    LogRules,
    RosterLog,
    line_of,
    read_deployment,
    read_log,
    with_sum,
)
from sfsl.service.messages import LogEntry, LogQuery
from sfsl.service.registry import Registry
from sfsl.service.signing import client_id
from sfsl.service.versions import VERSIONS, roll_back, tag, versions
from sfsl.submodel import Commit, LmdbStore
from sfsl.testing import SeededRandomness

NOW = datetime(2030, 1, 1, tzinfo=UTC)
RANDOM = SeededRandomness("kept files")
ADA, BOB, AUTHORITY, ONE, TWO = (Identity.generate(RANDOM) for _ in range(5))
DEPLOYMENT = bytes(range(16))


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# -- the clock -----------------------------------------------------------------------------------------


class Clocks:
    def __init__(self, path: Path, wall: int = 1_000_000) -> None:
        self.path, self.wall, self.steady = path, wall, 0

    def open(self) -> SigningClock:
        return SigningClock(self.path, wall=lambda: self.wall, steady=lambda: self.steady)


def test_requests_of_half_a_minute_cost_one_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Any] = []
    real = clock.write_whole
    monkeypatch.setattr(
        clock, "write_whole", lambda *given, **named: written.append(named) or real(*given, **named)
    )
    opened = Clocks(tmp_path / "clock").open()
    for at in (1_000_000, 1_000_001, 1_029_999, 1_030_000):
        opened.cover(at)
    assert len(written) == 1
    opened.cover(1_030_001)
    assert written == [{"mode": 0o600}] * 2
    opened.close()
    assert len(written) == 3
    opened.close()  # there is nothing to give back
    assert len(written) == 3
    assert Clocks(tmp_path / "clock", 0).open().began_ms == 1_030_002
    untouched = Clocks(tmp_path / "other").open()
    untouched.close()
    assert not (tmp_path / "other").exists()


def test_a_clock_that_cannot_be_written_takes_no_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clocks = Clocks(tmp_path / "clock")
    opened = clocks.open()
    opened.cover(1_000_000)

    def fails(*_: Any, **__: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(clock, "write_whole", fails)
        opened.cover(1_030_000)  # which is written already
        for _ in range(2):
            with pytest.raises(StoreError, match="Input/output error; no request is taken until it can be"):
                opened.cover(1_030_001)
        other = clocks.open()
        other._latest = 0  # less than what was written ahead, which it would give back
        with caplog.at_level(logging.WARNING):
            other.close()
    assert "no request is taken until it can be" in caplog.messages[-1]
    opened.cover(1_030_001)
    opened.close()
    assert Clocks(tmp_path / "clock", 0).open().began_ms == 1_030_002


def test_a_horizon_that_cannot_be_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "clock"
    opened = Clocks(path).open()
    opened.cover(1_000_000)
    data = path.read_bytes()
    for damaged in (data[:-1], data + bytes(1024), bytes([data[0] ^ 1]) + data[1:], b""):
        path.write_bytes(damaged)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert Clocks(path, 5).open().began_ms == 5
        assert "What was signed before now is refused all the same" in caplog.text
    path.unlink()
    path.mkdir()
    with pytest.raises(StoreError, match="cannot read"):
        Clocks(path).open()


# -- metrics -------------------------------------------------------------------------------------------


def committed(rounds: int) -> tuple[Journal, list[RoundRecord]]:
    journal = Journal(new_store())
    records = [RoundTally(3).record(number, None) for number in range(1, rounds + 1)]
    for record in records:
        journal.commit(Commit(record.round), record, None)
    return journal, records


def test_what_a_crash_left_out_is_mended_and_what_harm_did_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (journal, records), path = committed(4), tmp_path / METRICS
    caplog.set_level(logging.INFO)

    def mended(data: Callable[[list[bytes]], bytes]) -> tuple[list[RoundRecord], list[tuple[str, str]]]:
        MetricsFile(path, records).close()
        path.write_bytes(data(path.read_bytes().splitlines(True)))
        caplog.clear()
        found = recover_lines(path, journal)
        return found, [(one.levelname, one.getMessage()) for one in caplog.records]

    whole = "The store is whole at round 4"
    assert mended(b"".join) == (records, [])
    assert mended(lambda lines: b"".join(lines[:3])) == (
        records, [("INFO", f"{path} is mended: round 4 has its line from the store. {whole}")],
    )  # fmt: skip
    lost = [records[0], RoundRecord.of_lost(2), RoundRecord.of_lost(3), records[3]]
    found, said = mended(lambda lines: lines[0] + b"x\ny\n" + lines[3])
    assert found == lost
    assert said == [
        (
            "WARNING",
            f"{path} is mended: 2 damaged lines are kept in metrics.jsonl.damaged; 2 rounds, 2 to 3, are "
            f"marked as lost. {whole}",
        )
    ]
    found, said = mended(lambda lines: lines[0] + lines[1] + lines[3])
    assert (found[2].lost, [level for level, _ in said]) == (True, ["WARNING"])
    assert "round 3 is marked as lost" in said[0][1]
    MetricsFile(path, [*records[:3], RoundRecord.of_lost(4)]).close()
    assert recover_lines(path, journal) == records  # what was lost before is in the store


def test_what_comes_to_a_record_after_its_commit_is_added_to_the_stores(tmp_path: Path) -> None:
    (journal, records), path = committed(2), tmp_path / METRICS
    MetricsFile(path, records[:1]).close()
    seen = recover_lines(path, journal, lambda one: msgspec.structs.replace(one, auc=0.75))
    assert [one.auc for one in seen] == [None, 0.75]
    assert recover_lines(path, Journal(new_store())) == []
    path.write_bytes(b"nonsense\n" + path.read_bytes())
    assert list(scan_metrics(path)) == records[:1]
    assert list(scan_metrics(tmp_path / "none")) == []
    with pytest.raises(InputError, match=r"cannot read .*Is a directory"):
        list(scan_metrics(tmp_path))


def test_a_folder_of_a_server_is_its_owners_and_held_by_one(tmp_path: Path) -> None:
    spec = new_store().spec
    place = tmp_path / "server"
    dense = new_store().read_dense().values
    with ExitStack() as held:
        opened = open_server_folder(place, spec, lambda: dense, held)
        assert mode(place) == 0o700
        assert (opened.lines, opened.store.round, opened.registry.count()) == ([], 0, 0)
        with ExitStack() as second, pytest.raises(StoreInUse, match="registry"):
            open_server_folder(place, spec, lambda: dense, second)
        record = RoundTally(3).record(1, None)
        Journal(opened.store).commit(Commit(1), record, None)
    with ExitStack() as held:  # a crash came between the commit and its line
        opened = open_server_folder(place, spec, lambda: pytest.fail("it is there"), held)
        assert (opened.lines, opened.store.round) == ([record], 1)
    larger = msgspec.structs.replace(
        spec,
        model=msgspec.structs.replace(
            spec.model,
            tables=(msgspec.structs.replace(spec.model.tables[0], rows=61), *spec.model.tables[1:]),
        ),
    )
    with pytest.raises(StoreError, match="another model"):
        open_store(place, larger, lambda: dense)
    open_store(place, larger, lambda: dense, grow=True).close()
    os.rename(place / STORE, tmp_path / "away")
    with pytest.raises(StoreError, match="has metrics but no store"):
        open_store(place, spec, lambda: dense)
    (place / METRICS).write_bytes(b"")
    open_store(place, spec, lambda: dense).close()
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="make the folder"):
        folder.make_folder(tmp_path / "file" / "below")


# -- backups -------------------------------------------------------------------------------------------


@pytest.fixture
def server(tmp_path: Path) -> Path:
    """A folder with everything in it that a server may leave."""
    made = tmp_path / "server"
    made.mkdir()
    empty = new_store()
    LmdbStore.create(made / STORE, empty.spec, empty.read_dense().values).close()
    Registry(made / REGISTRY).close()
    tag(made, "first")
    for name in (
        METRICS, "clock", "roster.head", "roster.key", "roster.log", "a.lock", "b.new", "c-wal", "d-shm",
        "e-journal", "tls/server.key", "versions/first/x.lock", "deep/er/file",
    ):  # fmt: skip
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_bytes(name.encode())
    return made


def test_models_are_copied_first_and_the_clock_last(
    server: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied, copy = [], backup._copy

    def watched(source: Path, target: Path) -> None:
        copied.append(str(source.relative_to(server)))
        copy(source, target)

    monkeypatch.setattr(backup, "_copy", watched)
    made = back_up(server, tmp_path / "backup", now=NOW)
    assert copied == [
        "store/data.mdb", "versions/first/data.mdb", "deep/er/file", METRICS, "roster.key", REGISTRY,
        "roster.head", "roster.log", "clock",
    ]  # fmt: skip
    assert set(made.files) == set(copied)
    assert made.made == "2030-01-01T00:00:00+00:00"
    restore(tmp_path / "backup", tmp_path / "again")
    for name in ("backup", "again"):
        found = {path for path in (tmp_path / name).rglob("*") if path.is_file()}
        assert {str(one.relative_to(tmp_path / name)) for one in found} - {backup.MANIFEST} == set(copied)
        assert {mode(one) for one in found} == {0o600}
        assert mode(tmp_path / name) == 0o700
    (server / "clock").unlink()  # what is not there is not copied
    assert "clock" not in back_up(server, tmp_path / "other", now=NOW).files


def test_what_is_no_file_is_not_copied(server: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StoreError, match="is not a file"):
        backup._copy_file(tmp_path / "pipe", tmp_path / "copy")
    (server / "link").symlink_to(server / METRICS)
    with pytest.raises(StoreError, match=r"copy .*; nothing was left there"):
        back_up(server, tmp_path / "backup", now=NOW)
    assert not list(tmp_path.glob("backup*"))
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize("gone", [REGISTRY, f"{STORE}/data.mdb"])
def test_half_a_servers_folder_is_none(server: Path, tmp_path: Path, gone: str) -> None:
    (server / gone).unlink()
    with pytest.raises(StoreError, match="is no server's folder"):
        back_up(server, tmp_path / "backup", now=NOW)
    with pytest.raises(StoreError, match="is no server's folder"):
        backup.back_up(tmp_path / "nowhere", tmp_path / "backup", now=NOW)


@pytest.mark.parametrize("gone", [REGISTRY, STORE])
def test_versions_are_of_a_whole_server(server: Path, tmp_path: Path, gone: str) -> None:
    assert [one.name for one in versions(server)] == ["first", "current"]
    os.rename(server / gone, tmp_path / "away")
    with pytest.raises(StoreError, match="is no server's folder"):
        versions(server)
    with pytest.raises(StoreError, match="is no server's folder"):
        tag(server, "second")
    assert not (server / VERSIONS / "second").exists()


# -- the log of identities -----------------------------------------------------------------------------


def log(place: Path, **rules: Any) -> RosterLog:
    return RosterLog(place, DEPLOYMENT, LogRules(**rules), SeededRandomness("key"), 5)


def test_who_is_in_a_log_already_is_not_entered_again(tmp_path: Path) -> None:
    voucher = vouch(AUTHORITY, DEPLOYMENT, ADA.public)
    with log(tmp_path) as opened:
        assert {mode(tmp_path / name) for name in (LOG, KEY, HEADS)} == {0o600}
        opened.enter([LogEntry(ADA.public), LogEntry(BOB.public)], 6)
        sizes = []
        for entry in (LogEntry(ADA.public), voucher, voucher, LogEntry(ADA.public)):
            opened.enter([entry], 7)
            sizes.append((len(opened.entries), opened.offered.size, opened.offered.time))
        assert sizes == [(2, 2, 6), (3, 3, 7), (3, 3, 7), (3, 3, 7)]
        proof = opened.prove(LogQuery(0, (client_id(BOB.public), client_id(ADA.public))))
        assert proof.places == (1, 2)
        assert proof.entries == (LogEntry(BOB.public), voucher)
        assert opened.prove(LogQuery(0, ())).inclusion == b""
        opened.enter([], 9)
        assert opened.offered.time == 7
    lines = (tmp_path / LOG).read_text().splitlines()
    assert len(lines) == 4
    assert lines[1] + "\n" == with_sum(line_of(LogEntry(ADA.public)))
    with log(tmp_path) as again:
        assert again.prove(LogQuery(0, (client_id(ADA.public),))).places == (2,)
        assert again.offered.time == 7


def test_a_head_that_waits_for_witnesses_says_when_to_come_back(tmp_path: Path) -> None:
    with log(tmp_path, witnesses=frozenset((ONE.public, TWO.public)), least_witnesses=1) as opened:
        with pytest.raises(Unavailable, match="no head of this log has its witnesses yet") as caught:
            opened.prove(LogQuery(0, ()))
        assert caught.value.wait_s == 2.0
        assert opened.prove(LogQuery(0, ()), offered=True).head == opened.offered
        assert "waits for the witnesses" in opened.bars(client_id(ADA.public))
        for field, value in (("deployment", bytes(16)), ("size", 1), ("root", bytes(32)), ("time", 6)):
            other = msgspec.structs.replace(opened.offered, **{field: value})
            with pytest.raises(ConflictingMessage, match="another head"):
                opened.cosign(sign_head(ONE, other), 6)
        for stranger in (BOB, AUTHORITY):
            with pytest.raises(Refused, match="none of this log's witnesses"):
                opened.cosign(sign_head(stranger, opened.offered), 6)
        assert opened.shown is None
        opened.cosign(sign_head(ONE, sign_head(BOB, opened.offered)), 6)
        assert opened.shown == opened.offered
        keys = [one.key for one in opened.offered.signatures]
        assert keys == [opened.public, ONE.public]  # not that of a stranger
        opened.cosign(sign_head(TWO, opened.offered), 6)
        opened.cosign(sign_head(ONE, opened.offered), 6)
        assert sorted(one.key for one in opened.shown.signatures) == sorted(
            (opened.public, ONE.public, TWO.public)
        )


def test_a_log_and_its_key_belong_together(tmp_path: Path) -> None:
    log(tmp_path).close()
    kept = {name: (tmp_path / name).read_bytes() for name in (LOG, KEY, HEADS)}
    for gone, says in ((LOG, "one is gone"), (KEY, "one is gone")):
        (tmp_path / gone).unlink()
        with pytest.raises(StoreCorrupt, match=says):
            log(tmp_path)
        (tmp_path / gone).write_bytes(kept[gone])
        (tmp_path / gone).chmod(0o600)
    (tmp_path / HEADS).unlink()
    log(tmp_path).close()  # nobody is in it: nothing is lost
    for name in (LOG, HEADS):
        (tmp_path / name).unlink()
    with log(tmp_path) as opened:  # a crash came between the key and the log
        opened.enter([LogEntry(ADA.public)], 6)
    (tmp_path / HEADS).unlink()
    with pytest.raises(StoreCorrupt, match="is gone beside a log"):
        log(tmp_path)


def test_a_line_that_was_cut_short_goes_and_one_without_its_end_is_damage(tmp_path: Path) -> None:
    with log(tmp_path) as opened:
        opened.enter([LogEntry(ADA.public), LogEntry(BOB.public)], 6)
    path = tmp_path / LOG
    data = path.read_bytes()
    last = data.rindex(b"\n", 0, -1) + 1
    assert read_log(path, DEPLOYMENT) == ([LogEntry(ADA.public), LogEntry(BOB.public)], len(data))
    for size in range(last, len(data)):
        path.write_bytes(data[:size])
        assert read_log(path, DEPLOYMENT) == ([LogEntry(ADA.public)], last)
    path.write_bytes(data[:-1] + b"\x0b")
    with pytest.raises(StoreCorrupt, match="its line break is damaged"):
        read_log(path, DEPLOYMENT)
    with pytest.raises(StoreCorrupt, match="not the log of this deployment"):
        read_log(path, bytes(16))
    bare = data[:last] + line_of(LogEntry(BOB.public)).encode() + b"\n"
    path.write_bytes(bare)
    with pytest.raises(StoreCorrupt, match="line 3, is no entry of a log: its checksum does not fit"):
        read_log(path)
    title, first, _ = data.splitlines(True)
    path.write_bytes(title + line_of(LogEntry(BOB.public)).encode() + b"\n" + first)  # as it was before sums
    assert read_log(path)[0] == [LogEntry(BOB.public), LogEntry(ADA.public)]


def test_a_log_that_lost_what_its_head_commits_to_is_refused(tmp_path: Path) -> None:
    with log(tmp_path) as opened:
        opened.enter([LogEntry(ADA.public)], 6)
        one = (tmp_path / LOG).read_bytes()
        opened.enter([LogEntry(BOB.public)], 7)
    data = (tmp_path / LOG).read_bytes()
    (tmp_path / LOG).write_bytes(one)
    with pytest.raises(StoreCorrupt, match=r"commits to \(2 entries\)"):
        log(tmp_path)
    title, first, second = data.splitlines(True)
    (tmp_path / LOG).write_bytes(title + second + first)
    with pytest.raises(StoreCorrupt, match=r"commits to \(2 entries\)"):
        log(tmp_path)
    (tmp_path / LOG).write_bytes(data + with_sum(line_of(LogEntry(ONE.public))).encode())
    with log(tmp_path) as opened:  # written, and then a crash before the head
        assert (opened.offered.size, opened.offered.time) == (3, 5)


# -- keys and lists ------------------------------------------------------------------------------------


def test_how_much_of_a_key_is_read_and_who_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "key"
    write_new(path, bytes(1 << 16), secret=True)
    assert mode(path) == 0o600
    assert len(read_secret(path)) == 1 << 16
    with path.open("ab") as file:
        file.write(b"x")
    with pytest.raises(KeyFileError, match="more than 65536 bytes"):
        read_secret(path)
    for bits in (0o601, 0o610, 0o620, 0o644):
        path.chmod(bits)
        with pytest.raises(KeyFileError, match=f"mode {bits:04o}"):
            read_secret(path)
    write_new(tmp_path / "public", b"x", secret=False)
    assert mode(tmp_path / "public") == 0o644


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (errno.ENOSPC, "free some space"),
        (errno.EDQUOT, "free some space"),
        (errno.EFBIG, "free some space"),
        (errno.EACCES, "its folder must exist and be writable"),
        (errno.EIO, "its folder must exist and be writable"),
    ],
)
def test_what_to_do_where_a_key_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, says: str
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(identities.durable, "write_new", fails)
    with pytest.raises(KeyFileError, match=f"{os.strerror(code)}; {says}"):
        write_new(tmp_path / "key", b"x", secret=True)


def test_who_may_enrol_is_in_the_log_before_it_is_enrolled(tmp_path: Path) -> None:
    listed, done = tmp_path / "list", []
    listed.write_text(f"{line_of(vouch(AUTHORITY, DEPLOYMENT, ADA.public))}\n{BOB.public.hex()}\n")
    rule = Enrolment.listed(listed)

    class Watched(Registry):
        def enrol(self, public: bytes, now_ms: int) -> str:
            done.append(("enrolled", now_ms))
            return super().enrol(public, now_ms)

    with Watched(tmp_path / "registry") as registry, log(tmp_path) as opened:
        enter = opened.enter
        opened.enter = lambda entries, now: done.append(("entered", now)) or enter(entries, now)  # type: ignore[method-assign]
        rule.admit(registry, ADA.public, 77, opened)
        assert done == [("entered", 77), ("enrolled", 77)]
        assert opened.entries[0].voucher
        listed.write_text("a mistake\n")  # who is enrolled already needs no list
        assert rule.admit(registry, ADA.public, 78, opened) == client_id(ADA.public)
        with pytest.raises(InputError, match="line 1"):
            rule.admit(registry, BOB.public, 79, opened)
        assert len(opened.entries) == 1
        listed.unlink()
        assert rule.admit(registry, ADA.public, 80, opened) == client_id(ADA.public)
    for most in (0, -1):
        with pytest.raises(ParameterError, match="admits nobody"):
            Enrolment.open(most)


def test_a_list_is_read_again_whatever_of_it_changed(tmp_path: Path) -> None:
    listed = tmp_path / "list"
    listed.write_text(f"{ADA.public.hex()}\n")
    rule = Enrolment.listed(listed)
    status = listed.stat()
    listed.write_text(f"{BOB.public.hex()}\n")  # of the same length, and as old
    os.utime(listed, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert set(rule.read()) == {BOB.public}
    (tmp_path / "other").write_text(f"{ADA.public.hex()}\n")
    os.rename(tmp_path / "other", listed)
    assert set(rule.read()) == {ADA.public}


# -- what is left open, and how much is read -----------------------------------------------------------


def open_files(place: Path) -> set[str]:
    """What this process has open below a folder."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of the listing itself
            found.add(os.readlink(f"/proc/self/fd/{number}"))
    return {Path(one).name for one in found if one.startswith(f"{place}/")}


def fails(*_: Any, **__: Any) -> Any:
    raise StoreCorrupt("on purpose")


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (registry, "_require_registry"),
        (registry, "require_log"),
        (registry.RegistryFile, "_check"),
        (registry.RegistryFile, "_check_length"),
        (registry.RegistrySums, "require"),
        (registry.RegistryFile, "read"),
    ],
)
def test_a_registry_that_cannot_be_opened_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    path = tmp_path / "registry"
    Registry(path).close()
    for opened in (Registry, Registry.beside):
        if opened == Registry.beside and name in ("require_log", "_check_length"):
            continue  # which only a server looks at
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, fails)
            with pytest.raises(StoreCorrupt, match="on purpose") as caught:
                opened(path)
            assert open_files(tmp_path) == set()
            assert caught.tb is not None  # whose frames have what was opened
    with Registry(path) as whole:
        assert {"registry", "registry.lock"} <= open_files(tmp_path)
        assert whole.count() == 0
    assert open_files(tmp_path) == set()


def test_a_log_and_a_folder_that_cannot_be_opened_leave_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with log(tmp_path) as opened:
        assert open_files(tmp_path) == {LOG}
        opened.enter([LogEntry(ADA.public)], 6)
    (tmp_path / HEADS).unlink()
    with pytest.raises(StoreCorrupt) as caught:
        log(tmp_path)
    assert open_files(tmp_path) == set()
    place, spec = tmp_path / "server", new_store().spec
    for name in ("open_store", "recover_lines", "MetricsFile"):
        with monkeypatch.context() as patch, ExitStack() as held:
            patch.setattr(folder, name, fails)
            with pytest.raises(StoreCorrupt, match="on purpose") as caught:
                open_server_folder(place, spec, lambda: new_store().read_dense().values, held)
            assert "registry.sqlite" in open_files(place)
            held.close()
            assert open_files(place) == set()
            assert caught.tb is not None


def test_how_much_of_a_file_is_read(tmp_path: Path) -> None:
    assert (logs._LARGEST_TRUST, backup._LARGEST, clock._LARGEST) == (1 << 16, 1 << 24, 1024)
    trust = logs.LogTrust(DEPLOYMENT.hex(), ADA.public.hex())
    path, text = tmp_path / "trust", trust.written()
    room = (1 << 16) - len(text)
    path.write_text(f"{text}{'#' * (room - 1)}\nnonsense")  # what comes behind 64 KiB is not looked at
    assert logs.LogTrust.read(path) == trust
    path.write_text(f"{text}{'#' * (room - 2)}\nnonsense")
    with pytest.raises(InputError, match="does not say whom to trust"):
        logs.LogTrust.read(path)
    title = f"# sfsl log 1 {DEPLOYMENT.hex()}"
    path.write_text(title + "00" * 77)  # of a first line 200 characters
    assert read_deployment(path) == DEPLOYMENT + bytes(77)
    path.write_text(title + "00" * 78)
    assert read_deployment(path) == b""
    with pytest.raises(StoreError, match="cannot read"):
        read_deployment(tmp_path / "none")


# -- versions ------------------------------------------------------------------------------------------


def test_a_version_of_another_model_is_not_put_back(server: Path) -> None:
    spec = new_store().spec
    other = msgspec.structs.replace(spec, seed=bytes(31) + b"x")
    LmdbStore.create(server / VERSIONS / "other", other, new_store().read_dense().values).close()
    for name in ("a.lock", "b.new", "c-wal", "d-shm", "e-journal", "roster.log", METRICS):
        (server / name).unlink()
    with pytest.raises(WrongModel, match="seed"):
        roll_back(server, "other")
    assert not (server / VERSIONS / "round-0").exists()
    with LmdbStore.open(server / STORE) as store:
        assert store.round == 0
    assert roll_back(server, "first").round == 1
    with LmdbStore.open(server / VERSIONS / "round-0") as kept:
        assert kept.round == 0
        at = (server / VERSIONS / "round-0").stat().st_mtime_ns
    assert roll_back(server, "round-0").round == 2
    assert roll_back(server, "round-1").round == 3
    assert (server / VERSIONS / "round-0").stat().st_mtime_ns == at
    assert {one.name for one in versions(server)} == {
        "first",
        "other",
        "round-0",
        "round-1",
        "round-2",
        "current",
    }
