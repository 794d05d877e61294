"""A server's folder, and its rounds as settings say: what every engine that serves needs. No network here."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from sfsl.crypto.kdf import digest
from sfsl.errors import InputError, StoreError
from sfsl.rounds.record import RoundLine
from sfsl.run.setup import round_settings, slots
from sfsl.service.metrics_file import read_lines
from sfsl.service.planning import RoundState
from sfsl.service.settings import CoordinatorSettings
from sfsl.settings.run import RunConfig
from sfsl.simulate.settings import RoundSettings
from sfsl.submodel import LmdbStore, StoreSpec
from sfsl.training.task import Task

STORE, REGISTRY, METRICS = "store", "registry.sqlite", "metrics.jsonl"


def planned_rounds(run: RunConfig, threshold: int | None, **waiting: Any) -> CoordinatorSettings:
    """``run`` has numbers in place of "auto"; ``threshold`` None is a share of whoever is in a round.
    ``waiting``: what ``CoordinatorSettings`` has that no run file has."""
    rounds, one = round_settings(run, {}), run.round
    return CoordinatorSettings(
        update=rounds.update_in,
        cohort=one.clients,
        min_contributors=rounds.min_contributors,
        training=partial(_hyperparameters, rounds),
        threshold=threshold,
        encoding=one.encoding,
        bins=one.bins,
        precision=one.precision,
        **waiting,
    )


def _hyperparameters(rounds: RoundSettings, number: int) -> Mapping[str, float]:
    local = rounds.local
    return {
        "rate": local.rate(number - 1),
        "batch_size": local.batch_size,
        "epochs": local.epochs,
        "clip": local.clip,
    }


def make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {folder}: {error.strerror}") from None


def open_store(folder: Path, run: RunConfig, task: Task, *, grow: bool = False) -> LmdbStore:
    """The same rows as a simulation with this seed begins with; personal ones stay on the devices. With
    ``grow`` a store of fewer rows is taken up and has the others added."""
    spec = StoreSpec(
        model=task.spec,
        seed=digest("seed of a run", str(run.run.seed).encode()),
        row_slots=slots(run, run.server.row_step),
        dense_slots=slots(run, run.server.dense_step),
    )
    if (folder / STORE).exists():
        return LmdbStore.open(folder / STORE, spec, grow=grow)
    if read_lines(folder / METRICS):
        raise StoreError(f"{folder} has metrics but no store: it was deleted; restore it")
    return LmdbStore.create(folder / STORE, spec, task.initial_dense())


def known_lines(store: LmdbStore, path: Path) -> list[RoundLine]:
    """The metrics as far as the store has come; the last line may be in the store only."""
    lines = read_lines(path)[: store.round]
    if len(lines) == store.round - 1:
        last = RoundState.decode(store.selection).last_line()
        lines += [last] if last is not None else []
    if len(lines) < store.round:
        raise InputError(
            f"{path} ends with round {len(lines)}, the store with {store.round}: lines were lost. Restore it"
        )
    return lines
