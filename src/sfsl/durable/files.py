"""Files and folders that are always whole, whatever ends the process or the power while they are written.

Everything is made aside, flushed, and only then given its name; then the folder is flushed, so that the name
stays too. Errors of the disk are raised as they come, as ``OSError``: the caller knows what they mean.
"""

import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

OWNER_ONLY = 0o600


def write_whole(path: Path, data: bytes, *, mode: int | None = None) -> None:
    """Put ``data`` in the place of whatever ``path`` was. ``mode``: the file's rights; None leaves them to
    the umask."""
    with _aside(path) as aside:
        _write_flushed(aside, data, mode)
        os.rename(aside, path)
    _flush_path(path.parent)


@contextmanager
def written_whole(path: Path) -> Iterator[BinaryIO]:
    """Open a file that takes the place of ``path`` once it is on disk; until then nothing changes there."""
    with _aside(path) as aside:
        with open(aside, "xb") as file:
            yield file
            file.flush()
            _flush(file.fileno())
        os.rename(aside, path)
    _flush_path(path.parent)


def write_new(path: Path, data: bytes, *, mode: int | None = None) -> None:
    """Make a file that was not there; one that exists is left alone, and ``FileExistsError`` raised."""
    # A name nobody can guess, so that nobody can have put something there.
    aside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        _write_flushed(aside, data, mode)
        os.link(aside, path)  # unlike a rename it fails if someone was faster
    finally:
        with suppress(OSError):
            os.unlink(aside)
    _flush_path(path.parent)


@contextmanager
def folder_made_whole(path: Path) -> Iterator[Path]:
    """Make an empty folder to fill, which becomes ``path`` once all in it is on disk. ``path`` is not there
    yet, or is an empty folder."""
    aside = path.with_name(path.name + ".new")
    shutil.rmtree(aside, ignore_errors=True)  # of an earlier attempt that was cut short
    aside.mkdir(parents=True)
    try:
        yield aside
        for made in aside.rglob("*"):
            _flush_path(made)
        put_in_place(aside, path)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def put_in_place(aside: Path, path: Path) -> None:
    """Flush what another library has written at ``aside``, and make it ``path``."""
    _flush_path(aside)
    os.rename(aside, path)
    _flush_path(path.parent)


@contextmanager
def _aside(path: Path) -> Iterator[Path]:
    """The name to write under. Nothing is left there, of an earlier crash or of this attempt if it fails."""
    aside = path.with_name(path.name + ".new")
    with suppress(FileNotFoundError):
        os.unlink(aside)
    try:
        yield aside
    except BaseException:
        with suppress(OSError):
            os.unlink(aside)
        raise


def _write_flushed(path: Path, data: bytes, mode: int | None) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o666 if mode is None else mode)
    try:
        if mode is not None:
            os.fchmod(descriptor, mode)  # whatever the umask
        written = 0
        while written < len(data):  # a disk may take less than it is offered
            written += os.write(descriptor, data[written:])
        _flush(descriptor)
    finally:
        os.close(descriptor)


def _flush_path(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _flush(descriptor)
    finally:
        os.close(descriptor)


def _flush(descriptor: int) -> None:
    """macOS keeps fsynced data in the drive's cache unless asked in its own way."""
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is None:
        os.fsync(descriptor)
    else:
        fcntl.fcntl(descriptor, full)
