"""One client's samples, what it makes of a downloaded submodel, and the standard trainer of torch."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from threading import Lock

import numpy as np

from sfsl.arrays import Indices, Values
from sfsl.client.round import Lesson
from sfsl.errors import Refused
from sfsl.rounds import Download, ScoreBins, Trained
from sfsl.submodel import RowSet, TrainedRows
from sfsl.training import (
    ClientWork,
    LocalSettings,
    LocalUpdate,
    rebuild_client,
    reference_score,
    relative_scores,
    score_histograms,
    score_samples,
    train_client,
)
from sfsl.training.task import ClientData, Rows, Task


@dataclass(frozen=True)
class Device:
    """One client's samples, to train on and to test with, and the task that they are for."""

    task: Task
    train: ClientData
    held_out: ClientData | None = None

    @property
    def needed(self) -> dict[str, Indices]:
        """The rows of every table that its data names; those that the model does not have are left out."""
        return self._named[0]

    @property
    def unknown(self) -> int:
        """The number of rows that its data names and the model does not have."""
        return self._named[1]

    @cached_property
    def personal(self) -> dict[str, Indices]:
        """The rows of personal tables that it keeps: those it trains, and those it is tested on."""
        tested = self.needed if self.held_out is None else self.task.needed_rows(self.held_out)[0]
        return {name: np.union1d(self.needed[name], tested[name]) for name in self.task.personal}

    @cached_property
    def _named(self) -> tuple[dict[str, Indices], int]:
        return self.task.needed_rows(self.train)

    def work(self, download: Download, personal: Mapping[str, Values], seed: int) -> ClientWork:
        """Return the succinct part of a submodel, and the samples that can be trained on it."""
        kept = self._usable(self.train, download)
        rows = self.task.needed_rows(kept)[0]
        return ClientWork(rows, self._values(rows, download, personal), kept, seed)

    def rebuilt(self, work: ClientWork, rows: Mapping[str, Values]) -> dict[str, Values]:
        """Return the values of all personal rows: ``rows``, which this work rebuilt, and zero for others."""
        placed = {}
        for name, values in rows.items():
            placed[name] = np.zeros((len(self.personal[name]), values.shape[1]), np.float32)
            placed[name][np.searchsorted(self.personal[name], work.rows[name])] = values
        return placed

    def trained(
        self, work: ClientWork, update: LocalUpdate, download: Download, personal: Mapping[str, Values]
    ) -> Trained:
        """Return what the client uploads: how far everything moved, and scores where they are asked for, for
        which ``personal`` are its own rows."""
        summed = [table.name for table in self.task.spec.summed]
        rows = {}
        for name in summed:
            own, moves, counts = work.rows[name], update.rows[name], update.counts[name]
            if download.cold is not None:  # the others stay here
                hot = download.asked[name].holds(own)
                own, moves, counts = own[hot], moves[hot], counts[hot]
            rows[name] = TrainedRows(RowSet(own), moves, counts)
        scores = None if download.scores is None else self._scores(download, personal, download.scores)
        return Trained(update.dense, update.samples, rows, scores)

    def _scores(
        self, download: Download, personal: Mapping[str, Values], bins: ScoreBins
    ) -> tuple[Indices, Indices]:
        """Return histograms of scores on held-out samples, of which only rows asked for can be scored."""
        kept = self._usable(self.held_out, download) if self.held_out is not None else None
        if kept is None or not len(kept):
            return np.zeros(bins.bins, np.int64), np.zeros(bins.bins, np.int64)
        rows = self.task.needed_rows(kept)[0]
        values = self._values(rows, download, personal)
        scores = relative_scores(
            score_samples(self.task, download.dense, rows, values, kept),
            reference_score(self.task, download.dense, kept),
        )
        return score_histograms(scores, kept.local_columns(rows)["label"], bins.edges)

    def _usable(self, samples: ClientData, download: Download) -> ClientData:
        """Return the samples whose rows are all there: downloaded, or cold and so at home."""
        shared = [table.name for table in self.task.tables if table.kind == "shared"]
        if download.cold is None:
            return samples.keep({name: download.asked[name].rows for name in shared})
        return samples.keep({name: self.task.needed_rows(samples)[0][name] for name in shared})

    def _values(self, rows: Rows, download: Download, personal: Mapping[str, Values]) -> dict[str, Values]:
        values = {}
        for table in self.task.tables:
            own = rows[table.name]
            if table.kind == "personal":
                values[table.name] = personal[table.name][np.searchsorted(self.personal[table.name], own)]
            elif download.cold is None:
                values[table.name] = download.rows[table.name][download.asked[table.name].positions_of(own)]
            else:
                asked = download.asked[table.name]
                hot, found = asked.holds(own), download.cold(table.name, own)
                found[hot] = download.rows[table.name][asked.positions_of(own[hot])]
                values[table.name] = found
        return values


@dataclass(frozen=True)
class TrainingLimits:
    """What a client does for a server at the most. It declines what goes beyond, and trims nothing.

    ``epochs`` and ``rate`` also bound those of rebuilding, ``rebuild`` the share of samples that goes into
    it. ``least_samples``: a round that bounds the samples of a client leaves it so many; of these, at least
    ``least_learned`` must be learned from, and not only rebuild.
    """

    epochs: int = 20
    batch_size: int = 1 << 16
    rate: float = 1e3
    rebuild: float = 0.9
    least_samples: int = 16
    least_learned: int = 8


@dataclass(frozen=True)
class DeviceTrainer:
    """Trains on the succinct part of a submodel, after scoring the held-out samples with it.

    ``seed`` gives that of the order of samples by the round's number. Of the hyperparameters of a round,
    ``rate`` is the learning rate in it; others that ``LocalSettings`` has count where they are given. Where
    personal rows are rebuilt, scores come of rows rebuilt on all samples, with the model as downloaded.
    """

    device: Device
    seed: Callable[[int], int]
    settings: LocalSettings = field(default_factory=LocalSettings)
    limits: TrainingLimits = field(default_factory=TrainingLimits)
    # A cancelled round's training may still run when the next one's begins.
    _alone: Lock = field(default_factory=Lock, repr=False, compare=False)

    @property
    def personal(self) -> Mapping[str, Indices]:
        return self.device.personal

    def require(self, training: Mapping[str, float]) -> None:
        self._local(training)

    def train(self, download: Download, personal: Mapping[str, Values], number: int) -> Lesson:
        device = self.device
        work, local = device.work(download, personal, self.seed(number)), self._local(download.training)
        with self._alone:
            update = train_client(device.task, download.dense, work, local)
            if local.rebuild and download.scores is not None:
                rows = rebuild_client(device.task, download.dense, work, local)
                personal = device.rebuilt(work, rows)
            trained = device.trained(work, update, download, personal)
        kept = {name: (work.rows[name], work.values[name] + update.rows[name]) for name in device.personal}
        return Lesson(trained, kept)

    def _local(self, asked: Mapping[str, float]) -> LocalSettings:
        own, limits = self.settings, self.limits
        rate = asked.get("rate", own.learning_rate)
        clip, rebuild, again = (
            asked.get(key, getattr(own, key)) for key in ("clip", "rebuild", "rebuild_rate")
        )
        if not (0 < rate <= limits.rate and 0 < again <= limits.rate and 0 < clip < math.inf):
            raise Refused(
                f"learning rates of {rate:g} and {again:g} and a clip of {clip:g}, which this client does "
                "not take"
            )
        if not 0 <= rebuild <= limits.rebuild:
            raise Refused(f"rebuild = {rebuild:g}; this client takes a share from 0 to {limits.rebuild:g}")
        bounds = {
            "batch_size": (1, limits.batch_size),
            "epochs": (1, limits.epochs),
            "rebuild_epochs": (1, limits.epochs),
            "max_samples": (0, 2**53),
        }
        if 0 < asked.get("max_samples", 0) < limits.least_samples:
            raise Refused(
                f"max_samples = {asked['max_samples']:g}: an update of so few samples says much about each; "
                f"this client takes {limits.least_samples} or more, or 0, which is all of its own"
            )
        whole = {}
        for name, (least, most) in bounds.items():
            value = asked.get(name, getattr(own, name))
            if not least <= value <= most or value != int(value):
                raise Refused(f"{name} = {value:g}; this client takes whole numbers from {least} to {most}")
            whole[name] = int(value)
        local = LocalSettings(
            whole["batch_size"],
            whole["epochs"],
            rate,
            1.0,
            clip,
            rebuild=rebuild,
            rebuild_rate=again,
            rebuild_epochs=whole["rebuild_epochs"],
            max_samples=whole["max_samples"],
        )
        _, learned = local.parts(np.array([limits.least_samples]))
        if learned[0] < limits.least_learned:
            raise Refused(
                f"with rebuild = {rebuild:g} and batches of {local.batch_size} a client of "
                f"{limits.least_samples} samples would learn from {learned[0]} of them, and its update say "
                f"much about each; this client wants {limits.least_learned}"
            )
        return local
