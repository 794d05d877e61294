"""The layer that writes files, cut at every system call: by a power cut, a kill, and a disk that is full."""

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from power import MEMORY, Disk, PowerCut, powered_by

from deployment import new_store
from sfsl import durable
from sfsl.checksums import require_last_line
from sfsl.durable import LineFile, folder_made_whole, write_new, write_whole, written_whole
from sfsl.errors import InputError, StoreFull
from sfsl.rounds.record import RoundTally
from sfsl.service.driver import Journal
from sfsl.service.folder import METRICS, MetricsFile, read_lines, recover_lines
from sfsl.submodel import Commit, DenseBlock, LmdbStore
from small_disk import enlarge, small_disk

LINES = [b"first\n", b"the second line\n", b"x\n", b"the last of them\n"]
OLD, NEW = b"old " * 50, b"new " * 70


def append_lines(folder: Path, done: list[bytes]) -> None:
    write_whole(folder / "lines", b"")
    done.append(b"")
    with LineFile(folder / "lines", 0) as file:
        for line in LINES:
            file.append(line)
            done.append(line)


def lines_are_whole(folder: Path, done: list[bytes]) -> None:
    path = folder / "lines"
    if not path.exists():
        assert not done
        return
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    assert b"".join(LINES).startswith(whole)
    assert whole.startswith(b"".join(done))
    with LineFile(path, len(whole)) as file:  # and it goes on
        file.append(b"again\n")
    assert path.read_bytes() == whole + b"again\n"


def replace_through_a_file(folder: Path, done: list[bytes]) -> None:
    for data in (OLD, NEW):
        with written_whole(folder / "file", checksum=True) as file:
            file.write(data)
        done.append(data)


def file_is_whole(folder: Path, done: list[bytes]) -> None:
    path = folder / "file"
    if not path.exists():
        assert not done
        return
    with path.open("rb") as file:
        require_last_line(file, "it")
        data = file.read().partition(b"\n# checksum ")[0]
    assert data in ((OLD, NEW) if len(done) < 2 else (NEW,))


def make_new(folder: Path, done: list[bytes]) -> None:
    write_new(folder / "key", OLD)
    done.append(OLD)


def new_is_whole(folder: Path, done: list[bytes]) -> None:
    path = folder / "key"
    assert path.exists() or not done
    assert not path.exists() or path.read_bytes() == OLD


Act = Callable[[Path, list[bytes]], None]
ACTS: dict[str, tuple[Act, Act]] = {
    "lines": (append_lines, lines_are_whole),
    "file": (replace_through_a_file, file_is_whole),
    "new": (make_new, new_is_whole),
}


def cut_everywhere(act: Act, check: Act) -> int:
    """Cut the power before every system call, and look at everything that may be left."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as place, powered_by(whole := Disk()):
        act(Path(place), [])
    looks = 0
    for position in range(whole.calls + 1):
        disk, done = Disk(cut_before=position), list[bytes]()
        with tempfile.TemporaryDirectory(dir=MEMORY) as place, suppress(PowerCut), powered_by(disk):
            act(Path(place), done)
        for left in disk.after_a_cut():
            with tempfile.TemporaryDirectory(dir=MEMORY) as place:
                for name, content in left.items():
                    (Path(place) / name).write_bytes(content)
                check(Path(place), done)
                looks += 1
    return looks


@pytest.mark.parametrize("what", ACTS)
def test_a_power_cut_between_any_two_system_calls(what: str) -> None:
    assert cut_everywhere(*ACTS[what]) > 10


@pytest.mark.parametrize("what", ACTS)
def test_a_layer_that_flushes_nothing_is_caught(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above can fail."""
    monkeypatch.setattr(durable, "_flush", lambda descriptor: None)
    with pytest.raises((AssertionError, InputError)):
        cut_everywhere(*ACTS[what])


def test_a_layer_that_does_not_flush_folders_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable, "_flush_path", lambda path: None)
    for what in ACTS:
        with pytest.raises(AssertionError):
            cut_everywhere(*ACTS[what])


# -- killed at every system call ---------------------------------------------------------------


def make_folders(folder: Path, done: list[bytes]) -> None:
    for name, data in ((b"store", OLD), (b"run", NEW)):
        with folder_made_whole(folder / "below" / name.decode()) as aside:
            write_new(aside / "first", data)
            with written_whole(aside / "second", checksum=True) as file:
                file.write(data)
        done.append(name)


def folders_are_whole(folder: Path, done: list[bytes]) -> None:
    for name, data in ((b"store", OLD), (b"run", NEW)):
        made = folder / "below" / name.decode()
        assert made.exists() or name not in done
        if made.exists():
            assert sorted(os.listdir(made)) == ["first", "second"]
            assert (made / "first").read_bytes() == data
            assert (made / "second").read_bytes().startswith(data + b"\n# checksum ")
            shutil.rmtree(made)
    make_folders(folder, [])  # and it goes on, whatever was left
    assert sorted(os.listdir(folder / "below")) == ["run", "store"]


# That a folder's files are flushed before it has its name: tests/unit/test_durable_files.py.
KILLED = ACTS | {"folders": (make_folders, folders_are_whole)}

CHILD = """
import os, sys
from pathlib import Path
sys.path[:0] = sys.argv[3:]
import test_durable_power_cut as own

class Reported(list):
    def append(self, one):
        super().append(one)
        os.write(1, b".")

own.KILLED[sys.argv[1]][0](Path(sys.argv[2]), Reported())
"""
CALLS = ("write", "fsync", "rename", "link", "unlink", "ftruncate", "mkdir")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize("what", KILLED)
def test_a_kill_at_every_system_call(what: str) -> None:
    act, check = KILLED[what]
    with tempfile.TemporaryDirectory(dir=MEMORY) as place:
        every = list[bytes]()
        act(Path(place), every)
    kills = sum(kill_at_each(what, call, check, every) for call in CALLS)
    assert kills >= 5


def kill_at_each(what: str, call: str, check: Act, every: list[bytes]) -> int:
    """Kill a child at its first such call, at its second, and so on; return how often it was killed."""
    places = [one for one in sys.path if one.endswith(("tests", "adversary", "src"))]
    for number in range(1, 100):
        with tempfile.TemporaryDirectory(dir=MEMORY) as place:
            child = [sys.executable, "-B", "-c", CHILD, what, place, *places]
            words = ["strace", "-qq", "-o", os.devnull, "-e", f"inject={call}:signal=KILL:when={number}"]
            ran = subprocess.run([*words, *child], capture_output=True, check=False)  # noqa: S603
            if ran.returncode == 0:
                return number - 1
            assert ran.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL), ran.stderr.decode()
            check(Path(place), every[: len(ran.stdout)])
    raise AssertionError("it never came to its end")


# -- small disks -------------------------------------------------------------------------------


def commit_until_full(folder: Path, most: int) -> int:
    """Rounds of a store and their metrics, until there is no room: return the last that stands."""
    spec = new_store().spec
    dense = np.zeros(spec.model.dense, np.float32)
    with (
        LmdbStore.create(folder / "store", spec, dense) as store,
        MetricsFile(folder / METRICS, []) as metrics,
    ):
        journal = Journal(store)
        try:
            while store.round < most:
                record = RoundTally(3).record(store.round + 1, None)
                block = DenseBlock(dense + store.round, np.zeros((spec.dense_slots, len(dense)), np.float32))
                journal.commit(Commit(record.round, {}, block), record, None)
                metrics.append(record)
        except StoreFull:
            pass
        return store.round


@pytest.mark.parametrize("filler", [0, 1, 2, 3])
def test_a_small_disk_keeps_no_store_from_going_on(filler: int) -> None:
    """What is left for metrics ends within a line, at another byte each time."""
    with small_disk(256) as disk:
        room = 256 * 1024 - 60_000 - random.Random(filler).randrange(8192)
        (disk / "filler").write_bytes(bytes(room))
        try:
            reached = commit_until_full(disk, 300)
        except StoreFull:
            pytest.skip("not even an empty store fits")
        assert reached < 300 or read_lines(disk / METRICS)
        enlarge(disk)
        with LmdbStore.open(disk / "store") as store:
            assert store.round == reached
            lines = recover_lines(disk / METRICS, Journal(store))
        assert [line.round for line in lines] == list(range(1, reached + 1))
        assert reached == 0 or not lines[-1].lost
        MetricsFile(disk / METRICS, lines).close()
        assert read_lines(disk / METRICS) == lines
