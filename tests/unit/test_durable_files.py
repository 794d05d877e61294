"""Whatever goes wrong while a file or a folder is written: the old one or the new one is there, whole."""

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sfsl.durable import (
    OWNER_ONLY,
    folder_made_whole,
    put_in_place,
    write_new,
    write_whole,
    written_whole,
)


class Cut(BaseException):
    """What ends a process: nothing may catch it for good."""


def through_a_file(path: Path, data: bytes) -> None:
    with written_whole(path) as file:
        file.write(data)


REPLACING = pytest.mark.parametrize("write", [write_whole, through_a_file])
ANY_WAY = pytest.mark.parametrize("write", [write_whole, through_a_file, write_new])


def failing(code: int) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(code, os.strerror(code))

    return fail


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was flushed, and for a file how much of it, or renamed, in order."""
    seen: list[str] = []
    real_fsync, real_rename = os.fsync, os.rename

    def fsync(descriptor: int) -> None:
        status = os.fstat(descriptor)
        name = Path(os.readlink(f"/proc/self/fd/{descriptor}")).name
        seen.append(f"flush {name}" + f" {status.st_size}" * stat.S_ISREG(status.st_mode))
        real_fsync(descriptor)

    def rename(old: Any, new: Any) -> None:
        seen.append(f"rename {Path(new).name}")
        real_rename(old, new)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "rename", rename)
    return seen


@REPLACING
def test_a_file_is_flushed_before_it_has_its_name_and_the_folder_after(
    tmp_path: Path, flushed: list[str], write: Callable[[Path, bytes], None]
) -> None:
    write(tmp_path / "kept", b"one")
    write(tmp_path / "kept", b"two")
    assert flushed == ["flush kept.new 3", "rename kept", f"flush {tmp_path.name}"] * 2
    assert (tmp_path / "kept").read_bytes() == b"two"
    assert os.listdir(tmp_path) == ["kept"]


@REPLACING
def test_a_crash_before_the_rename_leaves_the_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path, bytes], None]
) -> None:
    path = tmp_path / "kept"
    path.write_bytes(b"old")

    def cut(*_: Any) -> None:
        raise Cut

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", cut)
        with pytest.raises(Cut):
            write(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["kept"]


def test_a_writer_that_fails_halfway_leaves_the_old(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    path.write_bytes(b"old")

    def halfway() -> None:
        with written_whole(path) as file:
            file.write(b"half")
            raise Cut

    with pytest.raises(Cut):
        halfway()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["kept"]


@pytest.mark.parametrize("write", [write_whole, write_new])
def test_a_disk_that_takes_a_little_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path, bytes], None]
) -> None:
    real, data = os.write, os.urandom(1000)
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:7]))
    write(tmp_path / "kept", data)
    assert (tmp_path / "kept").read_bytes() == data


@pytest.mark.parametrize("call", ["write", "fsync"])
@pytest.mark.parametrize("write", [write_whole, write_new])
def test_a_full_disk_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path, bytes], None], call: str
) -> None:
    (tmp_path / "other").write_bytes(b"old")
    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing(errno.ENOSPC))
        with pytest.raises(OSError, match="No space"):
            write(tmp_path / "kept", b"new")
    assert os.listdir(tmp_path) == ["other"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
def test_a_disk_full_at_the_last_flush_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    path.write_bytes(b"old")

    def fill() -> None:
        with written_whole(path) as file, open("/dev/full", "wb") as full:
            os.dup2(full.fileno(), file.fileno())
            file.write(b"few bytes, which wait in a buffer")

    with pytest.raises(OSError, match="No space"):
        fill()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["kept"]


@REPLACING
def test_what_an_earlier_crash_left_is_replaced(tmp_path: Path, write: Callable[[Path, bytes], None]) -> None:
    (tmp_path / "kept.new").write_bytes(b"longer than what is written now")
    write(tmp_path / "kept", b"new")
    assert (tmp_path / "kept").read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["kept"]


@REPLACING
def test_a_link_left_in_the_way_is_not_followed(tmp_path: Path, write: Callable[[Path, bytes], None]) -> None:
    (tmp_path / "victim").write_bytes(b"old")
    (tmp_path / "kept.new").symlink_to(tmp_path / "victim")
    write(tmp_path / "kept", b"new")
    assert (tmp_path / "victim").read_bytes() == b"old"
    assert not (tmp_path / "kept").is_symlink()


def test_rights(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        for number, mode in enumerate((None, OWNER_ONLY, 0o644)):
            for write in (write_whole, write_new):
                path = tmp_path / f"{write.__name__} {number}"
                write(path, b"data", mode=mode)
                assert mode_of(path) == (0o640 if mode is None else mode)
        through_a_file(tmp_path / "file", b"data")
        assert mode_of(tmp_path / "file") == 0o640
    finally:
        os.umask(before)


def test_owner_only_from_the_first_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leftover = tmp_path / "kept.new"
    leftover.write_bytes(b"")
    leftover.chmod(0o666)
    seen, real = [], os.write

    def write(descriptor: int, data: bytes) -> int:
        seen.append(stat.S_IMODE(os.fstat(descriptor).st_mode))
        return real(descriptor, data)

    monkeypatch.setattr(os, "write", write)
    with leftover.open("rb") as reader:  # someone who opened it while it was open to all
        write_whole(tmp_path / "kept", b"secret", mode=OWNER_ONLY)
        assert reader.read() == b""
    assert seen == [OWNER_ONLY]


def test_a_new_file_never_replaces_an_old_one(tmp_path: Path, flushed: list[str]) -> None:
    path = tmp_path / "kept"
    write_new(path, b"first")
    assert flushed[-1] == f"flush {tmp_path.name}"
    with pytest.raises(FileExistsError):
        write_new(path, b"second")
    assert path.read_bytes() == b"first"
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    with pytest.raises(FileExistsError):
        write_new(tmp_path / "dangling", b"second")
    assert sorted(os.listdir(tmp_path)) == ["dangling", "kept"]


@ANY_WAY
def test_a_folder_that_is_not_there(tmp_path: Path, write: Callable[[Path, bytes], None]) -> None:
    with pytest.raises(FileNotFoundError):
        write(tmp_path / "missing" / "kept", b"data")


def test_a_folder_is_flushed_with_all_in_it(tmp_path: Path, flushed: list[str]) -> None:
    (tmp_path / "made.new").mkdir()
    (tmp_path / "made.new" / "leftover").write_bytes(b"")
    with folder_made_whole(tmp_path / "made") as aside:
        (aside / "inner").mkdir()
        (aside / "inner" / "file").write_bytes(b"data")
        assert not (tmp_path / "made").exists()
    assert sorted(flushed[:2]) == ["flush file 4", "flush inner"]
    assert flushed[2:] == ["flush made.new", "rename made", f"flush {tmp_path.name}"]
    assert [path.name for path in (tmp_path / "made").rglob("*")] == ["inner", "file"]
    assert os.listdir(tmp_path) == ["made"]


def test_a_folder_that_could_not_be_filled_is_not_there(tmp_path: Path) -> None:
    def halfway() -> None:
        with folder_made_whole(tmp_path / "made") as aside:
            (aside / "file").write_bytes(b"data")
            raise Cut

    with pytest.raises(Cut):
        halfway()
    assert os.listdir(tmp_path) == []


def test_a_folder_takes_the_place_of_an_empty_one_only(tmp_path: Path) -> None:
    made = tmp_path / "made"
    made.mkdir()
    with folder_made_whole(made) as aside:
        (aside / "first").write_bytes(b"")
    with pytest.raises(OSError, match="not empty"), folder_made_whole(made):
        pass
    assert [path.name for path in tmp_path.rglob("*")] == ["made", "first"]


def test_what_another_library_made_is_flushed_and_put_in_place(tmp_path: Path, flushed: list[str]) -> None:
    (tmp_path / "aside").write_bytes(b"data")
    put_in_place(tmp_path / "aside", tmp_path / "kept")
    assert flushed == ["flush aside 4", "rename kept", f"flush {tmp_path.name}"]
