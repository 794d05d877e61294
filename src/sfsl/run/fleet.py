"""From settings to a fleet: the task, one simulated device per user, and a central test set."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from sfsl.data import (
    Interactions,
    LoadReport,
    SyntheticSettings,
    SyntheticTaobao,
    hold_out_last,
    load_amazon,
    load_csv,
    load_taobao,
    with_negatives,
)
from sfsl.engines.device import Device
from sfsl.errors import InputError
from sfsl.models import din, logistic_regression
from sfsl.privacy import PRESETS, IndexPrivacy
from sfsl.run.config import DataSettings, ModelSettings, RunConfig
from sfsl.training.task import ClientData, Indices, Task

# More than the largest cohort, so that a device is made once per round it is in.
_DEVICES_AT_HAND = 1024
_MIX = 1002  # its stream of the run's seed


class Devices(Mapping[str, Device]):
    """One device per user with samples to train on, made when asked for: filled-up histories take room."""

    def __init__(self, task: Task, train: Interactions, test: Interactions, max_history: int) -> None:
        digits = len(str(len(train.users)))
        self._users = {f"user-{user:0{digits}}": int(user) for user in train.clients}
        self._task, self._train, self._test, self._history = task, train, test, max_history
        self._made = lru_cache(_DEVICES_AT_HAND)(self._make)

    def _make(self, name: str) -> Device:
        user = self._users[name]
        train = self._train.client(user, self._history)
        return Device(self._task, train, self._test.client(user, self._history))

    def __getitem__(self, name: str) -> Device:
        return self._made(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._users)

    def __len__(self) -> int:
        return len(self._users)


@dataclass(frozen=True)
class Pooled:
    """Everyone's samples to train on."""

    train: Interactions
    max_history: int

    def __len__(self) -> int:
        return len(self.train)

    def samples(self, positions: Indices) -> ClientData:
        return self.train.samples(positions, self.max_history)


@dataclass(frozen=True)
class Fleet:
    """``report`` says what a file held that could not be used; made-up data has none."""

    task: Task
    devices: Devices
    train: Interactions
    test: Interactions
    max_history: int
    report: LoadReport | None


def build_fleet(config: RunConfig) -> Fleet:
    seed = config.run.seed
    data, report = _interactions(config.data, seed)
    train, test = hold_out_last(data, config.data.held_out)
    task = _task(config.model, train, seed)
    history = config.data.max_history
    devices = Devices(task, train, test, history)
    if len(devices) < config.round.clients:
        raise InputError(
            f"round.clients = {config.round.clients}, but only {len(devices)} users have samples to train on;"
            " lower it, or take more data"
        )
    if len(devices) < config.round.clients * config.run.period:
        raise InputError(
            f"run.period = {config.run.period} rounds of {config.round.clients} clients need as many "
            f"different clients, and there are {len(devices)}; shorten the period, or take smaller cohorts"
        )
    return Fleet(task, devices, train, test, history, report)


def client_privacy(config: RunConfig, clients: Sequence[str]) -> dict[str, IndexPrivacy]:
    """Each client's choice. Schemes that hide nothing ask for what is real; full models for everything."""
    if config.round.scheme == "fsl":
        return dict.fromkeys(clients, PRESETS["cpp1"])
    if config.round.scheme in ("sfl", "fl"):
        return dict.fromkeys(clients, PRESETS["cpp5"])
    mix = config.privacy.mix
    if not mix:
        return dict.fromkeys(clients, config.privacy.index_privacy)
    draws = np.random.default_rng([_MIX, config.run.seed]).random(len(clients))
    chosen = np.searchsorted(np.cumsum(list(mix.values()))[:-1], draws, side="right")
    presets = list(mix)
    return {name: PRESETS[presets[place]] for name, place in zip(clients, chosen, strict=True)}


def _interactions(settings: DataSettings, seed: int) -> tuple[Interactions, LoadReport | None]:
    if settings.source == "synthetic":
        world = SyntheticSettings().scaled(settings.scale, users=settings.users)
        return SyntheticTaobao(world, seed=seed).interactions(), None
    path = Path(settings.path)
    if settings.source == "amazon":
        data, report = load_amazon(path)
    elif settings.source == "taobao":
        data, report = load_taobao(path)
    else:
        data, report = load_csv(path, text_ids=settings.text_ids)
    if (data.label == 1).all():  # clicks only: nothing could be learned from them
        data = with_negatives(data, settings.negatives, seed=seed)
    return data, report


def _task(settings: ModelSettings, train: Interactions, seed: int) -> Task:
    if settings.kind == "logistic":
        return logistic_regression(train)
    return din(train, seed=seed, width=settings.width, slopes=settings.slopes, initial=settings.initial)
