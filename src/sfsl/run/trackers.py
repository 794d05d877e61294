"""TensorBoard, MLflow and Weights & Biases: callbacks of a run. Each library is imported when asked for."""

import os
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from sfsl.errors import InputError
from sfsl.installed import install_command
from sfsl.rounds.record import RoundRecord
from sfsl.run.callbacks import Callback

if TYPE_CHECKING:
    from sfsl.run.summary import Summary

_MOST_AT_ONCE = 100  # parameters that MLflow takes in one request
_PROJECT = "sfsl"


def flat(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return settings as they are written on a command line, by ``section.key``."""
    return {
        f"{section}.{key}": str(value) for section, keys in settings.items() for key, value in keys.items()
    }


class _Tracker(Callback):
    """Tells a library of the run in ``folder``; ``needs`` are its modules."""

    needs: ClassVar[tuple[str, ...]]

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()


class TensorBoard(_Tracker):
    """Writes to the folder ``tensorboard`` of a run, for ``tensorboard --logdir``. A run that goes on does so
    in the same curves."""

    needs = ("tensorboard", "torch.utils.tensorboard")

    def on_start(self, settings: Mapping[str, Mapping[str, Any]], records: Sequence[RoundRecord]) -> None:
        folder, next_round = self._folder / "tensorboard", records[-1].round + 1 if records else None
        new = not folder.exists()
        board = import_module("torch.utils.tensorboard")
        self._writer = board.SummaryWriter(str(folder), purge_step=None if new else next_round)
        lines = "\n".join(f"    {name} = {value}" for name, value in flat(settings).items())
        self._writer.add_text("settings", lines)
        for record in records if new else ():
            self.on_round(record)

    def on_round(self, record: RoundRecord) -> None:
        for name, value in record.scalars().items():
            self._writer.add_scalar(name, value, record.round)
        self._writer.flush()

    def on_end(self, summary: "Summary | None") -> None:
        if summary is not None and summary.verdict:
            self._writer.add_text("verdict", summary.verdict)
        self._writer.close()


class Mlflow(_Tracker):
    """Writes a run of its own, to where ``MLFLOW_TRACKING_URI`` says; a run that goes on begins another, with
    all rounds so far."""

    needs = ("mlflow",)

    def on_start(self, settings: Mapping[str, Mapping[str, Any]], records: Sequence[RoundRecord]) -> None:
        self._entities = import_module("mlflow.entities")
        self._client = client = import_module("mlflow").MlflowClient()
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", _PROJECT)
        found = client.get_experiment_by_name(name)
        experiment = client.create_experiment(name) if found is None else found.experiment_id
        self._run: str = client.create_run(experiment, run_name=self._folder.name).info.run_id
        said = [self._entities.Param(name, value) for name, value in flat(settings).items()]
        for first in range(0, len(said), _MOST_AT_ONCE):
            client.log_batch(self._run, params=said[first : first + _MOST_AT_ONCE])
        for record in records:
            self.on_round(record)

    def on_round(self, record: RoundRecord) -> None:
        now = time.time_ns() // 1_000_000
        values = record.scalars().items()
        metrics = [self._entities.Metric(name, value, now, record.round) for name, value in values]
        self._client.log_batch(self._run, metrics=metrics)

    def on_end(self, summary: "Summary | None") -> None:
        if summary is not None and summary.verdict:
            self._client.set_tag(self._run, "verdict", summary.verdict)
        self._client.set_terminated(self._run, "KILLED" if summary is None else "FINISHED")


class Wandb(_Tracker):
    """Writes a run of its own to Weights & Biases, as its variables say (``WANDB_PROJECT``, ``WANDB_MODE``);
    a run that goes on begins another, with all rounds so far."""

    needs = ("wandb",)

    def on_start(self, settings: Mapping[str, Mapping[str, Any]], records: Sequence[RoundRecord]) -> None:
        self._run = import_module("wandb").init(
            project=os.environ.get("WANDB_PROJECT", _PROJECT),
            name=self._folder.name,
            dir=str(self._folder),
            config=flat(settings),
        )
        for record in records:
            self.on_round(record)

    def on_round(self, record: RoundRecord) -> None:
        self._run.log(record.scalars(), step=record.round)

    def on_end(self, summary: "Summary | None") -> None:
        if summary is not None and summary.verdict:
            self._run.summary["verdict"] = summary.verdict
        self._run.finish()


_KINDS: dict[str, type[_Tracker]] = {"tensorboard": TensorBoard, "mlflow": Mlflow, "wandb": Wandb}


def require_trackers(names: Sequence[str]) -> None:
    """Refuse a tracker whose library is not there, before anything is written."""
    for name in names:
        for module in _KINDS[name].needs:
            try:
                import_module(module)
            except ImportError as error:
                raise InputError(
                    f"tracking with {name} needs more packages ({error}); install them with: "
                    f"{install_command(name)}"
                ) from None


def trackers(names: Sequence[str], folder: Path) -> list[Callback]:
    """Return the trackers of these names, each once, for the run in ``folder``."""
    return [_KINDS[name](folder) for name in dict.fromkeys(names)]
