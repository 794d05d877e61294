"""Versions of a server's model: copies of its store under names, and one of them put back.

Putting back is a round of its own, in which no client took part: one commit of the store, with the next
number. So no round's number is used twice, and what clients have spent stays as it was.
"""

import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from sfsl.durable import make_folder
from sfsl.errors import InputError, StoreError
from sfsl.rounds.record import RoundTally
from sfsl.service.driver import Journal
from sfsl.service.folder import METRICS, REGISTRY, STORE, MetricsFile, recover_lines
from sfsl.service.registry import Registry
from sfsl.submodel import Commit, LmdbStore, RowBlock, RowSet, RowStore
from sfsl.submodel.store import initial_rows, require_grown

VERSIONS = "versions"
CURRENT = "current"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class Version:
    """``name`` is "current" for the model that is served. ``rows``: by table, how many some round moved."""

    name: str
    round: int
    rows: dict[str, int]


def version_path(folder: Path, name: str) -> Path:
    """Return where a version is. Raises ``InputError`` where there is none."""
    path = folder / VERSIONS / name
    if not _NAME.fullmatch(name) or not path.is_dir():
        known = (
            ", ".join(sorted(one.name for one in _copies(folder))) or "none yet: sfsl models tag makes one"
        )
        raise InputError(f"{folder} has no version {name!r}; there are {known}")
    return path


def versions(folder: Path) -> list[Version]:
    """List the model that is served, and those that were tagged, by round."""
    _require_server(folder)
    found = []
    for path in _copies(folder):
        with LmdbStore.open(path) as store:
            found.append(_version(path.name, store))
    return [*sorted(found, key=lambda one: (one.round, one.name)), _current(folder)]


def tag(folder: Path, name: str) -> Version:
    """Keep the model as it is now under a name, durably; a server may go on meanwhile."""
    from sfsl.submodel.lmdb_file import copy_beside

    _require_server(folder)
    if not _NAME.fullmatch(name) or name == CURRENT:
        raise InputError(f"{name[:80]!r} is no name of a version: letters, digits, dots, dashes, up to 64")
    path = folder / VERSIONS / name
    if path.exists():
        raise InputError(f"{folder} has a version {name!r} already; choose another name")
    try:
        make_folder(path.parent, 0o700)
    except OSError as error:
        raise InputError(f"cannot make the folder {path.parent}: {error.strerror}") from None
    copy_beside(folder / STORE, path)
    try:
        with LmdbStore.open(path) as store:
            return _version(name, store)
    except StoreError:  # what is damaged is no version
        shutil.rmtree(path, ignore_errors=True)
        raise


def roll_back(folder: Path, name: str) -> Version:
    """Put the numbers of a version back, as a new round; the server is stopped. The model that it replaces is
    kept as the version ``round-N``."""
    _require_server(folder)
    path = version_path(folder, name)
    with ExitStack() as held:
        held.enter_context(Registry(folder / REGISTRY))  # its lock keeps a server out
        store = held.enter_context(LmdbStore.open(folder / STORE))
        old = held.enter_context(LmdbStore.open(path))
        require_grown(old.spec, store.spec, str(path))
        before = f"round-{store.round}"
        if not (folder / VERSIONS / before).exists():
            store.copy_to(folder / VERSIONS / before)
        journal, number = Journal(store), store.round + 1
        tables = {table.name: _as_it_was(store, old, table.name) for table in store.spec.tables}
        empty = RoundTally().record(number, None)
        record = msgspec.structs.replace(empty, restored=f"{name} of round {old.round}")
        journal.commit(Commit(number, tables, old.read_dense()), record, None)
        held.enter_context(MetricsFile(folder / METRICS, recover_lines(folder / METRICS, journal)))
        return _version(CURRENT, store)


def _as_it_was(store: RowStore, old: RowStore, table: str) -> RowBlock:
    """Return all rows that have moved since or before, with the values and the state that they had then."""
    about, known = store.spec.table(table), old.spec.table(table).rows
    rows = store.touched(table).with_rows(old.touched(table))
    held = rows.rows < known
    then = old.read_rows(table, RowSet(rows.rows[held]))
    values = np.zeros((len(rows), about.width), np.float32)
    state = np.zeros((len(rows), store.spec.row_slots, about.width), np.float32)
    values[held], state[held] = then.values, then.state
    values[~held] = initial_rows(store.spec.seed, about, rows.rows[~held])  # rows that came later
    return RowBlock(rows, values, state)


def _require_server(folder: Path) -> None:
    if not (folder / REGISTRY).is_file() or not (folder / STORE).is_dir():
        raise StoreError(f"{folder} is no server's folder: it has no {STORE} or no {REGISTRY}")


def _copies(folder: Path) -> Iterator[Path]:
    found = (folder / VERSIONS).iterdir() if (folder / VERSIONS).is_dir() else ()
    return (path for path in found if path.is_dir() and _NAME.fullmatch(path.name))


def _current(folder: Path) -> Version:
    """Look at the model that is served in a copy, since its server may have the store open."""
    import tempfile

    from sfsl.submodel.lmdb_file import copy_beside

    with tempfile.TemporaryDirectory() as made:
        copy_beside(folder / STORE, Path(made) / STORE)
        with LmdbStore.open(Path(made) / STORE) as store:
            return _version(CURRENT, store)


def _version(name: str, store: RowStore) -> Version:
    rows = {table.name: len(store.touched(table.name)) for table in store.spec.tables}
    return Version(name, store.round, rows)
