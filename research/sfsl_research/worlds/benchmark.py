"""The benchmark of worlds: every arm in every world and seed, a line in a file for each that is done.

The file is all there is to go on from: an arm whose line is in it, with the same settings, is not trained
again. Arms that are alike train in one pass; others know nothing of them, and train at once, in processes of
their own.
"""

import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path

import msgspec

from sfsl.checksums import json_lines, with_json_sum
from sfsl.durable import make_folder, write_whole
from sfsl.errors import InputError, ParameterError
from sfsl.settings.run import RunConfig
from sfsl_research.worlds.arms import CENTRALIZED, DEFAULT, FL, PAPER, Sections, arms_of, digest_of, family_of
from sfsl_research.worlds.generated import WORLDS, generate
from sfsl_research.worlds.real import REAL, load_real
from sfsl_research.worlds.trial import Outcome, alike, train_arms
from sfsl_research.worlds.world import World

ARMS = "arms.jsonl"


@dataclass(frozen=True)
class Plan:
    """What to train. A cohort has ``clients``, or fewer where a world has smaller ones. ``data`` is the
    folder of real worlds; ``candidates`` are settings that stand beside the default, by name. ``arms`` names
    those that are wanted beside centralized training, where not all are."""

    worlds: tuple[str, ...]
    seeds: int = 3
    rounds: int = 300
    clients: int = 100
    device: str = "cpu"
    jobs: int = 1
    data: Path | None = None
    candidates: Mapping[str, Sections] = field(default_factory=dict)
    arms: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        there = (DEFAULT, *self.candidates, PAPER, FL, CENTRALIZED)
        if unknown := [name for name in self.arms if name not in there]:
            raise ParameterError(f"there is no arm {unknown[0]!r}; there are {', '.join(there)}")


@dataclass(frozen=True)
class _Job:
    """Arms to train in one pass: all that another process needs to know."""

    world: str
    seed: int
    arms: Mapping[str, RunConfig]
    rounds: int
    device: str
    data: Path | None

    def __str__(self) -> str:
        return f"{self.world}, seed {self.seed}, {', '.join(self.arms)}"

    def key(self, arm: str) -> tuple[str, int, str, str, int]:
        return self.world, self.seed, arm, digest_of(self.arms[arm]), self.rounds


def worlds_named(text: str | None, data: Path | None) -> tuple[str, ...]:
    """Return the worlds that a comma-separated list names; without one, all that there are."""
    if not text:
        return (*WORLDS, *(REAL if data else ()))
    names = tuple(dict.fromkeys(one.strip() for one in text.split(",") if one.strip()))
    for name in names:
        if name not in WORLDS and name not in REAL:
            raise ParameterError(f"there is no world {name!r}; there are {', '.join([*WORLDS, *REAL])}")
        if name in REAL and data is None:
            raise ParameterError(f"{name} is a real world; say with --data in which folder it lies")
    return names


@lru_cache(2)
def world_of(name: str, seed: int, data: Path | None) -> World:
    """Make a generated world, or read a real one."""
    if name in WORLDS:
        return generate(name, seed=seed)
    if data is None:
        raise ParameterError(f"{name} is a real world; say in which folder it lies")
    return load_real(name, data, seed=seed)


def run_plan(
    plan: Plan, out: Path, seen: Callable[[str, float, int], None] = lambda text, done, total: None
) -> list[Outcome]:
    """Train what is not done yet, and return what all arms of the plan came to.

    ``seen`` is told what is under way, how many arms are done, with parts of one, and of how many.
    """
    try:
        make_folder(out)
    except OSError as error:
        raise InputError(f"cannot make the folder {out}: {error.strerror}") from None
    known = {(one.world, one.seed, one.arm, one.settings, one.rounds): one for one in read_outcomes(out)}
    found, left, total = list[Outcome](), list[_Job](), 0
    for job in _jobs(plan):
        total += len(job.arms)
        found += [known[job.key(arm)] for arm in job.arms if job.key(arm) in known]
        if due := {arm: config for arm, config in job.arms.items() if job.key(arm) not in known}:
            left.append(replace(job, arms=due))

    def under_way(job: _Job, number: int) -> None:
        seen(str(job), len(found) + len(job.arms) * number / job.rounds, total)

    seen("", len(found), total)
    for outcomes in _train_one_by_one(left, under_way) if plan.jobs == 1 else _train_at_once(left, plan.jobs):
        _append(out / ARMS, outcomes)
        found += outcomes
        one = outcomes[0]
        seen(f"{one.world}, seed {one.seed}, {one.arm}", len(found), total)
    return found


def read_outcomes(out: Path) -> list[Outcome]:
    """Read what was trained so far. A last line that a crash cut short is left out."""
    path = out / ARMS
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    try:
        return [msgspec.json.decode(_sound(line), type=Outcome) for line in json_lines(content)]
    except (msgspec.MsgspecError, ValueError) as error:
        raise InputError(f"{path} is damaged: {error}; move it away to begin anew") from None


def _sound(line: bytes | None) -> bytes:
    if line is None:
        raise ValueError("the checksum of a line does not fit")
    return line


def _jobs(plan: Plan) -> Iterator[_Job]:
    """What there is to train, without making the worlds, which takes time."""
    for seed in range(plan.seeds):
        for name in plan.worlds:
            model = REAL[name][2] if name in REAL else "din"
            clients = min(plan.clients, WORLDS[name].clients) if name in WORLDS else plan.clients
            passes = list[dict[str, RunConfig]]()
            for arm, config in arms_of(model, clients=clients, seed=seed, candidates=plan.candidates).items():
                if plan.arms and family_of(arm) not in (*plan.arms, CENTRALIZED):
                    continue
                for one in passes:
                    if alike(config, next(iter(one.values()))):
                        one[arm] = config
                        break
                else:
                    passes.append({arm: config})
            for one in passes:
                yield _Job(name, seed, one, plan.rounds, plan.device, plan.data)


def _train_one_by_one(jobs: Sequence[_Job], seen: Callable[[_Job, int], None]) -> Iterator[list[Outcome]]:
    for job in jobs:
        yield _train(job, partial(seen, job))


def _train_at_once(jobs: Sequence[_Job], most: int) -> Iterator[list[Outcome]]:
    # A process that was forked cannot use a GPU.
    context = multiprocessing.get_context("spawn")
    # One job each: graphs hold on to a GPU's memory until their process ends.
    with ProcessPoolExecutor(most, mp_context=context, max_tasks_per_child=1) as workers:
        waiting = [workers.submit(_train, job) for job in jobs]
        try:
            for one in as_completed(waiting):
                yield one.result()
        finally:
            workers.shutdown(wait=False, cancel_futures=True)


def _train(job: _Job, seen: Callable[[int], None] = lambda number: None) -> list[Outcome]:
    world = world_of(job.world, job.seed, job.data)
    arms = {arm: (config, digest_of(config)) for arm, config in job.arms.items()}
    return train_arms(world, job.seed, arms, rounds=job.rounds, device=job.device, seen=seen)


def _append(path: Path, outcomes: Sequence[Outcome]) -> None:
    try:
        lines = map(msgspec.json.encode, [*read_outcomes(path.parent), *outcomes])
        write_whole(path, b"".join(with_json_sum(line) + b"\n" for line in lines))
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from None
