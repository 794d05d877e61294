"""The folder in which rounds are kept: a store, what is committed with each round, the metrics."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from sfsl import durable
from sfsl.checksums import json_lines, with_json_sum
from sfsl.durable import Closing, LineFile, kept_aside, system_errors_as, write_whole
from sfsl.errors import InputError, StoreCorrupt, StoreError
from sfsl.rounds.record import RoundRecord
from sfsl.service.disk import DiskTrouble
from sfsl.service.driver import Journal
from sfsl.service.registry import Registry
from sfsl.submodel import LmdbStore, StoreSpec

log = logging.getLogger(__name__)

STORE, REGISTRY, METRICS = "store", "registry.sqlite", "metrics.jsonl"


def read_lines(path: Path) -> list[RoundRecord]:
    """Return the lines of rounds 1, 2, …; a last line that a crash cut short is left out."""
    lines = []
    for number, line in enumerate(scan_lines(_content(path)), 1):
        if not isinstance(line, RoundRecord):
            raise InputError(f"{path}, line {number}, cannot be read: {line}; restore the file")
        if line.round != number:
            raise InputError(f"{path}, line {number}, is of round {line.round}; restore the file")
        lines.append(line)
    return lines


def scan_metrics(path: Path) -> Iterator[RoundRecord]:
    """Yield the lines that can be read, whatever became of the others."""
    return (line for line in scan_lines(_content(path)) if isinstance(line, RoundRecord))


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None


def scan_lines(data: bytes) -> Iterator[RoundRecord | str]:
    """Yield the records of a file's lines; where one is damaged, what is wrong with it."""
    for text in json_lines(data):
        if text is None:
            yield "its checksum does not fit"
            continue
        try:
            yield msgspec.json.decode(text, type=RoundRecord)
        except (msgspec.MsgspecError, ValueError) as error:
            yield str(error)


class MetricsFile(Closing):
    """Appends lines to those that there are, from which the file is made anew, whole.

    A disk that fails costs no round: what could not be written is kept, and written with the next line or
    when the file is closed. The log says so, once, also where others have ``trouble`` with that disk."""

    def __init__(self, path: Path, lines: Sequence[RoundRecord], trouble: DiskTrouble | None = None) -> None:
        self._path, self._owed, self._trouble = path, list(lines), trouble or DiskTrouble()
        self._file: LineFile | None = None
        self._write()

    def append(self, line: RoundRecord) -> None:
        self._owed.append(line)
        self._write()

    def close(self) -> None:
        if self._owed:
            self._write()
        if self._owed:
            log.warning(
                "%s still cannot be written: %s not in it. The store has them, and the last one's line",
                self._path, _rounds([line.round for line in self._owed]),
            )  # fmt: skip
        if self._file is not None:
            self._file.close()

    def _write(self) -> None:
        data = b"".join(with_json_sum(line.encode()) + b"\n" for line in self._owed)
        try:
            if self._file is None:
                write_whole(self._path, data)
                self._file = LineFile(self._path, len(data))
            else:
                self._file.append(data)
        except OSError as error:
            self._trouble.begins(
                METRICS,
                f"cannot write {self._path}: {error.strerror}. Rounds stand, and their lines are "
                "written when there is room",
            )
            return
        self._trouble.ends(METRICS, f"{self._path} can be written again, and has every line")
        self._owed = []


def make_folder(folder: Path) -> None:
    with system_errors_as(InputError, f"make the folder {folder}"):
        durable.make_folder(folder, 0o700)


def open_store(
    folder: Path, spec: StoreSpec, dense: Callable[[], NDArray[np.float32]], *, grow: bool = False
) -> LmdbStore:
    """Open the store in ``folder``; where there was none yet, make one that begins with ``dense``. With
    ``grow`` a store of fewer rows is taken up and has the others added."""
    if (folder / STORE).exists():
        return LmdbStore.open(folder / STORE, spec, grow=grow)
    if any(scan_lines(_content(folder / METRICS))):
        raise StoreError(f"{folder} has metrics but no store: it was deleted; restore it")
    return LmdbStore.create(folder / STORE, spec, dense())


def recover_lines(
    path: Path, journal: Journal, seen: Callable[[RoundRecord], RoundRecord] = lambda record: record
) -> list[RoundRecord]:
    """Return the metrics of all rounds in the store, whatever has become of their file: a line that is not
    there, or is damaged, is made again if it is the store's last, to which ``seen`` adds what comes to a
    record after its commit; in the place of others stands one that says so. The log says what was mended."""
    rounds, mended, harm = journal.store.round, [], False
    try:
        data = _content(path)
    except InputError as error:
        data, harm = b"", True
        mended.append(f"{error}, and is now {kept_aside(path).name}")
    found = list(scan_lines(data))
    lines = {line.round: line for line in found if isinstance(line, RoundRecord) and line.round <= rounds}
    if damaged := sum(isinstance(line, str) for line in found):
        harm = True
        what = "a damaged line is" if damaged == 1 else f"{damaged} damaged lines are"
        mended.append(f"{what} kept in {kept_aside(path).name}")
    if later := [line.round for line in found if isinstance(line, RoundRecord) and line.round > rounds]:
        # The store comes first: it was put back, or lost its last commits.
        harm = True
        mended.append(f"{_rounds(later)} not in the store, and left out; kept in {kept_aside(path).name}")
    if rounds and (rounds not in lines or lines[rounds].lost):
        with suppress(StoreCorrupt):
            if (last := journal.kept.record()) is not None:
                lines[rounds] = seen(last)
                mended.append(f"round {rounds} has its line from the store")
    if gone := [number for number in range(1, rounds + 1) if number not in lines]:
        harm = True
        mended.append(f"{_rounds(gone)} marked as lost")
    if mended:
        level = logging.WARNING if harm else logging.INFO
        log.log(level, "%s is mended: %s. The store is whole at round %d", path, "; ".join(mended), rounds)
    return [lines.get(number) or RoundRecord.of_lost(number) for number in range(1, rounds + 1)]


def _rounds(numbers: Sequence[int]) -> str:
    """Name rounds in a log: their number, and the first and last of them."""
    if len(numbers) == 1:
        return f"round {numbers[0]} is"
    return f"{len(numbers)} rounds, {numbers[0]} to {numbers[-1]}, are"


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
    trouble: DiskTrouble | None = None,
) -> ServerFolder:
    """Open a deployment's folder, made if there is none; ``held`` closes what is in it. The registry comes
    first, whose lock keeps others out."""
    make_folder(folder)
    registry = held.enter_context(Registry(folder / REGISTRY))
    store = held.enter_context(open_store(folder, spec, dense, grow=grow))
    lines = recover_lines(folder / METRICS, Journal(store))
    metrics = held.enter_context(MetricsFile(folder / METRICS, lines, trouble))
    return ServerFolder(registry, store, metrics, lines)
