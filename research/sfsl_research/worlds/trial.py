"""One arm in one world: trained round by round, evaluated as it goes."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import msgspec
import numpy as np
import torch

from sfsl.data.interactions import Interactions, hold_out_last
from sfsl.errors import NotFinite
from sfsl.run.fleet import Fleet, Interacted, fleet_of_clicks, fleet_of_speech
from sfsl.run.planning import choose_cohort
from sfsl.run.setup import build_engine, resolved
from sfsl.run.validation import TEST, VALID, split_held_out
from sfsl.scores import Evaluation, correction_of, evaluate
from sfsl.settings.rounds import store_spec
from sfsl.settings.run import RunConfig
from sfsl.simulate.engine import Engine, baselines_of
from sfsl.simulate.rebuilt import draw_tested
from sfsl.submodel import MemoryStore
from sfsl_research.experiments.centralized import central_settings
from sfsl_research.experiments.resident_central import ResidentCentral
from sfsl_research.resident import ResidentClients, ResidentModel
from sfsl_research.resident import plugin as resident
from sfsl_research.resident.compact import compact
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
    def advance(self, number: int) -> None: ...
    def evaluate(self) -> Evaluation: ...


class _Federated:
    """Rounds of any engine, on a store in memory."""

    def __init__(self, config: RunConfig, fleet: Fleet, device: str) -> None:
        config = resolved(config, fleet)
        self._config, self._names = config, sorted(fleet.devices)
        self._store = MemoryStore(
            store_spec(config, fleet.task.spec, devices=True), fleet.task.initial_dense()
        )
        self._engine = self._built(config, fleet, device)

    def _built(self, config: RunConfig, fleet: Fleet, device: str) -> Engine:
        """On the device what can be there; the rest in the engine that does everything."""
        if config.not_on_a_device or not isinstance(fleet.train, Interacted):
            return build_engine(config, fleet, self._store)
        config = msgspec.structs.replace(config, run=msgspec.structs.replace(config.run, device=device))
        engine = resident.build(config, fleet, self._store)
        engine.pools, engine.baselines = split_held_out(config, fleet), baselines_of(fleet.task, fleet.train)
        return engine

    def advance(self, number: int) -> None:
        one = self._config
        cohort = choose_cohort(self._names, one.round.clients, one.run.seed, number)
        self._store.commit(self._engine.run(cohort).commit)

    def evaluate(self) -> Evaluation:
        return self._engine.evaluate_both()[0]


class _Central:
    """Centralized training on a device."""

    def __init__(self, config: RunConfig, fleet: Fleet, train: Interacted, device: str) -> None:
        where, task = torch.device(device), fleet.task
        store = MemoryStore(store_spec(config, task.spec, devices=True), task.initial_dense())
        self._model = ResidentModel(task, store, where)
        settings = central_settings(config, len(train), len(fleet.devices))
        clients = ResidentClients(compact(train.data, train.max_history), where)
        self._central = ResidentCentral(clients, self._model, settings, seed=config.run.seed)
        self._held_out = {
            name: ResidentTest(task, pool, where, most=_MOST_TESTED, seed=config.run.seed)
            for name, pool in split_held_out(config, fleet).items()
        }
        self._baselines = baselines_of(task, train)

    def advance(self, number: int) -> None:
        if int(self._central.run(number).diverged):
            raise NotFinite(f"round {number} made numbers that are not finite")

    def evaluate(self) -> Evaluation:
        scored = {name: one.scored(self._model) for name, one in self._held_out.items()}
        correction = correction_of(scored[VALID]) if VALID in scored else None
        return evaluate(scored[TEST], self._baselines, correction)


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


def train_arm(
    world: World,
    seed: int,
    arm: str,
    config: RunConfig,
    settings: str,
    *,
    rounds: int,
    device: str,
    seen: Callable[[int], None] = lambda number: None,
) -> Outcome:
    """Train an arm and evaluate it some twenty times. ``seen`` hears of every round."""
    start, every = time.monotonic(), max(1, rounds // 20)
    config = msgspec.structs.replace(config, data=msgspec.structs.replace(config.data, validation=_CORRECT))
    if config.run.threads:  # steps are small: more threads would be in each other's way
        torch.set_num_threads(config.run.threads)
    fleet = fleet_in(world, config)
    trained: _Trained
    if config.round.scheme == "centralized" and isinstance(fleet.train, Interacted):
        trained = _Central(config, fleet, fleet.train, device)
    else:
        trained = _Federated(config, fleet, device)
    points: list[Point] = []
    found, failed = Evaluation(samples=0), None
    try:
        for number in range(1, rounds + 1):
            trained.advance(number)
            seen(number)
            if number % every == 0 or number == rounds:
                found = trained.evaluate()
                points.append(Point(number, found.auc, found.log_loss))
    except NotFinite as error:
        failed = str(error)
    return Outcome(
        world=world.name,
        seed=seed,
        arm=arm,
        settings=settings,
        rounds=rounds,
        clients=config.round.clients,
        seconds=round(time.monotonic() - start, 1),
        points=tuple(points),
        failed=failed,
        base_log_loss=found.base_log_loss,
        popularity_auc=found.popularity_auc,
        popularity_log_loss=found.popularity_log_loss,
    )
