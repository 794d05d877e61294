"""The folder in which rounds are kept: a store, what is committed with each round, the metrics."""

import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import IO, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from sfsl.durable import Closing, write_whole
from sfsl.errors import InputError, StoreError
from sfsl.rounds.record import RoundRecord
from sfsl.service.driver import Journal
from sfsl.service.registry import Registry
from sfsl.submodel import LmdbStore, StoreSpec

STORE, REGISTRY, METRICS = "store", "registry.sqlite", "metrics.jsonl"


def read_lines(path: Path) -> list[RoundRecord]:
    """Return the lines of rounds 1, 2, …; a last line that a crash cut short is left out."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    whole = data.split(b"\n")[:-1]  # behind the last line break: nothing, or a torn line
    lines = []
    for number, text in enumerate(whole, 1):
        try:
            line = msgspec.json.decode(text, type=RoundRecord)
        except msgspec.MsgspecError as error:
            raise InputError(f"{path}, line {number}, cannot be read: {error}; restore the file") from None
        if line.round != number:
            raise InputError(f"{path}, line {number}, is of round {line.round}; restore the file")
        lines.append(line)
    return lines


class MetricsFile(Closing):
    """Appends lines. ``lines`` are those to begin with: the file is made anew from them, whole."""

    def __init__(self, path: Path, lines: list[RoundRecord]) -> None:
        try:
            write_whole(path, b"".join(line.encode() + b"\n" for line in lines))
            self._file: IO[bytes] = open(path, "ab", buffering=0)  # noqa: SIM115 -- closed in close
        except OSError as error:
            raise InputError(f"cannot write {path}: {error.strerror}; the rounds stand") from None
        self._path = path

    def append(self, line: RoundRecord) -> None:
        try:
            self._file.write(line.encode() + b"\n")
            os.fsync(self._file.fileno())
        except OSError as error:
            raise InputError(
                f"cannot write {self._path}: {error.strerror}; round {line.round} stands. Free some space "
                "and resume the run"
            ) from None

    def close(self) -> None:
        self._file.close()


def make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {folder}: {error.strerror}") from None


def open_store(
    folder: Path, spec: StoreSpec, dense: Callable[[], NDArray[np.float32]], *, grow: bool = False
) -> LmdbStore:
    """Open the store in ``folder``; where there was none yet, make one that begins with ``dense``. With
    ``grow`` a store of fewer rows is taken up and has the others added."""
    if (folder / STORE).exists():
        return LmdbStore.open(folder / STORE, spec, grow=grow)
    if read_lines(folder / METRICS):
        raise StoreError(f"{folder} has metrics but no store: it was deleted; restore it")
    return LmdbStore.create(folder / STORE, spec, dense())


def recover_lines(
    path: Path, journal: Journal, seen: Callable[[RoundRecord], RoundRecord] = lambda record: record
) -> list[RoundRecord]:
    """Return the metrics as far as the store has come. The last line may be in the store only; ``seen`` then
    adds what comes to a record after its commit."""
    rounds = journal.store.round
    lines = read_lines(path)[:rounds]
    if len(lines) == rounds - 1 and (last := journal.kept.record()) is not None:
        lines.append(seen(last))
    if len(lines) < rounds:
        raise InputError(
            f"{path} ends with round {len(lines)}, the store with {rounds}: lines were lost. Restore the "
            "file, or begin anew in another folder"
        )
    return lines


class ServerFolder(NamedTuple):
    """What a deployment's folder holds, open: ``lines`` are the metrics so far."""

    registry: Registry
    store: LmdbStore
    metrics: MetricsFile
    lines: list[RoundRecord]


def open_server_folder(
    folder: Path,
    spec: StoreSpec,
    dense: Callable[[], NDArray[np.float32]],
    held: ExitStack,
    *,
    grow: bool = False,
) -> ServerFolder:
    """Open a deployment's folder, made if there is none; ``held`` closes what is in it. The registry comes
    first, whose lock keeps others out."""
    make_folder(folder)
    registry = held.enter_context(Registry(folder / REGISTRY))
    store = held.enter_context(open_store(folder, spec, dense, grow=grow))
    lines = recover_lines(folder / METRICS, Journal(store))
    return ServerFolder(registry, store, held.enter_context(MetricsFile(folder / METRICS, lines)), lines)
