"""What is kept between rounds: read as older versions wrote it, written so that they could read it."""

from pathlib import Path

import msgspec
import pytest

from deployment import new_store
from sfsl.errors import InputError, StoreCorrupt
from sfsl.privacy import PeriodSelection
from sfsl.rounds import ScoreBins
from sfsl.rounds.record import RoundTally
from sfsl.service.driver import Journal, Kept
from sfsl.service.folder import MetricsFile, read_lines, recover_lines
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
    with MetricsFile(path, []), pytest.raises(InputError, match="lines were lost"):
        recover_lines(path, journal)
