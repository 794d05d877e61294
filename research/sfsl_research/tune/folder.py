"""The folder of a search: what was asked for, a checkpoint to go on from, and what came out."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from sfsl.checksums import with_json_sum, without_json_sum
from sfsl.durable import (
    Closing,
    FileLock,
    folder_made_whole,
    make_folder,
    write_new,
    write_whole,
    written_whole,
)
from sfsl.errors import InputError
from sfsl.settings.run import RunConfig, from_sections
from sfsl_research.checkpoints import read_arrays
from sfsl_research.tune.halving import ArmState, By
from sfsl_research.tune.space import Value

PLAN, STATE, CURVES, SUMMARY, RUN_FILE = "tune.json", "state.npz", "curves.csv", "summary.json", "tuned.toml"

Arrays = Mapping[str, NDArray[Any]]


class Plan(msgspec.Struct, frozen=True):
    """What a search was asked for. ``base`` is the run whose settings are searched around, ``arms`` what each
    changes of it, by name; ``clients`` and ``samples`` are those of the data it began with."""

    base: RunConfig
    arms: dict[str, dict[str, Value]]
    clients: int
    samples: int

    @property
    def rounds(self) -> int:
        return self.base.run.rounds

    @property
    def by(self) -> By:
        """What says which arm is best: that which says which round of a run is."""
        return self.base.run.keep


class State(msgspec.Struct, frozen=True):
    """How far a search came, without the models."""

    round: int
    arms: dict[str, ArmState]


class TuneFolder(Closing):
    """One process's folder until ``close``."""

    def __init__(self, path: Path) -> None:
        if not (path / PLAN).is_file():
            raise InputError(
                f"no search at {path}: it has no {PLAN}; start one with sfsl tune DATA --out {path}"
            )
        self.path, self.plan = path, _read_plan(path / PLAN)
        self._lock = FileLock(path / STATE)

    @classmethod
    def create(cls, path: Path, plan: Plan) -> "TuneFolder":
        """Make the folder, whole or not at all."""
        require_free(path)
        try:
            make_folder(path.parent)
            with folder_made_whole(path) as aside:
                write_new(aside / PLAN, _json(plan))
        except OSError as error:
            raise InputError(f"cannot make the folder {path}: {error.strerror}") from None
        return cls(path)

    def close(self) -> None:
        self._lock.close()

    def remove(self) -> None:
        """Close it and take it away with all that is in it."""
        self.close()
        shutil.rmtree(self.path, ignore_errors=True)

    def save(self, state: State, arrays: Arrays) -> None:
        """Write a checkpoint in the place of the last: one file, so that it agrees with itself."""
        record = np.frombuffer(msgspec.json.encode(state), np.uint8)
        try:
            with written_whole(self.path / STATE, checksum=True) as file:
                np.savez(file, allow_pickle=False, record=record, **arrays)
        except OSError as error:
            raise InputError(
                f"cannot write {self.path / STATE}: {error.strerror}; the checkpoint before it stands"
            ) from None

    def load(self) -> tuple[State, dict[str, NDArray[Any]]] | None:
        """Read the last checkpoint; None where the search was stopped before there was one."""
        if not (self.path / STATE).exists():
            return None
        try:
            arrays = read_arrays(self.path / STATE)
            return msgspec.json.decode(arrays.pop("record").tobytes(), type=State), arrays
        except (InputError, KeyError, UnicodeDecodeError, msgspec.MsgspecError) as error:
            raise InputError(
                f"cannot go on with the search in {self.path}: {STATE} is damaged ({error}); restore it, or "
                "begin anew in another folder"
            ) from None

    def write(self, name: str, data: bytes) -> Path:
        try:
            write_whole(self.path / name, data)
        except OSError as error:
            raise InputError(f"cannot write {self.path / name}: {error.strerror}") from None
        return self.path / name

    def write_summary(self, summary: object) -> Path:
        return self.write(SUMMARY, _json(summary))


def require_free(path: Path) -> None:
    """Refuse a folder that holds something; nothing in it is touched."""
    if (path / PLAN).is_file():
        raise InputError(
            f"{path} holds a search already; go on with it with --resume, or choose another folder with --out"
        )
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise InputError(f"{path} exists and is no empty folder; choose another with --out")


def _read_plan(path: Path) -> Plan:
    """Read what was asked for; what another version did not know yet has its default."""
    try:
        stored = msgspec.json.decode(without_json_sum(path.read_bytes(), "it"), type=dict[str, Any])
        stored["base"] = from_sections(stored["base"])
        return msgspec.convert(stored, Plan)
    except (OSError, KeyError, TypeError, ValueError) as error:  # also errors of settings, and of msgspec
        raise InputError(f"cannot read {path}: {error}") from None


def _json(value: object) -> bytes:
    return with_json_sum(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")
