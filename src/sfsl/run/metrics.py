"""``metrics.jsonl``: one line per round, on disk before the next round begins."""

import os
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import msgspec

from sfsl.errors import InputError


class RoundLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one round did and cost. Bytes and client seconds are per client that answered, by exchange.

    ``auc`` is that of the central test set after the round, where it was evaluated; ``auc_secure`` that of
    the cohort's own held-out samples before it, from securely summed histograms, and at most
    ``auc_secure_error`` from that of the scores themselves. ``unknown_rows``: rows that clients' data
    names and the model does not have. ``opened``: rows with at
    least one contributor. ``training_seconds`` and ``wall_seconds`` are those of this whole process.
    """

    round: int
    aborted: str | None
    cohort: int
    survivors: int
    dropped: dict[str, int]
    declined: dict[str, int]
    diverged: int
    samples: int
    unknown_rows: int
    loss: float | None
    auc: float | None
    auc_secure: float | None
    auc_secure_error: float | None
    union: dict[str, int]
    opened: dict[str, int]
    moved: dict[str, int]
    refused: dict[str, int]
    bytes_up: dict[str, float]
    bytes_down: dict[str, float]
    client_seconds: dict[str, float]
    server_seconds: dict[str, float]
    training_seconds: float
    wall_seconds: float

    def encode(self) -> bytes:
        """JSON; what is not a number is null there."""
        return msgspec.json.encode(self)


def read_lines(path: Path) -> list[RoundLine]:
    """The lines of rounds 1, 2, …; a last line that a crash cut short is left out."""
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
            line = msgspec.json.decode(text, type=RoundLine)
        except msgspec.MsgspecError as error:
            raise InputError(f"{path}, line {number}, cannot be read: {error}; restore the file") from None
        if line.round != number:
            raise InputError(f"{path}, line {number}, is of round {line.round}; restore the file")
        lines.append(line)
    return lines


class MetricsFile:
    """Appends lines. ``lines`` are those to begin with: the file is made anew from them, whole."""

    def __init__(self, path: Path, lines: list[RoundLine]) -> None:
        aside = path.with_name(path.name + ".new")
        try:
            with open(aside, "wb") as file:
                for line in lines:
                    file.write(line.encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(aside, path)
            self._file: IO[bytes] = open(path, "ab", buffering=0)  # noqa: SIM115 -- closed in close
        except OSError as error:
            raise InputError(f"cannot write {path}: {error.strerror}; the rounds stand") from None
        self._path = path

    def append(self, line: RoundLine) -> None:
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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
