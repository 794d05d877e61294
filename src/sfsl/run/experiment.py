"""Several schemes trained side by side on one device, for comparing them at the paper's scale.

All arms see the same cohorts of the same fleet. A folder holds the curves and the last checkpoint, so that
an experiment goes on in stretches as long as anyone likes, and a crash costs what came after the checkpoint.
"""

import csv
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from sfsl.crypto.kdf import digest
from sfsl.data.compact import compact
from sfsl.data.interactions import Interactions
from sfsl.engines.resident import Arm, Figures, ResidentClients, ResidentEngine, ResidentModel
from sfsl.engines.resident.central import ResidentCentral
from sfsl.engines.resident.scoring import ResidentTest
from sfsl.errors import InputError, ParameterError
from sfsl.run.config import RunConfig, from_sections
from sfsl.run.fleet import Interacted, scheme_privacy
from sfsl.run.setup import central_settings, round_settings, slots
from sfsl.submodel import MemoryStore, StoreSpec
from sfsl.training.task import Indices, Task

CURVES, STATE, SETTINGS = "curves.csv", "state.npz", "settings.json"
_COLUMNS = ("arm", "round", "auc", "loss", "samples", "seconds")
_COHORT = 1003  # its stream of the seed
# Seconds between checkpoints: so many times what the last one took, so that they cost a hundredth; or more.
_CHECKPOINTS, _CHECKPOINT_SECONDS = 100, 10.0


@dataclass(frozen=True)
class Progress:
    round: int
    rounds: int
    auc: Mapping[str, float]
    seconds: float


class Experiment:
    """``arms``: settings by name. They share data, model, cohort size, training and seed."""

    def __init__(
        self,
        out: Path,
        arms: Mapping[str, RunConfig],
        task: Task,
        train: Interactions,
        test: Interactions,
        *,
        device: torch.device,
        most_tested: int = 1_000_000,
        compiled: bool = False,
    ) -> None:
        first = next(iter(arms.values()))
        for name, one in arms.items():
            if _shared(one) != _shared(first):
                raise ParameterError(f"{name}: arms share data, model, training, seed and cohort size")
        self._out, self._arms, self._config = out, arms, first
        history = first.data.max_history
        self._fleet = ResidentClients(compact(train, history), device)
        self._able = train.clients
        self._test = ResidentTest(
            task, Interacted(test, history), device, most=most_tested, seed=first.run.seed
        )
        self._models = {name: ResidentModel(task, _fresh(task, one), device) for name, one in arms.items()}
        samples = int(self._fleet.host.offsets[-1])
        self._central = {
            name: ResidentCentral(
                self._fleet,
                self._models[name],
                central_settings(one, samples, len(self._able)),
                seed=one.run.seed,
                compiled=compiled,
            )
            for name, one in arms.items()
            if one.round.scheme == "centralized"
        }
        self._beside = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._federated = [name for name in arms if name not in self._central]
        self._engine = self._engine_of(compiled) if self._federated else None
        self.round = 0
        self._open()

    def run(
        self,
        rounds: int,
        *,
        every: int,
        stop_after: float = float("inf"),
        seen: Callable[[Progress], None] = lambda progress: None,
    ) -> int:
        """Rounds up to ``rounds``, with AUCs after every ``every``; or until ``stop_after`` seconds are
        over. Returns the last round, which is in the checkpoint."""
        start = saved = time.monotonic()
        took = 0.0
        for one in [*self._central.values(), *([self._engine] if self._engine else ())]:
            one.prepare()
        while self.round < rounds and time.monotonic() - start < stop_after:
            figures = self._advance()
            if self.round % every == 0 or self.round in (1, rounds):
                auc = self._evaluate(figures, time.monotonic() - start)
                seen(Progress(self.round, rounds, auc, time.monotonic() - start))
            if (now := time.monotonic()) - saved > max(_CHECKPOINT_SECONDS, _CHECKPOINTS * took):
                self._save()
                saved = time.monotonic()
                took = saved - now
        self._save()
        return self.round

    def _advance(self) -> dict[str, Figures]:
        self.round += 1
        if self._beside is None:
            return self._centralized() | self._together()
        # Steps one after another leave a GPU much room: one stream and thread for each of the two.
        now = torch.cuda.current_stream()
        self._beside.wait_stream(now)
        with ThreadPoolExecutor(1) as worker:
            central = worker.submit(self._centralized, self._beside)
            found = self._together()
        now.wait_stream(self._beside)
        return central.result() | found

    def _centralized(self, stream: torch.cuda.Stream | None = None) -> dict[str, Figures]:
        with torch.cuda.stream(stream) if stream else nullcontext():
            return {name: central.run(self.round) for name, central in self._central.items()}

    def _together(self) -> dict[str, Figures]:
        if self._engine is None:
            return {}
        return dict(zip(self._federated, self._engine.run(self.round, self._cohort()), strict=True))

    def _cohort(self) -> Indices:
        draw = np.random.default_rng([_COHORT, self._config.run.seed, self.round])
        return draw.choice(self._able, self._config.round.clients, replace=False)

    def _evaluate(self, figures: Mapping[str, Figures], seconds: float) -> dict[str, float]:
        found = {}
        with open(self._out / CURVES, "a", newline="", encoding="utf-8") as file:
            lines = csv.writer(file)
            for name, model in self._models.items():
                found[name] = self._test.auc(model)
                samples = int(figures[name].samples)
                loss = float(figures[name].loss) / samples if samples else float("nan")
                lines.writerow(
                    [name, self.round, f"{found[name]:.6f}", f"{loss:.6f}", samples, f"{seconds:.1f}"]
                )
        return found

    def _engine_of(self, compiled: bool) -> ResidentEngine:
        arms = []
        for name in self._federated:
            config = self._arms[name]
            if config.privacy.mix:
                raise ParameterError(f"{name}: a mix of privacy choices is for runs, not for experiments")
            if config.round.min_contributors == "auto":
                raise ParameterError(f"{name}: say round.min_contributors as a number; 1 is the paper")
            privacy = scheme_privacy(config)
            arms.append(Arm(name, self._models[name], round_settings(config, {}), privacy))
        return ResidentEngine(
            self._fleet,
            arms,
            clients=self._config.round.clients,
            seed=self._config.run.seed,
            compiled=compiled,
        )

    def _open(self) -> None:
        """A new folder, or the checkpoint of one that has been begun."""
        wanted = msgspec.json.encode({name: msgspec.to_builtins(one) for name, one in self._arms.items()})
        try:
            self._out.mkdir(parents=True, exist_ok=True)
            settings, state = self._out / SETTINGS, self._out / STATE
            if settings.exists() and _read_settings(settings) != dict(self._arms):
                raise InputError(
                    f"{self._out} holds an experiment with other settings; choose another folder"
                )
            settings.write_bytes(wanted)
            if state.exists():
                with open(state, "rb") as file, np.load(file, allow_pickle=False) as arrays:
                    self._restore(arrays)
            self._trim_curves()
        except (OSError, ValueError, KeyError, BadZipFile) as error:
            raise InputError(f"cannot go on with the experiment in {self._out}: {error}") from None

    def _restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        for name, model in self._models.items():
            model.restore({key: arrays[f"{name}/{key}"] for key in model.state()})
        self.round = int(arrays["round"])

    def _save(self) -> None:
        arrays = {
            f"{name}/{key}": one for name, model in self._models.items() for key, one in model.state().items()
        }
        aside = self._out / f"{STATE}.new"
        try:
            with open(aside, "wb") as file:
                np.savez(file, allow_pickle=False, round=np.array(self.round), **arrays)
                file.flush()
                os.fsync(file.fileno())
            os.replace(aside, self._out / STATE)
        except OSError as error:
            raise InputError(f"cannot write {self._out / STATE}: {error.strerror}") from None

    def _trim_curves(self) -> None:
        """The curves as far as the checkpoint has come."""
        kept = [line for line in read_curves(self._out) if line[1] <= self.round]
        with open(self._out / CURVES, "w", newline="", encoding="utf-8") as file:
            lines = csv.writer(file)
            lines.writerow(_COLUMNS)
            lines.writerows([(name, number, f"{auc:.6f}", *rest) for name, number, auc, rest in kept])


def read_curves(folder: Path) -> list[tuple[str, int, float, list[str]]]:
    """Arm, round, AUC, and what else the line says."""
    path = folder / CURVES
    if not path.exists():
        return []
    with open(path, newline="", encoding="utf-8") as file:
        return [(one[0], int(one[1]), float(one[2]), one[3:]) for one in list(csv.reader(file))[1:]]


def _read_settings(path: Path) -> dict[str, RunConfig]:
    """What another version did not know yet has its default."""
    try:
        stored = msgspec.json.decode(path.read_bytes(), type=dict[str, dict[str, Any]])
    except msgspec.MsgspecError as error:
        raise InputError(f"{path} is damaged: {error}") from None
    return {name: from_sections(sections) for name, sections in stored.items()}


def _shared(config: RunConfig) -> tuple[object, ...]:
    return config.data, config.model, config.training, config.run.seed, config.round.clients


def _fresh(task: Task, config: RunConfig) -> MemoryStore:
    spec = StoreSpec(
        model=task.spec,
        seed=digest("seed of a run", str(config.run.seed).encode()),
        row_slots=slots(config, config.server.row_step),
        dense_slots=slots(config, config.server.dense_step),
        devices=True,
    )
    return MemoryStore(spec, task.initial_dense())
