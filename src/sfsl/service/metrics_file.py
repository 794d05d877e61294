"""``metrics.jsonl``: one line per round, on disk before the next round begins."""

import os
from pathlib import Path
from typing import IO

import msgspec

from sfsl.durable.closing import Closing
from sfsl.durable.files import write_whole
from sfsl.errors import InputError
from sfsl.rounds.record import RoundRecord


def read_lines(path: Path) -> list[RoundRecord]:
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
