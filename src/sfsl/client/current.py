"""The model that a client downloaded last, kept in its folder as a bundle, to score with."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from sfsl.arrays import Values
from sfsl.bundle.describe import describe
from sfsl.bundle.file import write_bundle
from sfsl.bundle.pack import fits, pack
from sfsl.bundle.rows import AtRest
from sfsl.client.device import DeviceTrainer
from sfsl.client.following import ServedModel
from sfsl.client.round import Lesson
from sfsl.data.interactions import MAX_HISTORY
from sfsl.errors import SfslError
from sfsl.rounds import Download
from sfsl.settings.run import RunConfig, TrainingSettings
from sfsl.submodel import RowSet

log = logging.getLogger(__name__)

CURRENT = "current.zip"
_TOLD = ("batch_size", "clip", "rebuild_rate", "rebuild_epochs", "max_samples")
_PRIVACY = {"covers": "what one client downloaded, for its own use: whose rows these are is its own affair"}


class _Downloaded(AtRest):
    """A download, read as a store is."""

    def __init__(self, served: ServedModel, download: Download, number: int) -> None:
        super().__init__(served.task.spec, download.dense, self._found, number)
        self._download = download

    def touched(self, table: str) -> RowSet:
        return self._download.asked[table]

    def _found(self, table: str, rows: RowSet) -> Values:
        download = self._download
        asked = download.asked[table]
        if download.cold is None:
            return download.rows[table][asked.positions_of(rows.rows)]
        held, values = asked.holds(rows.rows), download.cold(table, rows.rows)
        values[held] = download.rows[table][asked.positions_of(rows.rows[held])]
        return values


@dataclass(frozen=True)
class KeepingTrainer(DeviceTrainer):
    """Trains, and keeps what was downloaded in ``folder``, where ``served`` says what it is."""

    served: ServedModel | None = None
    folder: Path | None = None

    def train(self, download: Download, personal: Mapping[str, Values], number: int) -> Lesson:
        if self.served is not None and self.folder is not None:
            try:
                keep_download(self.folder / CURRENT, self.served, download, number)
            except (SfslError, OSError) as error:  # a round is worth more than a copy of its model
                log.warning("the model that was downloaded is not kept: %s", error)
        return super().train(download, personal, number)


def keep_download(path: Path, served: ServedModel, download: Download, number: int) -> None:
    """Put a download in the place of the one before. Of the paper's scheme it has the rows that were asked
    for; of rounds over hot rows the others too, where they are not too many, since these begin at values that
    are public."""
    told = {name: int(value) if name != "clip" and name != "rebuild_rate" else value
            for name, value in download.training.items() if name in _TOLD}  # fmt: skip
    config = RunConfig(training=msgspec.structs.replace(TrainingSettings(), **told))
    about = describe(served.task, config, "https", MAX_HISTORY)
    known = download.cold is not None and all(fits(table) for table in served.task.spec.summed)
    store = _Downloaded(served, download, number)
    manifest, files = pack(
        store, about, served.catalogue, which="last", metrics={}, privacy=dict(_PRIVACY), known=known
    )
    write_bundle(path, manifest, files, anew=True)
