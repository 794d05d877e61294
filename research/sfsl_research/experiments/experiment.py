"""Several schemes trained side by side on one device, for comparing them at the paper's scale.

All arms see the same cohorts of the same fleet. A folder holds the curves and the last checkpoint, so that
an experiment goes on in stretches as long as anyone likes, and a crash costs what came after the checkpoint.
"""

import csv
import io
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from sfsl.arrays import Indices
from sfsl.checksums import with_json_sum, without_json_sum
from sfsl.data.interactions import Interactions
from sfsl.durable import Closing, FileLock, LineFile, make_folder, write_whole, written_whole
from sfsl.errors import InputError, ParameterError
from sfsl.run.fleet import Interacted, scheme_privacy
from sfsl.run.setup import simulation_settings
from sfsl.settings.rounds import store_spec
from sfsl.settings.run import RunConfig, from_sections
from sfsl.submodel import MemoryStore
from sfsl.training.task import Task
from sfsl_research.checkpoints import read_arrays
from sfsl_research.experiments.centralized import central_settings
from sfsl_research.experiments.resident_central import ResidentCentral
from sfsl_research.resident import Arm, Figures, ResidentClients, ResidentEngine, ResidentModel
from sfsl_research.resident.compact import compact
from sfsl_research.resident.scoring import ResidentTest
from sfsl_research.summed_lines import with_sums, without_sums

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


class Experiment(Closing):
    """``arms``: settings by name. They share data, model, cohort size, training and seed.

    Its folder is its own until ``close``.
    """

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
            if one.round.scheme != "centralized":
                _require_federated(name, one, len(train.clients))
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
        if not (self._out / STATE).exists():
            self._save()  # so that no curve is ever without one
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

    def close(self) -> None:
        self._lock.close()

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
        found, lines = {}, []
        for name, model in self._models.items():
            found[name] = self._test.auc(model)
            samples = int(figures[name].samples)
            loss = float(figures[name].loss) / samples if samples else float("nan")
            lines.append((name, self.round, f"{found[name]:.6f}", f"{loss:.6f}", samples, f"{seconds:.1f}"))
        try:
            with LineFile(path := self._out / CURVES, path.stat().st_size) as file:
                file.append(_csv(lines))
        except OSError as error:
            raise InputError(
                f"cannot write {self._out / CURVES}: {error.strerror}; it goes on after its last checkpoint"
            ) from None
        return found

    def _engine_of(self, compiled: bool) -> ResidentEngine:
        arms = []
        for name in self._federated:
            config = self._arms[name]
            arms.append(
                Arm(name, self._models[name], simulation_settings(config, {}), scheme_privacy(config))
            )
        return ResidentEngine(
            self._fleet,
            arms,
            clients=self._config.round.clients,
            seed=self._config.run.seed,
            compiled=compiled,
        )

    def _open(self) -> None:
        """A new folder, or the checkpoint of one that has been begun."""
        try:
            make_folder(self._out)
            self._lock = FileLock(self._out / STATE)
        except OSError as error:
            raise InputError(f"cannot make the folder {self._out}: {error.strerror}") from None
        try:
            self._go_on()
        except (OSError, ValueError, KeyError, TypeError) as error:
            self.close()
            raise InputError(f"cannot go on with the experiment in {self._out}: {error}") from None

    def _go_on(self) -> None:
        settings, state = self._out / SETTINGS, self._out / STATE
        if not settings.exists():
            _write_settings(settings, self._arms)
        elif _read_settings(settings) != dict(self._arms):
            raise InputError(f"{self._out} holds an experiment with other settings; choose another folder")
        curves = read_curves(self._out)
        if state.exists():
            self._restore(read_arrays(state))
        elif curves:
            raise InputError(
                f"there are curves but no {STATE} to go on from; to begin anew, move the folder away"
            )
        curves = [line for line in curves if line[1] <= self.round]
        if len({tuple(at for arm, at, *_ in curves if arm == name) for name in self._arms}) > 1:
            raise InputError(f"{CURVES} lacks lines; restore it, or move the folder away to begin anew")
        kept = [(name, at, f"{auc:.6f}", *rest) for name, at, auc, rest in curves]
        write_whole(self._out / CURVES, _csv([_COLUMNS, *kept]))

    def _restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        for name, model in self._models.items():
            model.restore({key: arrays[f"{name}/{key}"] for key in model.state()})
        self.round = int(arrays["round"])

    def _save(self) -> None:
        arrays = {
            f"{name}/{key}": one for name, model in self._models.items() for key, one in model.state().items()
        }
        try:
            with written_whole(self._out / STATE, checksum=True) as file:
                np.savez(file, allow_pickle=False, round=np.array(self.round), **arrays)
        except OSError as error:
            raise InputError(f"cannot write {self._out / STATE}: {error.strerror}") from None


def read_curves(folder: Path) -> list[tuple[str, int, float, list[str]]]:
    """Arm, round, AUC, and what else the line says. A last line that a crash cut short is left out."""
    path = folder / CURVES
    try:
        lines = without_sums(path.read_text(encoding="utf-8"))
        return [(arm, int(at), float(auc), rest) for arm, at, auc, *rest in list(csv.reader(lines))[1:]]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, csv.Error) as error:
        raise InputError(f"cannot read {path}: {error}") from None


def _csv(lines: Sequence[Sequence[object]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return with_sums(text.getvalue())


def _require_federated(name: str, config: RunConfig, clients: int) -> None:
    """What an arm cannot do is refused, not left out."""
    lacking = config.not_on_a_device + ["run.selection"] * (config.run.selection != "uniform")
    if lacking:
        raise ParameterError(
            f"{name}: experiments run plain sums with everyone's one choice of privacy and uniform "
            f"selection; {', '.join(lacking)} asks for something else"
        )
    if config.round.min_contributors == "auto":
        raise ParameterError(f"{name}: say round.min_contributors as a number; 1 is the paper")
    if config.round.clients > clients:
        raise ParameterError(f"{name}: rounds of {config.round.clients} clients, and there are {clients}")


def _write_settings(path: Path, arms: Mapping[str, RunConfig]) -> None:
    write_whole(path, with_json_sum(msgspec.json.encode(dict(arms))))


def _read_settings(path: Path) -> dict[str, RunConfig]:
    """What another version did not know yet has its default, but for the world, which was the paper's, and
    validation, which it did not do."""
    try:
        content = without_json_sum(path.read_bytes(), str(path))
        stored = msgspec.json.decode(content, type=dict[str, dict[str, Any]])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is damaged: {error}") from None
    for sections in stored.values():
        sections["data"] = {"world": "paper", "validation": 0} | sections.get("data", {})
    return {name: from_sections(sections) for name, sections in stored.items()}


def _shared(config: RunConfig) -> tuple[object, ...]:
    return config.data, config.model, config.training, config.run.seed, config.round.clients


def _fresh(task: Task, config: RunConfig) -> MemoryStore:
    return MemoryStore(store_spec(config, task.spec, devices=True), task.initial_dense())
