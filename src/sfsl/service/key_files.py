"""Files with secrets in them: readable by their owner only, written whole, never overwritten."""

import errno
import os
import stat
from pathlib import Path

from sfsl.crypto.identity import Identity
from sfsl.crypto.kdf import digest
from sfsl.crypto.secret import Secret
from sfsl.durable import files
from sfsl.errors import InputError, KeyFileError

_HEAD = "sfsl identity 1"
_SEED_BYTES = 32
_LARGEST = 1 << 16
_OTHERS = 0o077


def write_identity(path: str | os.PathLike[str], seed: Secret) -> Identity:
    """Keep a client's seed in a new file (spec network 1.3)."""
    if len(seed) != _SEED_BYTES:
        raise InputError(f"an identity's seed has {_SEED_BYTES} bytes, not {len(seed)}")
    text = f"{_HEAD}\n{seed.reveal().hex()}\n{_checksum(seed)}\n"
    write_new(Path(path), text.encode("ascii"), secret=True)
    return Identity(seed)


def read_identity(path: str | os.PathLike[str]) -> Identity:
    """The identity in a file, or why it cannot be trusted. No error quotes the file."""
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
    """Finds damage. It stays in the file: it would let guesses of the seed be tested."""
    return digest("identity file", seed.reveal())[:8].hex()


def read_secret(path: Path) -> Secret:
    """The bytes of a file that only its owner may read."""
    try:
        # Not to hang where someone put a pipe.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise KeyFileError(f"{path} is not a file")
            if status.st_mode & _OTHERS:
                raise KeyFileError(
                    f"{path} holds a private key, and others may read or change it (mode "
                    f"{stat.S_IMODE(status.st_mode):04o}). If nobody did:  chmod 600 {path}"
                )
            data = os.read(descriptor, _LARGEST + 1)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise KeyFileError(f"cannot read {path}: {error.strerror}") from None
    if len(data) > _LARGEST:
        raise KeyFileError(f"{path} has more than {_LARGEST} bytes: it is no key")
    return Secret(data)


def write_new(path: Path, data: bytes, *, secret: bool) -> None:
    """A new file, whole and durable or not at all; one that exists is left alone."""
    try:
        files.write_new(path, data, mode=files.OWNER_ONLY if secret else 0o644)
    except FileExistsError:
        raise KeyFileError(
            f"{path} exists and is never overwritten; move it away, or choose another"
        ) from None
    except OSError as error:
        advice = (
            "free some space"
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
            else ("its folder must exist and be writable, on a disk with hard links")
        )
        raise KeyFileError(f"cannot write {path}: {error.strerror}; {advice}") from None
