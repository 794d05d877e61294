"""Files and folders that are always whole, locks that a crash releases, and small secret records.

Whatever ends the process or the power while they are written, files are whole. Everything is made aside,
flushed, and only then given its name; then the folder is flushed, so that the name stays too. Errors of the
disk are raised as they come, as ``OSError``: the caller knows what they mean (``system_errors_as``).

A file of lines grows by whole lines (``LineFile``); files of other kinds are replaced. What a file holds is
checked when it is read, by the checksum inside it (``sfsl.checksums``).

A secret record has a file of its own, with a checksum, locked, and is replaced whole or not at all. A
checksum finds damage, not forgery: whoever can write the file can write the checksum too.
"""

import errno
import fcntl
import hashlib
import os
import resource
import secrets
import shutil
import stat
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Generic, Protocol, Self, TypeVar

from sfsl.checksums import add_last_line
from sfsl.codec import Codec, Message
from sfsl.errors import (
    LocalError,
    RemoteError,
    SfslError,
    StateError,
    StoreError,
    StoreFull,
    StoreInUse,
    WrongVersion,
)

OWNER_ONLY = 0o600
OTHERS = 0o077
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
# Libraries report a write that the disk cut short as a failing one; with less room than this it is full.
LITTLE_ROOM = 1 << 22
_CHECKSUM_BYTES = 32
Record = TypeVar("Record", bound=Message)


@contextmanager
def system_errors_as(kind: type[SfslError], doing: str, advice: str = "") -> Iterator[None]:
    """Raise what the system refuses in the block as an error of ours: what failed, why, and ``advice``. A
    store that there is no room for is ``StoreFull``."""
    try:
        yield
    except OSError as error:
        if kind is StoreError and error.errno in NO_ROOM:
            kind = StoreFull
        raise kind(f"cannot {doing}: {error.strerror or error}{advice}") from None


def room_for(path: Path) -> int:
    """Return by how many bytes the file at ``path`` may grow: by what its disk has, and what this process may
    write."""
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    allowed = sys.maxsize if limit == resource.RLIM_INFINITY else limit
    folder = next(one for one in path.parents if one.exists())
    return min(shutil.disk_usage(folder).free, allowed - (path.stat().st_size if path.exists() else 0))


def takes(folder: Path, size: int) -> bool:
    """Try whether the disk under this folder takes so many bytes more, durably; nothing is left of it."""
    aside = folder / "room.new"
    try:
        aside.unlink(missing_ok=True)  # of a crash
        try:
            _write_flushed(aside, bytes(size), OWNER_ONLY)
        finally:
            aside.unlink(missing_ok=True)
    except OSError:
        return False
    return True


def write_whole(path: Path, data: bytes, *, mode: int | None = None) -> None:
    """Put ``data`` in the place of whatever ``path`` was. ``mode``: the file's rights; None leaves them to
    the umask."""
    with _aside(path) as aside:
        _write_flushed(aside, data, mode)
        os.rename(aside, path)
    _flush_path(path.parent)


@contextmanager
def written_whole(path: Path, *, checksum: bool = False) -> Iterator[BinaryIO]:
    """Open a file that takes the place of ``path`` once it is on disk; until then nothing changes there.
    ``checksum``: with one as its last line."""
    with _aside(path) as aside:
        with open(aside, "x+b") as file:
            yield file
            if checksum:
                add_last_line(file)
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
    make_folder(path.parent)
    aside.mkdir()
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


def make_folder(path: Path, mode: int = 0o777) -> None:
    """Make a folder where there is none, with those above it; their names would survive a power cut, and so
    what is put into them. ``mode``: its own rights."""
    if path.is_dir():
        return
    if path.parent != path:
        make_folder(path.parent)
    path.mkdir(mode=mode, exist_ok=True)
    _flush_path(path.parent)


def kept_aside(path: Path) -> Path:
    """Give a damaged file another name besides, under which somebody may look at what is left of it once it
    is replaced, and return that. It takes no room; where the disk does not even do that, it is left."""
    aside = path.with_name(path.name + ".damaged")
    with suppress(OSError):
        aside.unlink(missing_ok=True)
    with suppress(OSError):
        (os.rename if path.is_dir() else os.link)(path, aside)
        _flush_path(path.parent)
    return aside


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
        _write_all(descriptor, data)
        _flush(descriptor)
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, data: bytes) -> None:
    written = 0
    while written < len(data):  # a disk may take less than it is offered
        written += os.write(descriptor, data[written:])


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


class SupportsClose(Protocol):
    def close(self) -> None: ...


class Closing(ABC):
    """Whoever has a ``close`` can be used in a ``with``, which calls it however the block ends."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class LineFile(Closing):
    """A file that grows by whole lines, open until ``close``. What ``append`` has returned from survives a
    power cut. If it fails, the lines before are there and nothing else, and it may be tried again; what a
    power cut leaves of a line has no line break, and is cut off when the file is opened."""

    def __init__(self, path: Path, size: int) -> None:
        """Open a file that is there, of whose bytes the first ``size`` are whole lines."""
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        self._size = size
        with closed_on_error(self):
            self._cut()

    def append(self, lines: bytes) -> None:
        """Add lines with their line breaks, all of them or none."""
        if os.fstat(self._file).st_size != self._size:
            self._cut()  # of an attempt that failed, after which cutting failed too
        try:
            _write_all(self._file, lines)
            _flush(self._file)
        except OSError:
            with suppress(OSError):
                self._cut()
            raise
        self._size += len(lines)

    def _cut(self) -> None:
        os.ftruncate(self._file, self._size)
        _flush(self._file)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


@contextmanager
def closed_on_error(held: SupportsClose) -> Iterator[None]:
    """Close what was just opened if the block fails; otherwise it stays open."""
    try:
        yield
    except BaseException:
        held.close()
        raise


class FileLock(Closing):
    """Holds the lock beside a path from construction to ``close``, or to the end of the process. The lock
    goes with the process however it ends, so a crash leaves nothing to clean up. ``error``, ``in_use`` and
    ``busy`` say what to raise, and in which words, where what is locked is not a store."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        error: type[LocalError] = StoreError,
        in_use: type[LocalError] = StoreInUse,
        busy: str = "is open elsewhere; end that run or wait for it, then try again",
    ) -> None:
        self.path = Path(os.path.realpath(path))  # two names of one file must meet at one lock
        self._error, self._in_use = error, in_use
        self._process = os.getpid()
        try:
            self._lock = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as failure:
            raise error(
                f"cannot lock {self.path}: {failure.strerror}; its folder must exist and be writable"
            ) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as failure:
            self.close()
            if isinstance(failure, BlockingIOError):
                raise in_use(f"{self.path} {busy}") from None
            raise error(f"cannot lock {self.path}: {failure.strerror}; use a local disk") from None

    def require(self) -> None:
        """Raise unless this process holds the lock."""
        if self._lock < 0:
            raise self._error(f"{self.path} was closed; open it again")
        if os.getpid() != self._process:
            raise self._in_use(
                f"{self.path} was opened before a fork; only the process that opened it may use it"
            )

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def with_checksum(body: bytes) -> bytes:
    return hashlib.sha256(body).digest() + body


def without_checksum(data: bytes) -> bytes | None:
    """Return what ``with_checksum`` was given; None where it is damaged."""
    body = data[_CHECKSUM_BYTES:]
    return body if hashlib.sha256(body).digest() == data[:_CHECKSUM_BYTES] else None


class RecordFormat(Generic[Record]):
    """How records of one kind are kept. ``what`` names them in errors; ``lost`` says what to do where one is
    damaged."""

    def __init__(self, kind: type[Record], magic: bytes, *, largest: int, what: str, lost: str) -> None:
        self.largest = largest
        self._kind, self._magic, self._what, self._lost = kind, magic, what, lost
        self._codec = Codec(kind)

    def encode(self, record: Record) -> bytes:
        return self._magic + with_checksum(self._codec.encode(record))

    def decode(self, data: bytes, where: str) -> Record:
        """Return the record, or raise a ``StateError`` that says what the file is instead."""
        if not data.startswith(self._magic):
            raise StateError(f"{where} is not {self._what} of this package (or its first bytes are damaged)")
        body = without_checksum(data[len(self._magic) :])
        if body is None:
            raise StateError(f"{where} is damaged: its checksum does not fit. {self._lost}")
        try:
            record = self._codec.decode(body, limit=self.largest)
        except WrongVersion as error:
            raise StateError(f"{where} was written by another version of this package: {error}") from None
        except RemoteError as error:
            raise StateError(f"{where} does not hold {self._what}: {error}") from None
        assert isinstance(record, self._kind)  # noqa: S101 -- the codec knows no other type
        return record


class DurableFile(Closing):
    """Holds the lock on a path from construction to ``close``. ``replace`` returns when the new bytes would
    survive a power cut. If it fails, the disk holds the old bytes or the new ones and nobody knows which, so
    the object refuses all further use."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        busy = "is in use by another process; two must never answer from one state"
        self._lock = FileLock(path, error=StateError, in_use=StateError, busy=busy)
        self.path = self._lock.path
        self._usable = True

    def exists(self) -> bool:
        return self.path.exists()

    def read(self, limit: int) -> bytes:
        """Return all of it. A file that others may read or change is refused: it is theirs as well."""
        with system_errors_as(StateError, f"read {self.path}"), open(self.path, "rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            data = file.read(limit + 1)
        if mode & OTHERS:
            raise StateError(
                f"{self.path} holds secrets, and others may read or change it (mode {mode:04o}). If nobody "
                f"did:  chmod 600 {self.path}"
            )
        if len(data) > limit:
            raise StateError(f"{self.path} has more than {limit} bytes: it is not a state of this package")
        return data

    def replace(self, data: bytes) -> None:
        self._lock.require()
        if not self._usable:
            raise StateError(f"an earlier write to {self.path} failed; open it again")
        self._usable = False
        try:
            write_whole(self.path, data, mode=OWNER_ONLY)
        except OSError as error:
            raise StateError(
                f"cannot write {self.path}: {error.strerror}; nothing was answered. Check the disk, then "
                "open the state again"
            ) from None
        self._usable = True

    def close(self) -> None:
        self._lock.close()
