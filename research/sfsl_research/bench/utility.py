"""What rounds over hot rows learn under noise, beside the paper's scheme and centralized training.

Each arm is trained in a process of its own, so that a GPU has work for all of them at once.
"""

import json
import math
import multiprocessing
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sfsl.data.interactions import Interactions
from sfsl.data.stored import store_interactions
from sfsl.data.synthetic import WORLDS, SyntheticTaobao
from sfsl.rounds.hot import HotState
from sfsl.rounds.hot_server import HotRound
from sfsl.run.fleet import Fleet, Interacted, build_fleet
from sfsl.run.setup import resolved
from sfsl.scores import Evaluation, evaluate
from sfsl.secagg.messages import MAX_COMPLETE
from sfsl.settings.rounds import store_spec
from sfsl.settings.run import RunConfig, from_sections
from sfsl.simulate.engine import baselines_of
from sfsl.simulate.rebuilt import draw_tested
from sfsl.submodel import MemoryStore
from sfsl_research.experiments.centralized import central_settings
from sfsl_research.experiments.resident_central import ResidentCentral
from sfsl_research.resident import ResidentModel, plugin
from sfsl_research.resident.scoring import ResidentTest

# Turns of every client in rounds that train.
PARTICIPATIONS = 5
_TURNS = 1009  # its stream of the seed
_POINTS = 8


class _Hot:
    """Rounds over hot rows: clients take turns, as everybody's budget is for so many."""

    def __init__(self, config: RunConfig, fleet: Fleet) -> None:
        self._config = config = resolved(config, fleet)
        self._names, self._state = sorted(fleet.devices), HotState()
        spec = store_spec(config, fleet.task.spec, devices=True)
        self.store = MemoryStore(spec, fleet.task.initial_dense())
        self.engine = plugin.build(config, fleet, self.store)
        self.engine.baselines = baselines_of(fleet.task, fleet.train)
        self._queue: list[str] = []
        self._rng = np.random.default_rng([_TURNS, config.run.seed])
        self.about: dict[str, Any] = {}
        self._fleet = fleet

    def advance(self, number: int) -> None:
        config = self._config
        if config.round.scheme != "hot":
            drawn = self._rng.choice(len(self._names), config.round.clients, replace=False)
            self.store.commit(self.engine.run([self._names[at] for at in np.sort(drawn)]).commit)
            return
        trained = number > int(config.hot.surveys)
        if number == int(config.hot.surveys) + 1:
            self._queue = []  # surveys are paid for apart
        result = self.engine.run(self._turn(config.round.clients), hot=self._state)
        if result.outcome is not None and result.outcome.hot is not None:  # nobody drops out here
            self._state = result.outcome.hot
        self.store.commit(result.commit)
        if trained and isinstance(result.plan, HotRound):
            self._tell(result.plan, result.tally.loss)

    def _turn(self, clients: int) -> tuple[str, ...]:
        while len(self._queue) < clients:
            waiting = {*self._queue}
            left = [name for name in self._names if name not in waiting]
            self._queue += [left[at] for at in self._rng.permutation(len(left))]
        taken, self._queue = self._queue[:clients], self._queue[clients:]
        return tuple(sorted(taken))

    def _tell(self, plan: HotRound, loss: float) -> None:
        """Note what bounds this: hot rows, the share of touches they cover, and the noise."""
        params, clients = plan.params, self._config.round.clients
        self.about |= {
            "hot_rows": dict(params.rows),
            "clip": params.clip,
            "noise_of_sum_in_clips": params.deviation * math.sqrt(clients) / params.levels,
            "words": params.length,
            "rho": plan.rho(clients) if params.deviation else None,
        }
        if "covered" not in self.about and plan.published is not None:
            train = self._fleet.train
            assert isinstance(train, Interacted)  # noqa: S101 -- this is about clicks
            sets = plan.published.hot.sets(params.model)
            items = np.asarray(train.data.item)
            self.about["covered"] = {"item": float(sets["item"].holds(items).mean())}
            owners = {name: plan.published.hot.shares(name) * clients for name in sets}
            self.about["owners_in_a_round"] = {
                name: [float(one) for one in np.quantile(own, [0.1, 0.5, 0.9])] if len(own) else []
                for name, own in owners.items()
            }
            if "category" in sets and train.data.category_of is not None:
                of = np.asarray(train.data.category_of)[items]
                self.about["covered"]["category"] = float(sets["category"].holds(of).mean())

    def evaluate(self) -> Evaluation:
        return self.engine.evaluate()


class _Central:
    """Everyone's samples in one place, as many in a round as a cohort has."""

    def __init__(self, config: RunConfig, fleet: Fleet) -> None:
        where = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        task, train = fleet.task, fleet.train
        assert isinstance(train, Interacted)  # noqa: S101 -- this is about clicks
        self.about: dict[str, Any] = {}
        self._model = ResidentModel(
            task, MemoryStore(store_spec(config, task.spec, devices=True), task.initial_dense()), where
        )
        settings = central_settings(config, len(train), len(fleet.devices))
        clients = plugin.clients_of(config, train, where)
        self._central = ResidentCentral(clients, self._model, settings, seed=config.run.seed)
        self._test = ResidentTest(task, fleet.test, where, most=1_000_000, seed=config.run.seed)
        self._baselines = baselines_of(task, train)

    def advance(self, number: int) -> None:
        self._central.run(number)

    def evaluate(self) -> Evaluation:
        return evaluate(self._test.scored(self._model), self._baselines)


def fleet_of(config: RunConfig) -> Fleet:
    """Build the fleet of a run. All arms are tested on the same clients, those whose rows are rebuilt."""
    fleet = build_fleet(config)
    test, names = fleet.test, sorted(fleet.devices)
    assert isinstance(test, Interacted)  # noqa: S101 -- this is about clicks
    numbers = fleet.devices.numbers  # type: ignore[attr-defined]
    tested = [numbers[names[place]] for place in draw_tested(len(names), config.run.seed)]
    chosen = test.data.select(np.isin(test.data.user, tested))
    return replace(fleet, test=Interacted(chosen, test.max_history))


def train_one(
    name: str,
    config: RunConfig,
    *,
    fleet: Fleet | None = None,
    seen: Callable[[dict[str, Any]], None] = lambda point: None,
) -> dict[str, Any]:
    """Train one arm and return its curve, and what bounds it."""
    start = time.monotonic()
    if config.run.threads:
        torch.set_num_threads(config.run.threads)
    fleet = fleet_of(config) if fleet is None else fleet
    one = _Central(config, fleet) if config.round.scheme == "centralized" else _Hot(config, fleet)
    rounds, points = config.run.rounds, list[dict[str, Any]]()
    ready = time.monotonic() - start
    every = config.run.evaluate_every or max(1, rounds // _POINTS)
    found = Evaluation(samples=0)
    for number in range(1, rounds + 1):
        one.advance(number)
        if number % every == 0 or number == rounds:
            found = one.evaluate()
            points.append({"round": number, "auc": found.auc, "log_loss": found.log_loss})
            seen(points[-1])
    return {
        "arm": name,
        "scheme": config.round.scheme,
        "clients": config.round.clients,
        "users": len(fleet.devices),
        "rounds": rounds,
        "surveys": int(config.hot.surveys) if config.round.scheme == "hot" else 0,
        "epsilon": config.privacy.epsilon if config.round.scheme == "hot" else None,
        "points": points,
        "seconds": round(time.monotonic() - start, 1),
        "ready_seconds": round(ready, 1),
        "popularity_auc": found.popularity_auc,
        "popularity_log_loss": found.popularity_log_loss,
        "base_log_loss": found.base_log_loss,
        "tested": found.samples,
        "about": one.about,
    }


def utility_arms(
    data: Mapping[str, Any],
    *,
    users: int,
    cohorts: Sequence[int],
    epsilons: Sequence[float],
    paper_cohorts: Sequence[int],
    device: str,
    seed: int = 0,
) -> dict[str, RunConfig]:
    """Return the arms: rounds over hot rows for each cohort and epsilon, the paper's scheme (cpp2) and
    centralized training, all with five turns of everyone."""

    def arm(clients: int, scheme: str, **sections: Mapping[str, Any]) -> RunConfig:
        rounds = max(1, PARTICIPATIONS * users // clients)
        surveys = math.ceil(users / clients) if scheme == "hot" else 0
        own = {
            "data": {**data, "validation": 0.0},
            "round": {"scheme": scheme, "clients": clients, "bins": 0, "min_contributors": 1},
            "hot": {"surveys": surveys, "bins": 0} if scheme == "hot" else {},
            "run": {"rounds": rounds + surveys, "device": device, "seed": seed, "evaluate_every": 0},
            # A rate that suits large batches, which make a round of this size a matter of moments.
            "centralized": {"optimizer": "adam", "batch_size": 256, "learning_rate": 0.001},
        }
        if scheme != "centralized":
            own["round"]["sums"] = "plain"
        else:
            own["run"]["device"] = ""
        names = {*own, *sections}
        return from_sections({name: {**own.get(name, {}), **sections.get(name, {})} for name in names})

    arms = {}
    for clients in cohorts:
        for epsilon in epsilons:
            privacy = {"epsilon": epsilon, "delta": 1e-6, "participations": PARTICIPATIONS}
            arms[f"hot {clients} epsilon {epsilon:g}"] = arm(clients, "hot", privacy=privacy)
    arms |= {f"cpp2 {clients}": arm(clients, "sfsl") for clients in paper_cohorts}
    arms["centralized"] = arm(min(max(cohorts), MAX_COMPLETE), "centralized")
    return arms


def make_data(folder: Path, world: str, users: int, scale: float, seed: int, processes: int) -> None:
    """Make a synthetic world's samples, in several processes, and store them."""
    settings = WORLDS[world].scaled(scale, users=users)
    parts = [part.tolist() for part in np.array_split(np.arange(users), max(1, processes))]
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        made = pool.map(_made, [(settings, seed, part) for part in parts])
    about = json.dumps({"seed": seed, **asdict(settings)})
    store_interactions(_joined(made), folder, about=f"synthetic: {about}")


def _made(given: tuple[Any, int, list[int]]) -> Interactions:
    settings, seed, users = given
    return SyntheticTaobao(settings, seed=seed).interactions(users)


def _joined(parts: Sequence[Interactions]) -> Interactions:
    """Join the samples of different users of one world."""

    def ends(name: str) -> Any:
        begun = np.cumsum([0, *(int(getattr(one, name)[-1]) for one in parts)])
        return np.concatenate(
            [[0], *(getattr(one, name)[1:] + first for one, first in zip(parts, begun, strict=False))]
        )

    names = ("users", "item", "label", "time", "clicks", "history_start", "history_stop", "probability")
    return replace(
        parts[0],
        **{name: np.concatenate([getattr(one, name) for one in parts]) for name in names},
        offsets=ends("offsets"),
        click_offsets=ends("click_offsets"),
    )
