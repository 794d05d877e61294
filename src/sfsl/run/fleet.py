"""From settings to a fleet: the task, one simulated device per user, and a central test set."""

import runpy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import numpy as np

from sfsl.arrays import Indices
from sfsl.client.device import Device
from sfsl.data import (
    Interactions,
    LoadReport,
    Speech,
    SyntheticTaobao,
    hold_out_last,
    load_amazon,
    load_shakespeare,
    load_table,
    load_taobao,
    speech_of,
    with_negatives,
)
from sfsl.data.catalogue import Catalogue
from sfsl.data.samples import Column, Samples, joined
from sfsl.data.stored import load_stored
from sfsl.data.synthetic import WORLDS
from sfsl.errors import InputError
from sfsl.models import build_task
from sfsl.privacy import PRESETS, IndexPrivacy
from sfsl.settings.run import DataSettings, RunConfig
from sfsl.simulate.engine import Pool
from sfsl.training.task import ClientData, Task

# More than the largest cohort, so that a device is made once per round it is in.
_DEVICES_AT_HAND = 1024
_MIX = 1002  # its stream of the run's seed
# Stands for the file where a fleet was handed over in Python.
GIVEN = "<given to sfsl.train>"


class Devices(Mapping[str, Device]):
    """One device per client with samples to train on, made when asked for: filled-up histories take room.

    ``clients`` are their numbers; a client's name is ``prefix`` and its number.
    """

    def __init__(self, prefix: str, clients: Indices, most: int, make: Callable[[int], Device]) -> None:
        self._given = prefix, clients, most, make
        digits = len(str(most))
        self._numbers = {f"{prefix}-{number:0{digits}}": int(number) for number in clients}
        self._made = lru_cache(_DEVICES_AT_HAND)(lambda name: make(self._numbers[name]))

    def __reduce__(self) -> tuple[Any, ...]:
        """For another process, without the devices that were made here."""
        return Devices, self._given

    @property
    def numbers(self) -> Mapping[str, int]:
        return self._numbers

    def __getitem__(self, name: str) -> Device:
        return self._made(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)


@dataclass(frozen=True)
class Interacted:
    """A pool from interactions, which share one copy of their histories."""

    data: Interactions
    max_history: int

    def __len__(self) -> int:
        return len(self.data)

    def samples(self, positions: Indices) -> ClientData:
        return self.data.samples(positions, self.max_history)

    def column(self, name: str) -> Column | None:
        return getattr(self.data, name) if name in ("item", "label", "user") else None

    def owners(self) -> tuple[Column, Indices]:
        return self.data.users, self.data.user


@dataclass(frozen=True)
class Collected:
    """A pool from what each client has: ``sizes`` says how many samples, client after client."""

    every: Samples
    sizes: Mapping[str, int]

    @classmethod
    def of(cls, parts: Mapping[str, Samples], none: Samples) -> Self:
        """Join what clients have; ``none`` has no samples, and their columns."""
        return cls(joined([none, *parts.values()]), {name: len(one) for name, one in parts.items()})

    def __len__(self) -> int:
        return len(self.every)

    def samples(self, positions: Indices) -> ClientData:
        return self.every.at(positions)

    def column(self, name: str) -> Column | None:
        return self.every.columns.get(name)

    def owners(self) -> tuple[Sequence[object], Indices]:
        return [*self.sizes], np.repeat(np.arange(len(self.sizes)), [*self.sizes.values()])


@dataclass(frozen=True)
class Fleet:
    """A model and who trains it. ``Fleet.of`` makes one of your own.

    ``train`` and ``test`` are everyone's samples, for what only a simulation can do: centralized training,
    and the AUC of a central test set; a run may split the second (``split_held_out``). ``report`` says what
    a file held that could not be used; synthetic data has none. ``catalogue`` says what rows are called; a
    fleet of your own has none. ``drawn_beside``: whether items were drawn beside clicks, which nobody saw.

    >>> import numpy as np, sfsl, torch
    >>> class Rating(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.film = torch.nn.Embedding(10, 1, device="meta")    # its rows live in a store
    ...     def forward(self, batch):
    ...         return self.film(batch["film"]).sum(dim=-1)
    >>> task = sfsl.Task(Rating(), (sfsl.Table(name="film", rows=10, width=1),))
    >>> seen = sfsl.Samples({"film": np.array([3, 7]), "label": np.float32([1, 0])}, {"film": "film"})
    >>> fleet = sfsl.Fleet.of(task, train={"ann": seen, "bob": seen}, held_out={})
    >>> sorted(fleet.devices), len(fleet.train)
    (['ann', 'bob'], 4)
    """

    task: Task
    devices: Mapping[str, Device]
    train: Pool
    test: Pool
    report: LoadReport | None = None
    catalogue: Catalogue | None = None
    drawn_beside: bool = False

    @classmethod
    def of(cls, task: Task, train: Mapping[str, Samples], held_out: Mapping[str, Samples]) -> Self:
        """Your own model and clients, by name. A client without held-out samples is not tested on."""
        if not train:
            raise InputError("a fleet has at least one client with samples to train on")
        devices = {name: Device(task, samples, held_out.get(name)) for name, samples in train.items()}
        _require_own_rows(devices)
        none = next(iter(train.values())).at(np.zeros(0, np.int64))
        return cls(task, devices, Collected.of(train, none), Collected.of(held_out, none))


def _require_own_rows(devices: Mapping[str, Device]) -> None:
    """Refuse a personal row of two clients: each that trained it would keep its own."""
    owner: dict[tuple[str, int], str] = {}
    for name, device in devices.items():
        for table, rows in device.personal.items():
            for row in rows.tolist():
                other = owner.setdefault((table, row), name)
                if other != name:
                    raise InputError(
                        f"clients {other!r} and {name!r} both have row {row} of table {table!r}, which is "
                        "personal: such a row belongs to one client"
                    )


def build_fleet(config: RunConfig) -> Fleet:
    own = {"python": _own_fleet, "shakespeare": _speech_fleet}
    fleet = own.get(config.data.source, _click_fleet)(config)
    require_clients(config, fleet)
    return fleet


def require_clients(config: RunConfig, fleet: Fleet) -> None:
    """Refuse settings for which the fleet has too few clients."""
    clients, period = config.round.all_clients, config.run.period
    if len(fleet.devices) < clients:
        raise InputError(
            f"round.clients x round.cohorts = {clients}, but only {len(fleet.devices)} users have samples to "
            "train on; lower one of them, or take more data"
        )
    if len(fleet.devices) < clients * period:
        raise InputError(
            f"run.period = {period} rounds of {clients} clients need as many different clients, and there "
            f"are {len(fleet.devices)}; shorten the period, or take smaller cohorts"
        )


def _click_fleet(config: RunConfig) -> Fleet:
    data, report = load_interactions(config.data, config.run.seed)
    _require_learnable(config, data)
    return fleet_of_clicks(config, data, report)


def fleet_of_clicks(
    config: RunConfig,
    data: Interactions,
    report: LoadReport | None = None,
    catalogue: Catalogue | None = None,
) -> Fleet:
    """Build a fleet of these users, whatever ``config.data`` says about where samples come from. With a
    ``catalogue`` their items are rows of it."""
    history = config.data.max_history
    train, test = hold_out_last(data, config.data.held_out)
    catalogue = catalogue or Catalogue.of(train)
    task = build_task(catalogue, config.model, config.run.seed)
    devices = Devices(
        "user",
        train.clients,
        len(train.users),
        lambda user: Device(task, train.client(user, history), test.client(user, history)),
    )
    pools = Interacted(train, history), Interacted(test, history)
    return Fleet(task, devices, *pools, report, catalogue, drawn_beside=data.drawn_beside)


def _require_learnable(config: RunConfig, data: Interactions) -> None:
    """Refuse clicks from which nothing would be learned, or of which nothing would be known afterwards."""
    train, test = hold_out_last(data, config.data.held_out)
    learning = len(np.unique(train.user[train.history_stop > train.history_start]))
    if learning < 2:
        raise InputError(
            f"{learning} of {len(train.clients):,} users have a sample with a click before it, and a model "
            "learns from what was clicked before: take data with several samples per user, of different times"
        )
    if not len(test) and config.run.evaluate_every:
        most = int(np.diff(train.offsets).max())
        raise InputError(
            f"no user has enough samples to hold out {config.data.held_out:.0%} of them for testing (the "
            f"most is {most}); raise data.held_out to {1 / most:.2g} or more, or measure nothing: "
            "run.evaluate_every = 0"
        )


def _speech_fleet(config: RunConfig) -> Fleet:
    roles, report = load_shakespeare(config.data.path)
    return fleet_of_speech(config, speech_of(roles), report)


def fleet_of_speech(config: RunConfig, speech: Speech, report: LoadReport | None = None) -> Fleet:
    """Every role is a client. The vocabulary is public; which of its words a role says is not."""
    train, test = speech.windows(config.data.held_out, config.data.context)
    catalogue = Catalogue.of_words(speech.vocabulary)
    task = build_task(catalogue, config.model, config.run.seed)
    devices = Devices(
        "role",
        train.clients,
        len(speech.offsets) - 1,
        lambda role: Device(task, train.client(role), test.client(role)),
    )
    return Fleet(task, devices, train, test, report, catalogue)


def _own_fleet(config: RunConfig) -> Fleet:
    """Take the fleet of a file of the user's, which is run as Python runs any file it is told to."""
    path = Path(config.data.path)
    if config.data.path == GIVEN:
        raise InputError(
            "this run was given its fleet in Python; go on with it there, with the same fleet: "
            "sfsl.train(fleet, out=..., resume=True)"
        )
    if not path.is_file():
        raise InputError(f"cannot read {path}: no such file")
    found = runpy.run_path(str(path)).get("fleet")
    if not callable(found):
        raise InputError(f"{path} has no function fleet(seed) that returns a sfsl.run.fleet.Fleet")
    fleet = found(config.run.seed)
    if not isinstance(fleet, Fleet):
        raise InputError(f"fleet() in {path} returns {type(fleet).__name__}, not a sfsl.run.fleet.Fleet")
    return fleet


def client_privacy(config: RunConfig, clients: Sequence[str]) -> dict[str, IndexPrivacy]:
    """Return each client's choice."""
    mix = config.privacy.mix
    if not mix or config.round.scheme != "sfsl":
        return dict.fromkeys(clients, scheme_privacy(config))
    draws = np.random.default_rng([_MIX, config.run.seed]).random(len(clients))
    chosen = np.searchsorted(np.cumsum(list(mix.values()))[:-1], draws, side="right")
    presets = list(mix)
    return {name: PRESETS[presets[place]] for name, place in zip(clients, chosen, strict=True)}


def scheme_privacy(config: RunConfig) -> IndexPrivacy:
    """Return what all clients choose. Schemes that hide nothing ask for real rows, full models for all."""
    if config.round.scheme == "sfsl":
        return config.privacy.index_privacy
    return PRESETS["cpp1" if config.round.scheme == "fsl" else "cpp5"]


def load_interactions(settings: DataSettings, seed: int) -> tuple[Interactions, LoadReport | None]:
    if settings.source == "catalogue":
        raise InputError(
            f"{settings.path} is a catalogue, which has no samples: a server starts from it (sfsl serve), a "
            "run needs data"
        )
    if settings.source == "synthetic":
        world = WORLDS[settings.world].scaled(settings.scale, users=settings.users)
        return SyntheticTaobao(world, seed=seed).interactions(), None
    path = Path(settings.path)
    if settings.source == "stored":
        return load_stored(path), None
    if settings.source == "amazon":
        data, report = load_amazon(path)
    elif settings.source == "taobao":
        data, report = load_taobao(path, unusable=settings.unusable)
    else:
        data, report = load_table(
            path,
            columns=settings.columns,
            label=settings.label,
            text_ids=settings.text_ids,
            unusable=settings.unusable,
        )
    if (data.label == 1).all():  # clicks only: nothing could be learned from them
        data = with_negatives(data, settings.negatives, seed=seed)
        report.drawn = (
            "every one is a click: beside each, others that were not are drawn at random "
            f"(data.negatives = {settings.negatives})"
        )
    return data, report
