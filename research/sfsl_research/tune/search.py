"""The search itself: all arms train on the same cohorts, and at each rung the worse half of them ends."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from sfsl.arrays import Indices
from sfsl.correction import Correction
from sfsl.durable import Closing
from sfsl.errors import InputError, ParameterError
from sfsl.models.kinds import build_task
from sfsl.run.fleet import Devices, Fleet, Interacted, scheme_privacy
from sfsl.run.planning import choose_cohort
from sfsl.run.setup import rebuilds, resolved, simulation_settings
from sfsl.run.validation import TEST, VALID, split_held_out
from sfsl.scores import Evaluation, correction_of, evaluate
from sfsl.settings.rounds import store_spec
from sfsl.settings.run import RunConfig
from sfsl.simulate.engine import Pool, baselines_of
from sfsl.simulate.rebuilt import draw_tested
from sfsl.submodel import MemoryStore
from sfsl.training.task import Task
from sfsl_research.resident import Arm, ResidentClients, ResidentEngine, ResidentModel
from sfsl_research.resident.compact import compact
from sfsl_research.resident.scoring import ResidentTest
from sfsl_research.tune.folder import Plan, State, TuneFolder
from sfsl_research.tune.halving import DEFAULT, ArmState, Cost, Point, keep_half, ordered, plan_rungs
from sfsl_research.tune.space import with_changes

# Evaluations over all rounds; rungs add some.
_EVALUATIONS = 16
# Samples of validation devices, which are looked at again and again, and rebuild their rows each time: about
# so many. Test devices are looked at once for each arm. Of either there are no more than some.
_VALIDATION_SAMPLES, _MOST_SAMPLES = 20_000, 500_000
_MOST_DEVICES = 2000
# Seconds between checkpoints: so many times what the last one took, so that they cost a hundredth; or more.
_CHECKPOINTS, _CHECKPOINT_SECONDS = 100, 10.0


@dataclass(frozen=True)
class Progress:
    """How far a search is: ``leader`` is the best of the arms that are ``running``; ``ended`` at a rung."""

    round: int
    rounds: int
    rung: int
    rungs: int
    running: int
    leader: str
    best: Point | None
    default: Point | None
    measured: bool
    ended: tuple[str, ...]


@dataclass(frozen=True)
class _Pass:
    """Arms that train in one pass: their local training is the same."""

    names: tuple[str, ...]
    engine: ResidentEngine
    rebuilds: bool


class Search(Closing):
    """A search under way, in its folder, from its last checkpoint on. Closing it frees the folder."""

    def __init__(self, folder: TuneFolder, fleet: Fleet, device: torch.device) -> None:
        self.folder, self.plan = folder, folder.plan
        plan, self._names = folder.plan, sorted(fleet.devices)
        catalogue = fleet.catalogue
        if not (isinstance(fleet.train, Interacted) and isinstance(fleet.devices, Devices) and catalogue):
            raise InputError("sfsl tune is for clicks data")
        if (len(fleet.devices), len(fleet.train)) != (plan.clients, plan.samples):
            raise InputError(
                f"the search in {folder.path} began with {plan.samples:,} samples of {plan.clients:,} "
                f"clients; now there are {len(fleet.train):,} of {len(fleet.devices):,}: other data need "
                "another search"
            )
        if plan.base.run.threads:
            torch.set_num_threads(plan.base.run.threads)
        base = resolved(on_device(plan.base, device.type), fleet)
        self._task, self._numbers, self._seed = fleet.task, fleet.devices.numbers, base.run.seed
        self._configs = {name: with_changes(base, plan.arms[name]) for name in plan.arms}
        models = {base.model, *(config.model for config in self._configs.values())}
        self._tasks = {one: build_task(catalogue, one, self._seed) for one in models}
        self._fleet = ResidentClients(compact(fleet.train.data, base.data.max_history), device)
        self._clients, self._baselines = base.round.clients, baselines_of(fleet.task, fleet.train)
        pools = split_pools(plan.base, fleet)
        self.held_out = {
            VALID: self._tested(pools[VALID], device, _VALIDATION_SAMPLES),
            TEST: self._tested(pools[TEST], device, _MOST_SAMPLES),
        }
        self.rungs = plan_rungs(plan.rounds, len(plan.arms))
        self._every = max(1, plan.rounds // _EVALUATIONS)
        self.round = 0
        self.arms = {name: ArmState() for name in plan.arms}
        self._models = {
            name: ResidentModel(task, _fresh(task, config), device)
            for name, config in self._configs.items()
            for task in [self._tasks[config.model]]
        }
        self._best: dict[str, dict[str, NDArray[Any]]] = {}
        self._go_on()
        self._passes = self._grouped()

    def run(self, *, stop: Callable[[], bool], seen: Callable[[Progress], None]) -> bool:
        """Run the rounds that are left, or until ``stop``, which is asked between rounds. Returns whether all
        are done; what was done is in the checkpoint either way."""
        saved, took = time.monotonic(), 0.0
        while self.round < self.plan.rounds and not stop():
            self._run_round()
            at_rung = self.round in self.rungs
            measured, ended = at_rung or self.round % self._every == 0, list[str]()
            if measured:
                self._validate()
            if at_rung:
                ended = self._end_rung()
            if at_rung or time.monotonic() - saved > max(_CHECKPOINT_SECONDS, _CHECKPOINTS * took):
                start = time.monotonic()
                self._save()
                saved = time.monotonic()
                took = saved - start
            seen(self._progress(measured, ended))
        self._save()
        return self.round >= self.plan.rounds

    def close(self) -> None:
        self.folder.close()

    @property
    def running(self) -> list[str]:
        return [name for name, arm in self.arms.items() if arm.dropped is None]

    def _run_round(self) -> None:
        self.round += 1
        cohort = choose_cohort(self._names, self._clients, self._seed, self.round)
        chosen = np.array([self._numbers[name] for name in cohort], np.int64)
        for one in self._passes:
            start = time.perf_counter()
            figures = one.engine.run(self.round, chosen)
            samples = [int(each.samples) for each in figures]  # waits for the device
            share = (time.perf_counter() - start) / len(one.names)
            for name, count in zip(one.names, samples, strict=True):
                self._charge(name, Cost(1, self._clients, count, share))

    def _validate(self) -> None:
        for name, found in self._evaluated(VALID, self._passes):
            arm = self.arms[name] = self.arms[name].with_point(self.round, found)
            if arm.best(self.plan.by) is arm.points[-1]:
                self._best[name] = _snapshot(self._models[name])

    def _end_rung(self) -> list[str]:
        """Drop the worse half, or after the last round none; test whoever ends at its best round."""
        running, last = self.running, self.round >= self.plan.rounds
        kept = [] if last else keep_half({name: self.arms[name] for name in running}, self.plan.by)
        ending = [name for name in running if name not in kept]
        for name in ending:
            model = self._models[name]
            model.restore(model.state() | self._best[name])
        passes = [one for one in self._passes if set(one.names) & set(ending)]
        for name, found in self._evaluated(TEST, passes, ending):
            dropped = None if last else self.round
            self.arms[name] = msgspec.structs.replace(self.arms[name], test=found, dropped=dropped)
        for name in ending:
            del self._models[name], self._best[name]
        if not last:
            self._passes = self._grouped()
        return [] if last else ending

    def _evaluated(
        self, pool: str, passes: Sequence[_Pass], only: Sequence[str] | None = None
    ) -> Iterable[tuple[str, Evaluation]]:
        """Evaluate the arms of these passes, or ``only`` some of them."""
        test = self.held_out[pool]
        for one in passes:
            start, found = time.perf_counter(), {}
            if one.rebuilds:  # of all arms in the pass; a round reads no rows that were rebuilt before it
                assert test.users is not None  # noqa: S101
                one.engine.rebuild(test.users)
            for name in one.names:
                if only is None or name in only:
                    scored = test.scored(self._models[name])
                    correction = correction_of(scored) if pool == VALID else self._correction(name)
                    found[name] = evaluate(scored, self._baselines, correction)
            share = (time.perf_counter() - start) / len(found)
            for name, evaluation in found.items():
                self._charge(name, Cost(seconds=share))
                yield name, evaluation

    def _correction(self, name: str) -> Correction | None:
        """Return what validation devices corrected an arm's best model by."""
        best = self.arms[name].best(self.plan.by)
        return None if best is None else best.found.correction

    def _charge(self, name: str, cost: Cost) -> None:
        arm = self.arms[name]
        self.arms[name] = msgspec.structs.replace(arm, cost=arm.cost + cost)

    def _grouped(self) -> list[_Pass]:
        """Put running arms that train alike into one engine each."""
        groups: dict[object, list[str]] = {}
        for name in self._models:
            config = self._configs[name]
            groups.setdefault((config.model, config.training), []).append(name)
        passes = []
        for names in groups.values():
            configs = [self._configs[name] for name in names]
            arms = [
                Arm(name, self._models[name], simulation_settings(config, {}), scheme_privacy(config))
                for name, config in zip(names, configs, strict=True)
            ]
            engine = ResidentEngine(self._fleet, arms, clients=self._clients, seed=self._seed)
            engine.prepare()
            one = configs[0]
            passes.append(_Pass(tuple(names), engine, rebuilds(one, self._tasks[one.model])))
        return passes

    def _tested(self, pool: Pool, device: torch.device, samples: int) -> ResidentTest:
        """Put a pool on the device: whole clients with about so many samples, by whom all arms are judged."""
        users = np.unique(_users(pool))
        few = min(_MOST_DEVICES, -(-samples * len(users) // len(pool)))
        some = users[draw_tested(len(users), self._seed, few)]
        return ResidentTest(self._task, pool, device, most=_MOST_SAMPLES, seed=self._seed, users=some)

    def _progress(self, measured: bool, ended: Sequence[str]) -> Progress:
        by, arms = self.plan.by, {name: self.arms[name] for name in self.running}
        leader = ordered(arms, by)[0]
        rung = sum(end < self.round for end in self.rungs) + 1
        best, default = arms[leader].best(by), arms[DEFAULT].best(by)
        return Progress(
            self.round, self.plan.rounds, rung, len(self.rungs), len(arms), leader, best, default, measured,
            tuple(ended),
        )  # fmt: skip

    def _save(self) -> None:
        arrays = {
            f"{name}/now/{key}": one
            for name in self._models
            for key, one in self._models[name].state().items()
        }
        arrays |= {
            f"{name}/best/{key}": one for name, kept in self._best.items() for key, one in kept.items()
        }
        self.folder.save(State(self.round, self.arms), arrays)

    def _go_on(self) -> None:
        """Take up the last checkpoint, if there is one."""
        loaded = self.folder.load()
        if loaded is None:
            return
        state, arrays = loaded
        self.round, self.arms = state.round, {**state.arms}
        try:
            for name in [*self._models]:
                if self.arms[name].test is not None:  # it has ended
                    del self._models[name]
                    continue
                held = {key: arrays[f"{name}/now/{key}"] for key in self._models[name].state()}
                self._models[name].restore(held)
                prefix = f"{name}/best/"
                kept = {
                    key.removeprefix(prefix): one for key, one in arrays.items() if key.startswith(prefix)
                }
                if kept:
                    self._best[name] = kept
        except (KeyError, ValueError) as error:
            raise InputError(f"cannot go on with the search in {self.folder.path}: {error}") from None


def on_device(config: RunConfig, device: str) -> RunConfig:
    """Return settings for training on a device: what is hidden, and how clients take turns, makes no other
    model. What the device cannot do is refused."""
    change = msgspec.structs.replace
    sums = "plain" if config.round.masked else config.round.sums
    try:
        return change(
            config,
            round=change(config.round, sums=sums, bins=0),
            run=change(config.run, device=device, engine="local", selection="uniform", period=0),
        )
    except ParameterError as error:
        raise ParameterError(f"a search trains its arms on a device: {error}") from None


def split_pools(config: RunConfig, fleet: Fleet) -> dict[str, Pool]:
    """Return the held-out samples of validation devices and of test devices, both with something to tell."""
    if not config.data.validation:
        raise ParameterError("data.validation = 0 leaves no devices to choose settings by; take 0.5")
    pools = split_held_out(config, fleet)
    if VALID not in pools:
        raise InputError(
            "the held-out samples of these devices cannot be split in two parts with clicks and non-clicks "
            "in each, of which one chooses settings and the other tests them; take more data, or hold out "
            "more of it (--set data.held_out=0.3)"
        )
    return pools


def begin(path: Path, plan: Plan, fleet: Fleet, device: torch.device) -> Search:
    """Begin a search. Its folder is made once data and settings have proved good, and not left behind where
    the search could not start."""
    split_pools(plan.base, fleet)
    folder = TuneFolder.create(path, plan)
    try:
        return Search(folder, fleet, device)
    except BaseException:
        folder.remove()
        raise


def go_on(path: Path, fleet: Fleet, device: torch.device) -> Search:
    """Go on with the search at ``path`` from its last checkpoint."""
    folder = TuneFolder(path)
    try:
        return Search(folder, fleet, device)
    except BaseException:
        folder.close()
        raise


def _users(pool: Pool) -> Indices:
    users = pool.column("user")
    return np.zeros(0, np.int64) if users is None else users


def _snapshot(model: ResidentModel) -> dict[str, NDArray[Any]]:
    """Copy what scores, without the state of optimizers."""
    return {name: one.copy() for name, one in model.state().items() if "state" not in name}


def _fresh(task: Task, config: RunConfig) -> MemoryStore:
    return MemoryStore(store_spec(config, task.spec, devices=True), task.initial_dense())
