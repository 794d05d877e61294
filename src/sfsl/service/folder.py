"""The folder in which rounds are kept: a store, the metrics, and in a deployment the registry."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sfsl.errors import InputError, StoreError
from sfsl.rounds.record import RoundRecord
from sfsl.service.journal import Journal
from sfsl.service.metrics_file import read_lines
from sfsl.submodel import LmdbStore, StoreSpec

STORE, REGISTRY, METRICS = "store", "registry.sqlite", "metrics.jsonl"


def make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {folder}: {error.strerror}") from None


def open_store(
    folder: Path, spec: StoreSpec, dense: Callable[[], NDArray[np.float32]], *, grow: bool = False
) -> LmdbStore:
    """Open the store in ``folder``; where there was none yet, make one that begins with ``dense``.

    With ``grow`` a store of fewer rows is taken up and has the others added.
    """
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
    last = journal.kept.record()
    if len(lines) == rounds - 1 and last is not None:
        lines.append(seen(last))
    if len(lines) < rounds:
        raise InputError(
            f"{path} ends with round {len(lines)}, the store with {rounds}: lines were lost. Restore the "
            "file, or begin anew in another folder"
        )
    return lines
