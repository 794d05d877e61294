"""What is kept between rounds: read as older versions wrote it, written so that they could read it."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from deployment import new_store
from sfsl.errors import InputError, StoreCorrupt
from sfsl.privacy import PeriodSelection
from sfsl.rounds import ScoreBins
from sfsl.rounds.record import RoundRecord, RoundTally
from sfsl.service.driver import Journal, Kept
from sfsl.service.folder import METRICS, MetricsFile, read_lines, recover_lines
from sfsl.submodel import Commit


class OldServersState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """As servers wrote it before simulations and servers kept the same value."""

    line: bytes = b""
    scores: ScoreBins | None = None


def test_what_servers_and_simulations_kept_before_can_be_read() -> None:
    record, bins = RoundTally(3).record(1, None, aborted="no luck"), ScoreBins(bins=8, centre=1.0)
    old = msgspec.msgpack.encode(OldServersState(record.encode(), bins))
    kept = Kept.decode(old)
    assert (kept.record(), kept.scores, kept.rounds, kept.period) == (record, bins, {}, PeriodSelection())
    assert Kept.decode(b"") == Kept()
    with pytest.raises(StoreCorrupt, match="cannot be read"):
        Kept.decode(b"\xc1")


def test_an_older_server_can_read_what_is_kept_now() -> None:
    journal = Journal(new_store())
    record = RoundTally(3).record(1, None, aborted="no luck")
    journal.commit(Commit(1), record, ScoreBins(bins=8))
    read = msgspec.msgpack.decode(journal.store.selection, type=OldServersState)
    assert (read.line, read.scores) == (record.encode(), ScoreBins(bins=8))


def test_only_a_missing_line_is_taken_from_the_store(tmp_path: Path) -> None:
    """A line in the store that cannot be read is no reason to refuse metrics that are whole."""
    journal, path = Journal(new_store()), tmp_path / "metrics.jsonl"
    records = [RoundTally(3).record(number, None, aborted="no luck") for number in (1, 2)]
    for record in records:
        journal.commit(Commit(record.round), record, None)
    with MetricsFile(path, records[:1]):
        assert recover_lines(path, journal) == records
    with MetricsFile(path, records):
        journal.kept = Kept(line=b"torn")
        assert recover_lines(path, journal) == records == read_lines(path)
    with MetricsFile(path, []):  # neither has it
        assert [line.lost for line in recover_lines(path, journal)] == [True, True]


def committed(rounds: int) -> tuple[Journal, list[RoundRecord]]:
    journal = Journal(new_store())
    records = [RoundTally(3).record(number, None, aborted="no luck") for number in range(1, rounds + 1)]
    for record in records:
        journal.commit(Commit(record.round), record, None)
    return journal, records


def test_rounds_that_lost_their_lines_are_marked_and_the_rest_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (journal, records), path = committed(5), tmp_path / METRICS
    MetricsFile(path, records[:2]).close()  # a disk that was full, and then a crash
    lines = recover_lines(path, journal)
    assert lines[:2] == records[:2]
    assert lines[4] == records[4]
    assert [line.lost for line in lines] == [False, False, True, True, False]
    (said,) = caplog.messages
    assert "round 5 has its line from the store; 2 rounds, 3 to 4, are marked as lost" in said
    MetricsFile(path, lines).close()
    caplog.clear()
    assert recover_lines(path, journal) == read_lines(path) == lines
    assert not caplog.messages  # it is said once


def test_rounds_that_the_store_does_not_have_are_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It was put back from an earlier day, or has lost its last commits: metrics follow it, and say so."""
    (journal, records), path = committed(3), tmp_path / METRICS
    MetricsFile(path, [*records, *committed(5)[1][3:]]).close()
    assert recover_lines(path, journal) == records
    (said,) = caplog.messages
    assert "2 rounds, 4 to 5, are not in the store, and left out" in said
    assert b'"round":5' in (tmp_path / "metrics.jsonl.damaged").read_bytes()


@pytest.mark.parametrize(
    "damage", [b"\xff\xfe\n", b"{}\n", b"[]\n", b"\n", b'{"round":2}\n', b"\x00" * 4096 + b"\n"]
)
def test_damaged_lines_are_put_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: bytes) -> None:
    (journal, records), path = committed(3), tmp_path / METRICS
    MetricsFile(path, records).close()
    first, _, third = path.read_bytes().splitlines(True)
    path.write_bytes(first + damage + third)
    with pytest.raises(InputError, match="line 2"):
        read_lines(path)
    assert recover_lines(path, journal) == [records[0], RoundRecord.of_lost(2), records[2]]
    assert "a damaged line is kept in metrics.jsonl.damaged; round 2 is marked as lost" in caplog.text
    assert damage in (tmp_path / "metrics.jsonl.damaged").read_bytes()


def test_damage_on_a_full_disk_costs_no_other_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (journal, records), path = committed(3), tmp_path / METRICS
    MetricsFile(path, records).close()
    path.write_bytes(path.read_bytes().replace(b'"round":2', b'"round":9'))
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", few_bytes(10))
        lines = recover_lines(path, journal)
        MetricsFile(path, lines).close()
    assert lines == recover_lines(path, journal) == [records[0], RoundRecord.of_lost(2), records[2]]


def test_metrics_that_cannot_be_read_at_all(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (journal, records), path = committed(2), tmp_path / METRICS
    path.mkdir()
    assert recover_lines(path, journal) == [RoundRecord.of_lost(1), records[1]]
    assert "Is a directory, and is now metrics.jsonl.damaged" in caplog.text
    with MetricsFile(path, records):
        assert read_lines(path) == records


def test_lines_without_checksums_are_read_as_before(tmp_path: Path) -> None:
    (journal, records), path = committed(3), tmp_path / METRICS
    path.write_bytes(b"".join(line.encode() + b"\n" for line in records))
    assert recover_lines(path, journal) == read_lines(path) == records
    MetricsFile(path, records).close()
    assert all(json.loads(line)["checksum"] for line in path.read_text().splitlines())
    one = path.read_bytes().splitlines(True)
    path.write_bytes(one[0] + records[1].encode() + b"\n" + one[2])  # but not beside lines that have them
    with pytest.raises(InputError, match=r"line 2.*checksum"):
        read_lines(path)


def few_bytes(most: int) -> Callable[[int, bytes], int]:
    """A disk with room for so many bytes, which takes what it can of a write and then nothing."""
    left, real = [most], os.write

    def write(descriptor: int, data: bytes) -> int:
        if not left[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = real(descriptor, data[: left[0]])
        left[0] -= written
        return written

    return write


@pytest.mark.parametrize("room", [0, 1, 100, 1000])
def test_a_full_disk_costs_no_line_once_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, room: int
) -> None:
    (journal, records), path = committed(5), tmp_path / METRICS
    with MetricsFile(path, records[:1]) as file:
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", few_bytes(room))
            for line in records[1:4]:
                file.append(line)
        seen = recover_lines(path, journal)  # what a crash now would leave
        assert [line for line in seen if not line.lost][-1] == records[4]
        caplog.clear()
        file.append(records[4])
        assert read_lines(path) == records
        assert caplog.messages == [f"{path} can be written again, and has every line"]


def test_a_disk_that_is_full_at_the_start_keeps_no_round_from_going_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (_, records), path = committed(3), tmp_path / METRICS
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", few_bytes(10))
        file = MetricsFile(path, records[:1])
        file.append(records[1])
        assert not path.exists()
    file.append(records[2])
    assert read_lines(path) == records
    file.close()
    assert len([said for said in caplog.messages if "cannot write" in said]) == 1
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", few_bytes(10))
        file = MetricsFile(path, records)
        file.close()
    assert "still cannot be written: 3 rounds, 1 to 3, are not in it" in caplog.text
    assert read_lines(path) == records  # as they were
