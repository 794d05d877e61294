"""A copy of a server's folder, also while the server runs, and the way back.

The model is copied as of its last commit, and everything else after it, so that nothing in the copy is older
than the model: what clients have spent is in it, and every line of metrics that the model needs. A copy is
whole or not there. It has a digest of each file, which a restored folder is compared with.
"""

import os
import shutil
import stat
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path, PurePosixPath

import msgspec

from sfsl.checksums import sha256_of, with_json_sum, without_json_sum
from sfsl.durable import (
    OWNER_ONLY,
    folder_made_whole,
    make_folder,
    system_errors_as,
    write_whole,
    written_whole,
)
from sfsl.errors import InputError, StoreCorrupt, StoreError
from sfsl.service.folder import REGISTRY, STORE
from sfsl.service.registry import Registry
from sfsl.submodel import LmdbStore

MANIFEST = "backup.json"
FORMAT = 1
_DATA = "data.mdb"
_TLS = "tls"  # made anew wherever it is missing
# Locks, and what is beside a database while it is open: the copy of the database has all of it.
_PASSING = (".lock", "lock.mdb", "-wal", "-shm", "-journal", ".new")
# The log's head before the log, which may then have entries that the head lacks, and never the other way
# round; the clock last, up to which requests were taken.
_LAST = (REGISTRY, "roster.head", "roster.log", "clock")
_FOLDER_ONLY = 0o700
_LARGEST = 1 << 24
_CHUNK = 1 << 20


class Backup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Describes a copy: of which deployment, when it was ``made``, with which last round, and the SHA-256 of
    every file by its path."""

    format: int
    made: str
    deployment: str
    round: int
    files: dict[str, str]


def back_up(folder: Path, target: Path, *, now: datetime) -> Backup:
    """Copy the server's folder to ``target``, which is not there yet, while the server runs or not."""
    if not (folder / REGISTRY).is_file() or not (folder / STORE / _DATA).is_file():
        raise StoreError(f"{folder} is no server's folder: it has no {STORE} or no {REGISTRY}")
    if target.exists() and any(target.iterdir()):
        raise InputError(f"{target} is there already; a backup goes into a folder of its own")
    copying = system_errors_as(StoreError, f"copy {folder} to {target}", "; nothing was left there")
    with copying, folder_made_whole(target) as aside:
        aside.chmod(_FOLDER_ONLY)
        for name in _in_order(folder):
            _copy(folder / name, aside / name)
        made = _describe(aside, now)
        text = with_json_sum(msgspec.json.format(msgspec.json.encode(made)))
        write_whole(aside / MANIFEST, text, mode=OWNER_ONLY)
    return made


def restore(backup: Path, folder: Path) -> Backup:
    """Put a copy back as a server's folder, which is empty or not there. Every byte is checked first."""
    made = read_backup(backup)
    if folder.exists() and any(folder.iterdir()):
        raise InputError(
            f"{folder} is not empty: a backup is restored into a new folder, so that two moments do not "
            "mix. Move the old one away"
        )
    unmade = f"; nothing was left in {folder}"
    with system_errors_as(StoreError, f"restore {backup}", unmade), folder_made_whole(folder) as aside:
        aside.chmod(_FOLDER_ONLY)
        for name, digest in made.files.items():
            _copy_file(backup / name, aside / name)
            if sha256_of(aside / name) != digest:
                raise StoreCorrupt(f"{backup / name} is not what was backed up; take another backup")
        _require_sound(aside, made)
    return made


def read_backup(backup: Path) -> Backup:
    """Return what a copy says about itself; a file in it may lie nowhere but below it."""
    try:
        with open(backup / MANIFEST, "rb") as file:
            text = without_json_sum(file.read(_LARGEST), str(backup / MANIFEST), "take another backup")
        made = msgspec.json.decode(text, type=Backup)
    except FileNotFoundError:
        raise InputError(f"{backup} is no backup: it has no {MANIFEST}") from None
    except OSError as error:
        raise InputError(f"cannot read {backup / MANIFEST}: {error.strerror}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise StoreCorrupt(f"{backup / MANIFEST} is damaged: {error}; take another backup") from None
    if made.format != FORMAT:
        raise InputError(f"{backup} has format {made.format}, this version reads {FORMAT}; upgrade sfsl")
    for name in made.files:
        parts = PurePosixPath(name).parts
        if not parts or name.startswith("/") or ".." in parts:
            raise StoreCorrupt(f"{backup / MANIFEST} names {name!r}, which is not in the backup")
    return made


def _in_order(folder: Path) -> Iterator[str]:
    """Yield what is copied, files and whole databases, by its path in the folder: models first, then the
    rest, then what must not be older than anything else."""
    found = [path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file()]
    kept = [
        path
        for path in found
        if path.parts[0] != _TLS and not any(part.endswith(_PASSING) for part in path.parts)
    ]
    models = [str(path) for path in kept if path.name == _DATA]
    others = [str(path) for path in kept if path.name != _DATA and str(path) not in _LAST]
    return iter([*models, *others, *(name for name in _LAST if (folder / name).is_file())])


def _copy(source: Path, target: Path) -> None:
    if source.name == _DATA:
        from sfsl.submodel.lmdb_file import copy_beside

        copy_beside(source.parent, target.parent)
        target.parent.chmod(_FOLDER_ONLY)
    elif source.name == REGISTRY:
        with Registry.beside(source) as registry:
            registry.copy_to(target)
    else:
        _copy_file(source, target)
    target.chmod(OWNER_ONLY)


def _copy_file(source: Path, target: Path) -> None:
    make_folder(target.parent, _FOLDER_ONLY)
    # A link could lead anywhere, also out of the backup.
    descriptor = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as opened, written_whole(target) as copy:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise StoreError(f"{source} is not a file")
        shutil.copyfileobj(opened, copy, _CHUNK)
    target.chmod(OWNER_ONLY)


def _describe(copy: Path, now: datetime) -> Backup:
    """Open all that is in the copy as a server would, which reads all of it, and return what it is."""
    for model in copy.rglob(_DATA):
        LmdbStore.open(model.parent).close()
    with LmdbStore.open(copy / STORE, check=False) as store:
        number = store.round
    with Registry.beside(copy / REGISTRY) as registry:
        deployment = registry.deployment.hex()
    _clear(copy)
    files = {
        str(path.relative_to(copy)): sha256_of(path) for path in sorted(copy.rglob("*")) if path.is_file()
    }
    return Backup(FORMAT, now.isoformat(timespec="seconds"), deployment, number, files)


def _require_sound(copy: Path, made: Backup) -> None:
    again = _describe(copy, datetime.min)
    if (again.deployment, again.round) != (made.deployment, made.round):
        raise StoreCorrupt("the backup holds another deployment or round than it says; take another backup")


def _clear(copy: Path) -> None:
    """Remove what opening a database leaves beside it."""
    for path in copy.rglob("*"):
        if path.name.endswith(_PASSING):
            path.unlink()
