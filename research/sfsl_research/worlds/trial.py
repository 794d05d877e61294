"""Arms in one world: trained round by round, evaluated as they go.

Arms that differ in nothing but what the server does are trained in one pass, if a device can: each has its
own model, and what they draw by chance is drawn alike, so that none depends on which others are beside it.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import zip_longest
from typing import Protocol

import msgspec
import numpy as np
import torch

from sfsl.arrays import Indices
from sfsl.data.interactions import Interactions, hold_out_last
from sfsl.errors import InputError, NotFinite
from sfsl.run.fleet import (
    Devices,
    Fleet,
    Interacted,
    fleet_of_clicks,
    fleet_of_speech,
    scheme_privacy,
)
from sfsl.run.planning import choose_cohort
from sfsl.run.setup import build_engine, rebuilds, resolved, simulation_settings
from sfsl.run.validation import TEST, VALID, split_held_out
from sfsl.scores import Evaluation, Scored, correction_of, evaluate
from sfsl.settings.rounds import store_spec
from sfsl.settings.run import RunConfig
from sfsl.simulate.engine import baselines_of
from sfsl.simulate.rebuilt import draw_tested
from sfsl.submodel import MemoryStore
from sfsl_research.experiments.centralized import CentralizedEngine, central_settings
from sfsl_research.experiments.resident_central import ResidentCentral
from sfsl_research.resident import Arm, ResidentClients, ResidentEngine, ResidentModel
from sfsl_research.resident.compact import compact
from sfsl_research.resident.rounds import TESTED_TOGETHER
from sfsl_research.resident.scoring import ResidentTest
from sfsl_research.worlds.world import World

_MOST_TESTED = 200_000
# Of the users that are tested, the share that corrects how sure a model is.
_CORRECT = 0.1


class Point(msgspec.Struct, frozen=True):
    """What the model was worth after a round. None: its scores are not finite, or no chances of a click."""

    round: int
    auc: float | None
    log_loss: float | None


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How an arm did. ``failed`` says why it stopped early; what it had reached by then counts."""

    world: str
    seed: int
    arm: str
    settings: str
    rounds: int
    clients: int
    seconds: float
    points: tuple[Point, ...]
    failed: str | None = None
    base_log_loss: float | None = None
    popularity_auc: float | None = None
    popularity_log_loss: float | None = None


class _Trained(Protocol):
    """Arms under way. ``evaluate`` returns what each is worth, or why it is worth nothing any more."""

    def advance(self, number: int) -> None: ...
    def evaluate(self) -> dict[str, Evaluation | str]: ...


class _Simulated:
    """One arm that no engine on a device can train: rounds of the engine that does everything, on a store in
    memory. Only centralized training takes its steps on the device."""

    def __init__(self, name: str, config: RunConfig, fleet: Fleet, device: str) -> None:
        self._name, self._config, self._names = name, resolved(config, fleet), sorted(fleet.devices)
        self._store = _fresh(self._config, fleet)
        engine = build_engine(self._config, fleet, self._store)
        self._engine = engine.on(device) if isinstance(engine, CentralizedEngine) else engine
        self._failed: str | None = None

    def advance(self, number: int) -> None:
        one = self._config
        cohort = choose_cohort(self._names, one.round.clients, one.run.seed, number)
        try:
            self._store.commit(self._engine.run(cohort).commit)
        except NotFinite as error:
            self._failed = self._failed or str(error)

    def evaluate(self) -> dict[str, Evaluation | str]:
        return {self._name: self._failed or self._engine.evaluate_both()[0]}


class _OnDevice:
    """What arms on a device share: their models, and the samples that they are scored on."""

    def __init__(
        self, configs: Mapping[str, RunConfig], fleet: Fleet, train: Interacted, device: str
    ) -> None:
        self.device, self.fleet = torch.device(device), fleet
        self.clients = ResidentClients(compact(train.data, train.max_history), self.device)
        self.models = {
            name: ResidentModel(fleet.task, _fresh(config, fleet), self.device)
            for name, config in configs.items()
        }
        first = next(iter(configs.values()))
        self._held_out = {
            name: ResidentTest(fleet.task, pool, self.device, most=_MOST_TESTED, seed=first.run.seed)
            for name, pool in split_held_out(first, fleet).items()
        }
        self._baselines = baselines_of(fleet.task, train)

    def evaluate(self) -> dict[str, Evaluation | str]:
        return {name: self._evaluated(model) for name, model in self.models.items()}

    def _evaluated(self, model: ResidentModel) -> Evaluation | str:
        scored = {name: one.scored(model) for name, one in self._held_out.items()}
        if not all(np.isfinite(one.scores).all() for one in scored.values()):
            return "its scores are not finite any more"
        correction = correction_of(scored.get(VALID, Scored(np.zeros(0), np.zeros(0))))
        return evaluate(scored[TEST], self._baselines, correction)


class _Central(_OnDevice):
    """Centralized training on a device. On a GPU, which one arm's small steps leave idle, side by side."""

    def __init__(
        self, configs: Mapping[str, RunConfig], fleet: Fleet, train: Interacted, device: str
    ) -> None:
        super().__init__(configs, fleet, train, device)
        self._arms = [
            ResidentCentral(
                self.clients,
                self.models[name],
                central_settings(config, len(train), len(fleet.devices)),
                seed=config.run.seed,
            )
            for name, config in configs.items()
        ]
        for one in self._arms:
            one.prepare()
        self._streams: list[torch.cuda.Stream] = []
        if self.device.type == "cuda":
            self._streams = [torch.cuda.Stream(self.device) for _ in self._arms]  # type: ignore[no-untyped-call]

    def advance(self, number: int) -> None:
        for one, stream in zip_longest(self._arms, self._streams):
            with torch.cuda.stream(stream):  # of None, nothing happens
                one.run(number)

    def evaluate(self) -> dict[str, Evaluation | str]:
        if self._streams:
            torch.cuda.synchronize()
        return super().evaluate()


class _Federated(_OnDevice):
    """Rounds of arms that train alike, in one pass; nothing leaves the device but scores."""

    def __init__(
        self, configs: Mapping[str, RunConfig], fleet: Fleet, train: Interacted, device: str
    ) -> None:
        configs = {name: resolved(config, fleet) for name, config in configs.items()}
        super().__init__(configs, fleet, train, device)
        self._config = one = next(iter(configs.values()))
        if not isinstance(fleet.devices, Devices):
            raise InputError("a fleet on a device has clients by number")
        self._names, self._numbers = sorted(fleet.devices), fleet.devices.numbers
        arms = [
            Arm(name, self.models[name], simulation_settings(config, {}), scheme_privacy(config))
            for name, config in configs.items()
        ]
        self._engine = self._tester = ResidentEngine(
            self.clients, arms, clients=one.round.clients, seed=one.run.seed
        )
        self._tested: Indices | None = None
        if rebuilds(one, fleet.task):
            chosen = draw_tested(len(self._names), one.run.seed)
            self._tested = np.array([self._numbers[self._names[place]] for place in chosen])
            if (most := min(len(self._tested), TESTED_TOGETHER)) > one.round.clients:
                self._tester = ResidentEngine(self.clients, arms, clients=most, seed=one.run.seed)

    def advance(self, number: int) -> None:
        cohort = choose_cohort(self._names, self._config.round.clients, self._config.run.seed, number)
        self._engine.run(number, np.array([self._numbers[name] for name in cohort], np.int64))

    def evaluate(self) -> dict[str, Evaluation | str]:
        if self._tested is not None:
            self._tester.rebuild(self._tested)
        return super().evaluate()


def _fresh(config: RunConfig, fleet: Fleet) -> MemoryStore:
    return MemoryStore(store_spec(config, fleet.task.spec, devices=True), fleet.task.initial_dense())


def fleet_in(world: World, config: RunConfig) -> Fleet:
    """Build the clients of a world, and the model that this arm trains in it.

    All arms are tested on the users on whom those with rebuilt rows are, or they could not be compared; some
    of these correct how sure a model is, whatever its settings.
    """
    if not isinstance(world.data, Interactions):
        return fleet_of_speech(config, world.data)
    fleet = fleet_of_clicks(config, world.data)
    train, test = hold_out_last(world.data, config.data.held_out)
    tested = train.clients[draw_tested(len(train.clients), config.run.seed)]
    chosen = test.select(np.isin(test.user, tested))
    return replace(fleet, test=Interacted(chosen, config.data.max_history))


def alike(one: RunConfig, other: RunConfig) -> bool:
    """Say whether two arms can be trained in one pass: on a device, by the same local training."""
    central = [config.round.scheme == "centralized" for config in (one, other)]
    same = (one.model, one.training, one.round.clients) == (other.model, other.training, other.round.clients)
    if one.model.kind == "lstm" or central[0] != central[1]:
        return False
    return same and (all(central) or not (one.not_on_a_device or other.not_on_a_device))


def train_arms(
    world: World,
    seed: int,
    arms: Mapping[str, tuple[RunConfig, str]],
    *,
    rounds: int,
    device: str,
    seen: Callable[[int], None] = lambda number: None,
) -> list[Outcome]:
    """Train arms that are alike, each with its settings and their digest, and evaluate them as they go.

    ``seen`` hears of every round. Of the seconds each arm has its share.
    """
    start, every = time.monotonic(), max(1, rounds // 20)
    configs = {
        name: msgspec.structs.replace(config, data=msgspec.structs.replace(config.data, validation=_CORRECT))
        for name, (config, _) in arms.items()
    }
    first = next(iter(configs.values()))
    if first.run.threads:  # steps are small: more threads would be in each other's way
        torch.set_num_threads(first.run.threads)
    trained = _trained(configs, fleet_in(world, first), device)
    points: dict[str, list[Point]] = {name: [] for name in arms}
    found, failed = dict.fromkeys(arms, Evaluation(samples=0)), dict[str, str]()
    for number in range(1, rounds + 1):
        trained.advance(number)
        seen(number)
        if number % every and number != rounds:
            continue
        for name, one in trained.evaluate().items():
            if isinstance(one, str):
                failed.setdefault(name, f"by round {number}: {one}")
            elif name not in failed:
                found[name] = one
                points[name].append(Point(number, one.auc, one.log_loss))
        if len(failed) == len(arms):
            break
    seconds = round((time.monotonic() - start) / len(arms), 1)
    return [
        Outcome(
            world=world.name,
            seed=seed,
            arm=name,
            settings=settings,
            rounds=rounds,
            clients=config.round.clients,
            seconds=seconds,
            points=tuple(points[name]),
            failed=failed.get(name),
            base_log_loss=found[name].base_log_loss,
            popularity_auc=found[name].popularity_auc,
            popularity_log_loss=found[name].popularity_log_loss,
        )
        for name, (config, settings) in arms.items()
    ]


def _trained(configs: Mapping[str, RunConfig], fleet: Fleet, device: str) -> _Trained:
    """On the device what can be there; the rest in the engine that does everything."""
    (name, first), *_ = configs.items()
    central = first.round.scheme == "centralized"
    if isinstance(fleet.train, Interacted) and (central or not first.not_on_a_device):
        return (_Central if central else _Federated)(configs, fleet, fleet.train, device)
    return _Simulated(name, first, fleet, device)
