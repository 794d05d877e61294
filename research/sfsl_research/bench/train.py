"""Whole rounds of training, client by client against the whole cohort at once, on the same cohort.

Either side does all of a round: rows gathered, training, clipping, quantized plain sums, averaging, store.
The two take turns, since a machine is not equally fast all the time, and what counts is the median of the
ratios.
"""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Any

import numpy as np
import torch

from sfsl.carriers.local.engine import LocalEngine
from sfsl.client.device import Device
from sfsl.data import Interactions, Speech, SyntheticSettings, SyntheticTaobao, Windows
from sfsl.data.catalogue import Catalogue
from sfsl.data.words import CONTEXT
from sfsl.errors import InputError
from sfsl.models import bst, dien, din, logistic_regression, next_word_lstm
from sfsl.privacy import PRESETS
from sfsl.rounds.params import RoundRules
from sfsl.simulate.population import Simulation
from sfsl.simulate.settings import SimulationSettings
from sfsl.submodel import Averaging, MemoryStore, Quantization, StoreSpec, UpdateParams
from sfsl.training import LocalSettings
from sfsl.training.task import Task
from sfsl_research.resident import Arm, ResidentClients, ResidentEngine, ResidentModel
from sfsl_research.resident.compact import compact

MODELS: dict[str, Callable[["TrainingCohort"], Task]] = {
    "din": lambda cohort: din(Catalogue.of(cohort.data), seed=0),
    "dien": lambda cohort: dien(Catalogue.of(cohort.data), seed=0),
    "bst": lambda cohort: bst(Catalogue.of(cohort.data), seed=0),
    "logistic": lambda cohort: logistic_regression(Catalogue.of(cohort.data)),
    "lstm": lambda cohort: next_word_lstm(Catalogue.of_words(cohort.windows.speech.vocabulary), seed=0),
}
ENGINES = ("auto", "local", "resident")
_MAX_SAMPLES = 4096
# What Shakespeare's roles say: words in all, and of one role on average.
_VOCABULARY, _SAID = 27_231, 605
# Everybody asks for the rows it has, so that no sample is lost and both sides train all of them.
_PRIVACY = PRESETS["cpp1"]


@dataclass(frozen=True)
class TrainingCohort:
    """Simulated clients that all take part. At a scale of 1 they have what the paper's have; those of a
    language model as many words as Shakespeare's roles."""

    clients: int = 100
    scale: float = 1.0
    model: str = "din"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.model not in MODELS:
            raise InputError(f"--model {self.model!r} is none of {', '.join(MODELS)}")
        if self.clients < 2 or not 0 < self.scale <= 1:
            raise InputError("a round here takes at least two clients and a scale above 0, at most 1")
        if self.seed < 0:
            raise InputError(f"--seed {self.seed}: a seed is a number from 0")

    @cached_property
    def data(self) -> Interactions:
        world = SyntheticSettings().scaled(self.scale, users=self.clients)
        return SyntheticTaobao(world, seed=self.seed).interactions()

    @cached_property
    def windows(self) -> Windows:
        """Words by chance, as common as Zipf has them: what they are does not matter for speed."""
        draw, words = np.random.default_rng(self.seed), max(2, round(_VOCABULARY * self.scale))
        said = 2 + draw.exponential(_SAID * self.scale, self.clients).astype(np.int64)
        common = 1 / np.arange(1, words + 1)
        spoken = draw.choice(words, said.sum(), p=common / common.sum()).astype(np.int32)
        offsets = np.concatenate([[0], np.cumsum(said)])
        at = np.delete(np.arange(len(spoken)), offsets[:-1])  # the first word has none before it
        return Windows(Speech([str(word) for word in range(words)], offsets, spoken), at, at, CONTEXT)

    @cached_property
    def task(self) -> Task:
        return MODELS[self.model](self)

    @cached_property
    def devices(self) -> dict[str, Device]:
        digits, of = len(str(self.clients)), self.windows if self.speaks else self.data
        found = {f"user-{user:0{digits}}": Device(self.task, of.client(user)) for user in range(self.clients)}
        if not any(len(device.train.keep(device.needed)) for device in found.values()):
            raise InputError(f"--scale {self.scale} leaves {self.clients} clients without a usable sample")
        return found

    @property
    def speaks(self) -> bool:
        return self.model == "lstm"

    def store(self) -> MemoryStore:
        spec = StoreSpec(model=self.task.spec, seed=bytes(32), devices=True)
        return MemoryStore(spec, self.task.initial_dense())

    def settings(self, clients: int, *, compiled: bool = False) -> SimulationSettings:
        rows, dense = (
            Quantization.finest("z32", cohort=clients, clip=1.0, max_weight=weight)
            for weight in (1, _MAX_SAMPLES)
        )
        rules = RoundRules(
            update=UpdateParams(rows=rows, dense=dense, averaging=Averaging()),
            training=lambda number: {},
            min_contributors=1,
            bins=0,
        )
        privacy = dict.fromkeys(self.devices, _PRIVACY)
        return SimulationSettings(rules, LocalSettings(compiled=compiled), privacy, sums="plain")


@dataclass(frozen=True)
class Turn:
    """One round of one side. ``training``: seconds of it, where they can be told apart."""

    seconds: float
    samples: int
    training: float | None = None

    @property
    def speed(self) -> float:
        return self.samples / self.seconds


class OnHost:
    """Rounds of the local engine, after each of which the store has the new model."""

    def __init__(
        self,
        cohort: TrainingCohort,
        names: Sequence[str],
        *,
        alone: bool,
        threads: int,
        compiled: bool = False,
    ) -> None:
        self._names, self._threads, self._store = names, threads, cohort.store()
        settings = cohort.settings(len(names), compiled=compiled)
        self._engine = LocalEngine(
            Simulation(cohort.task, cohort.devices, self._store, settings, seed=cohort.seed, alone=alone)
        )

    def turn(self) -> Turn:
        torch.set_num_threads(self._threads)
        start = time.perf_counter()
        report = self._engine.run(self._names)
        record = report.record
        if record.aborted:
            raise InputError(f"the round was aborted: {record.aborted}")
        self._store.commit(report.commit)
        return Turn(time.perf_counter() - start, record.samples, record.training_seconds)


class OnDevice:
    """Rounds of the resident engine; the store is the model on the device."""

    def __init__(self, cohort: TrainingCohort, device: str, threads: int, compiled: bool) -> None:
        there = torch.device(device)
        model = ResidentModel(cohort.task, cohort.store(), there)
        arm = Arm("bench", model, cohort.settings(cohort.clients), _PRIVACY)
        fleet = ResidentClients(compact(cohort.data), there)
        self._engine = ResidentEngine(
            fleet, [arm], clients=cohort.clients, seed=cohort.seed, compiled=compiled
        )
        self._chosen, self._threads, self._number = np.arange(cohort.clients), threads, 0
        self._engine.prepare()

    def turn(self) -> Turn:
        torch.set_num_threads(self._threads)
        start = time.perf_counter()
        self._number += 1
        (figures,) = self._engine.run(self._number, self._chosen)
        samples = int(figures.samples)  # waits for the device
        return Turn(time.perf_counter() - start, samples)


def bench_train(
    cohort: TrainingCohort = TrainingCohort(),  # noqa: B008 -- frozen
    *,
    device: str = "auto",
    engine: str = "auto",
    compiled: bool = True,
    threads: int | None = None,
    loop_clients: int | None = None,
    repeats: int = 3,
) -> dict[str, Any]:
    """``loop_clients``: of how many clients the loop is timed; the others are taken to be as fast.
    ``compiled``: the batched side's steps; the round that compiles them is not timed.

    The loop has one thread, or ``threads``, whichever is faster in its first turns: most of its operations
    are too small to be split.
    """
    if engine not in ENGINES:
        raise InputError(f"--engine {engine!r} is none of {', '.join(ENGINES)}")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device not in ("cpu", "cuda") or (device == "cuda" and not torch.cuda.is_available()):
        raise InputError(f"--device {device!r}: there is cpu" + ", cuda" * torch.cuda.is_available())
    if engine == "auto":
        engine = "local" if device == "cpu" else "resident"
    if (engine, device) == ("local", "cuda"):
        raise InputError("the local engine trains on the CPU; on a GPU take --engine resident")
    if cohort.speaks and engine == "resident":
        raise InputError(
            "--model lstm trains on the CPU, in the local engine: a fleet on a device has clicks"
        )
    if (engine, device) == ("resident", "cpu") or cohort.speaks:
        compiled = False  # nothing there would be compiled
    for name, value in (("threads", threads), ("loop-clients", loop_clients), ("repeats", repeats)):
        if value is not None and value < 1:
            raise InputError(f"--{name} {value}: it takes at least one")
    threads, before = threads or os.cpu_count() or 1, torch.get_num_threads()
    names = list(cohort.devices)
    timed = names[: loop_clients or len(names)]
    try:
        loop_threads = _loop_threads(cohort, threads)
        loop = OnHost(cohort, timed, alone=True, threads=loop_threads)
        batched = (
            OnHost(cohort, names, alone=False, threads=threads, compiled=compiled)
            if engine == "local"
            else OnDevice(cohort, device, threads, compiled)
        )
        batched.turn()  # libraries choose their ways, and buffers are made
        turns = [(loop.turn(), batched.turn()) for _ in range(repeats)]
    finally:
        torch.set_num_threads(before)
    return {
        "clients": cohort.clients,
        "scale": cohort.scale,
        "model": cohort.model,
        "seed": cohort.seed,
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "engine": engine,
        "compiled": compiled,
        "threads": threads,
        "torch": torch.__version__,
        "batch_size": LocalSettings().batch_size,
        "samples": turns[0][1].samples,
        "longest_client_steps": max(
            -(-len(device.train) // LocalSettings().batch_size) for device in cohort.devices.values()
        ),
        "repeats": repeats,
        "loop_device": "cpu",
        "loop_threads": loop_threads,
        "loop_clients_timed": len(timed),
        **_medians(turns),
        "load": os.getloadavg()[0],
    }


def _loop_threads(cohort: TrainingCohort, threads: int) -> int:
    """On two clients, twice."""
    few = list(cohort.devices)[:2]
    speeds = {
        count: max(OnHost(cohort, few, alone=True, threads=count).turn().speed for _ in range(2))
        for count in {1, threads}
    }
    return max(speeds, key=lambda count: speeds[count])


def _medians(turns: Sequence[tuple[Turn, Turn]]) -> dict[str, Any]:
    """Seconds of the loop are for all samples, at the speed of those timed."""
    loop, batched = zip(*turns, strict=True)
    samples = batched[0].samples
    ratios = [two.speed / one.speed for one, two in turns]
    training = [two.training for two in batched if two.training is not None]
    return {
        "loop_samples_per_second": median(one.speed for one in loop),
        "batched_samples_per_second": median(one.speed for one in batched),
        "speedup": median(ratios),
        "speedup_least": min(ratios),
        "speedup_most": max(ratios),
        "loop_seconds": median(samples / one.speed for one in loop),
        "loop_training_share": median((one.training or 0.0) / one.seconds for one in loop),
        "batched_seconds": median(one.seconds for one in batched),
        "batched_training_share": (
            median(part / two.seconds for part, two in zip(training, batched, strict=True))
            if training
            else None
        ),
    }
