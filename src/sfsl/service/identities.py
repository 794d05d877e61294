"""Long-term identities: their files, and the list of those who may enrol.

A least cohort means nothing if someone can invent clients. **Open enrolment is an invitation to Sybils**:
whoever makes keys makes clients, and a server can then surround a victim with its own. It is for tests and
for closed networks. A list is worth as much as the care with which it is kept.
"""

import errno
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from sfsl import durable
from sfsl.crypto.secret import Identity, Secret, digest
from sfsl.durable import system_errors_as
from sfsl.errors import InputError, InvalidMessage, KeyFileError, ParameterError, Refused, UnknownClient
from sfsl.service.messages import LogEntry
from sfsl.service.signing import client_id, require_public

if TYPE_CHECKING:
    from sfsl.service.log_file import RosterLog
    from sfsl.service.registry import Registry

_HEAD = "sfsl identity 1"
_SEED_BYTES = 32
_LARGEST = 1 << 16
KEY_LINE = re.compile("([0-9a-fA-F]{64})(?: +([0-9a-fA-F]{128}))?")
_MOST_LINE = 4096
_MOST_NAME = 64


def write_identity(path: str | os.PathLike[str], seed: Secret) -> Identity:
    """Keep a client's seed in a new file (spec network 1.3)."""
    if len(seed) != _SEED_BYTES:
        raise InputError(f"an identity's seed has {_SEED_BYTES} bytes, not {len(seed)}")
    text = f"{_HEAD}\n{seed.reveal().hex()}\n{_checksum(seed)}\n"
    write_new(Path(path), text.encode("ascii"), secret=True)
    return Identity(seed)


def read_identity(path: str | os.PathLike[str]) -> Identity:
    """Return the identity in a file, or say why it cannot be trusted. No error quotes the file."""
    lines = read_secret(Path(path)).reveal().split(b"\n")
    if not lines[0].startswith(b"sfsl identity "):
        raise KeyFileError(f"{path} holds no identity of a client; sfsl keys client makes one")
    if lines[0] != _HEAD.encode():
        raise KeyFileError(f"{path} was written by another version of this package; upgrade sfsl")
    try:
        _, seed_hex, checksum, end = (line.decode("ascii") for line in lines)
        seed = Secret(bytes.fromhex(seed_hex))
        sound = len(seed) == _SEED_BYTES and seed_hex == seed.reveal().hex() and not end
    except ValueError:
        sound = False
    if not sound or checksum != _checksum(seed):
        raise KeyFileError(
            f"{path} is damaged: its checksum does not fit. Restore a backup, or make a new identity and "
            "enrol it"
        )
    return Identity(seed)


def _checksum(seed: Secret) -> str:
    """Return what finds damage. It stays in the file: it would let guesses of the seed be tested."""
    return digest("identity file", seed.reveal())[:8].hex()


def read_secret(path: Path) -> Secret:
    """Return the bytes of a file that only its owner may read."""
    with system_errors_as(KeyFileError, f"read {path}"):
        # Not to hang where someone put a pipe.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise KeyFileError(f"{path} is not a file")
            if status.st_mode & durable.OTHERS:
                raise KeyFileError(
                    f"{path} holds a private key, and others may read or change it (mode "
                    f"{stat.S_IMODE(status.st_mode):04o}). If nobody did:  chmod 600 {path}"
                )
            data = os.read(descriptor, _LARGEST + 1)
        finally:
            os.close(descriptor)
    if len(data) > _LARGEST:
        raise KeyFileError(f"{path} has more than {_LARGEST} bytes: it is no key")
    return Secret(data)


def write_new(path: Path, data: bytes, *, secret: bool) -> None:
    """Make a new file, whole and durable or not at all; one that exists is left alone."""
    try:
        durable.write_new(path, data, mode=durable.OWNER_ONLY if secret else 0o644)
    except FileExistsError:
        raise KeyFileError(
            f"{path} exists and is never overwritten; move it away, or choose another"
        ) from None
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        advice = (
            "free some space" if full else "its folder must exist and be writable, on a disk with hard links"
        )
        raise KeyFileError(f"cannot write {path}: {error.strerror}; {advice}") from None


class Enrolment:
    """Says who may enrol. It is made by ``Enrolment.listed`` or ``Enrolment.open``."""

    def __init__(self, mode: str, *, path: Path | None = None, most: int | None = None) -> None:
        self.mode, self._path, self._most = mode, path, most
        self._keys: dict[bytes, bytes] = {}
        self._seen: tuple[int, ...] | None = None

    @classmethod
    def listed(cls, path: str | os.PathLike[str]) -> "Enrolment":
        """Make mode "list": a file of public keys, one a line in hexadecimal, with an authority's voucher
        behind it where there is one (spec log 1); ``#`` starts a comment. It is read again when it changes. A
        key taken off it keeps who is enrolled already: revoke them."""
        rule = cls("list", path=Path(path))
        rule.read()  # what is wrong with it shows at the start
        return rule

    @classmethod
    def open(cls, most: int) -> "Enrolment":
        """Make mode "open": anyone, until ``most`` clients are enrolled. This means Sybils."""
        if most < 1:
            raise ParameterError(f"open enrolment for {most} clients admits nobody")
        return cls("open", most=most)

    def admit(self, registry: "Registry", public: bytes, now_ms: int, log: "RosterLog | None" = None) -> str:
        """Enrol this key and return its client's id, or say why not. Who is enrolled already stays so. It is
        in the log before it is enrolled."""
        client, entry = client_id(public), LogEntry(bytes(public), self._voucher(public))
        try:
            registry.public_key(client)
        except UnknownClient:
            self._require(registry, client, public)
            if log is not None:
                log.require_vouched(entry)
        if log is not None:
            log.enter([entry], now_ms)
        return registry.enrol(public, now_ms)

    def _voucher(self, public: bytes) -> bytes:
        """Return the voucher that the list has for a key, if any. That a list is bad is for others to say."""
        with suppress(InputError):
            return self.read().get(bytes(public), b"") if self._path is not None else b""
        return b""

    def _require(self, registry: "Registry", client: str, public: bytes) -> None:
        if self._path is not None and bytes(public) not in self.read():
            raise Refused(
                f"client {client} is not on this server's list; ask its operator to add the public key"
            )
        if self._most is not None and registry.count() >= self._most:
            raise Refused(f"this server takes {self._most} clients and has them")

    def read(self) -> Mapping[bytes, bytes]:
        """Return the vouchers on the list by key, from the disk if it changed. A list with a mistake admits
        nobody."""
        if self._path is None:
            raise InputError('only mode "list" has a list of keys')
        try:
            with open(self._path, "rb") as file:
                status = os.fstat(file.fileno())
                seen = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
                if seen != self._seen:
                    self._seen = None  # until all of it is read
                    self._keys, self._seen = dict(_keys(file, self._path)), seen
        except OSError as error:
            self._seen = None
            raise InputError(f"cannot read the list of clients {self._path}: {error.strerror}") from None
        return self._keys


def names_on(path: str | os.PathLike[str]) -> dict[bytes, str]:
    """Return what a list of clients calls them: the comment behind a key, without what a terminal obeys."""
    with system_errors_as(InputError, f"read the list of clients {path}"):
        text = Path(path).read_text("utf-8", "replace")
    names = {}
    for line in text.splitlines():
        key, _, comment = line.partition("#")
        if found := KEY_LINE.fullmatch(key.strip()):
            names[bytes.fromhex(found[1])] = "".join(filter(str.isprintable, comment)).strip()[:_MOST_NAME]
    return names


def _keys(file: BinaryIO, path: Path) -> Iterator[tuple[bytes, bytes]]:
    for number, line in enumerate(iter(lambda: file.readline(_MOST_LINE), b""), 1):
        text = line.decode("utf-8", "replace").partition("#")[0].strip()
        if len(line) == _MOST_LINE and not line.endswith(b"\n"):
            raise InputError(f"{path}, line {number}: longer than {_MOST_LINE} bytes")
        if not text:
            continue
        found = KEY_LINE.fullmatch(text)
        if found is None:
            raise InputError(
                f"{path}, line {number}: a public key has 64 hexadecimal digits (sfsl keys show), and a "
                "voucher behind it 128"
            )
        key = bytes.fromhex(found[1])
        try:
            require_public(key)
        except InvalidMessage as error:
            raise InputError(f"{path}, line {number}: {error}") from None
        yield key, bytes.fromhex(found[2] or "")
