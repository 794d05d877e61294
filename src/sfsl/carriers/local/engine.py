"""Rounds of a simulated population in this process: cohorts on the protocol or in the open, averaged once.

In a ``ClientPool`` the clients of a cohort live during a round: frames go in, frames or the reason for none
come out. ``MaskedCohort`` neither knows nor cares whether they are threads beside it or on other machines.
"""

import math
import os
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Protocol

from sfsl.codec import Message
from sfsl.crypto.secret import Randomness, SystemRandomness
from sfsl.errors import Aborted, Declined, InvalidMessage, NotFinite, Refused, RemoteError, TooFewClients
from sfsl.rounds import Download, RoundClient, RoundOutcome, RoundPolicy, RoundSums, ScoreBins, conclude
from sfsl.rounds.client import Own
from sfsl.rounds.exchanges import CODEC, HOT, SUBMODELS, SURVEY, Course, Exchange
from sfsl.rounds.hot import HotState, Published
from sfsl.rounds.hot_client import HotClient
from sfsl.rounds.hot_server import HotRound, HotSums
from sfsl.rounds.params import ANYTHING, HotLimits
from sfsl.rounds.record import Learned, RoundTally
from sfsl.secagg import Policy
from sfsl.secagg.messages import Keys
from sfsl.service.driver import CohortRound, Driver, Plan
from sfsl.service.members import admit_keys
from sfsl.simulate.engine import Engine, RoundResult
from sfsl.simulate.plain import PlainCohort, PlainHot
from sfsl.simulate.population import Groups, Personal, Population, Simulation
from sfsl.simulate.rebuilt import Rebuilt, rebuild_personal
from sfsl.submodel import Commit

MESSAGE_LIMIT = 1 << 30
# A simulated client accepts what it is offered; a deployed one has a policy of its own.
_GENEROUS = 2**32
_SESSION = Policy(min_clients=2, min_threshold=2, min_contributors=1, max_words=_GENEROUS)


@dataclass(frozen=True)
class Reply:
    """Holds what a client answers, or why it does not: it declines, or its update is not finite. ``seconds``
    of its CPU, without training."""

    frame: bytes | None
    seconds: float
    reason: str = ""


@dataclass(frozen=True)
class Lessons:
    """Holds what comes of training. ``seconds``: wall time, all places together."""

    replies: Mapping[str, Reply]
    learned: Mapping[str, Learned]
    seconds: float


class ClientPool(Protocol):
    """Has a cohort's clients. One for whom there is no reply was lost."""

    def check_in(self) -> Mapping[str, Reply]:
        """Return everyone's keys."""

    def answer(self, exchange: Exchange, frames: Mapping[str, bytes]) -> Mapping[str, Reply]: ...
    def train(self, frames: Mapping[str, bytes], personal: Personal) -> Lessons:
        """Return the answers to ``submodel``."""


@dataclass(eq=False)
class LocalPool:
    """Has the clients of some groups, in this process, for one round. ``randomness`` makes keys and masks.
    They work side by side in the threads of ``workers``: ciphers and arrays, which take most of the time, run
    in parallel. ``course`` is the round's kind, ``published`` what clients of hot rows have downloaded."""

    population: Population
    number: int
    groups: Groups
    randomness: Randomness
    workers: Executor
    course: Course = SUBMODELS
    published: Published | None = None
    _clients: dict[str, Any] = field(default_factory=dict)

    def check_in(self) -> dict[str, Reply]:
        return self._side_by_side(chain.from_iterable(self.groups), self._keys)

    def answer(self, exchange: Exchange, frames: Mapping[str, bytes]) -> dict[str, Reply]:
        handler = self.course.step(exchange).handler
        return self._side_by_side(
            frames, lambda name: getattr(self._clients[name], handler)(_decoded(frames[name]))
        )

    def train(self, frames: Mapping[str, bytes], personal: Personal) -> Lessons:
        downloads, spent = {}, {}
        for name, frame in frames.items():
            start = time.thread_time()
            downloads[name] = self._opened(self._clients[name], _decoded(frame))
            spent[name] = time.thread_time() - start
        began = time.perf_counter()
        trained, learned = self.population.train(self.number, self.groups, downloads, personal)
        seconds = time.perf_counter() - began
        replies = self._side_by_side(
            frames, lambda name: self._clients[name].create_update(trained[name]), spent
        )
        return Lessons(replies, {name: learned[name] for name in frames}, seconds)

    def _opened(self, client: RoundClient | HotClient, message: Any) -> Download:
        if isinstance(client, RoundClient):
            return client.handle_submodel(message)
        assert self.published is not None  # noqa: S101 -- a round that trains has published
        return client.handle_model(message, self.published)

    def _side_by_side(
        self, names: Iterable[str], act: Callable[[str], Message], spent: Mapping[str, float] | None = None
    ) -> dict[str, Reply]:
        def reply(name: str) -> tuple[str, Reply]:
            start = time.thread_time() - (spent[name] if spent else 0.0)
            try:
                frame, reason = CODEC.encode(act(name)), ""
            except (Declined, Refused, NotFinite) as error:
                frame, reason = None, type(error).__name__
            return name, Reply(frame, time.thread_time() - start, reason)

        return dict(self.workers.map(reply, names))

    def _keys(self, name: str) -> Message:
        population, number, task = self.population, self.number, self.population.task
        answers, rounding = population.answers(name, number), population.rounding(name, number)
        policy = RoundPolicy(
            session=_SESSION,
            max_clip=_GENEROUS,
            max_rows=population.settings.max_rows,
            hot=HotLimits(max_rho=math.inf),
            limits=ANYTHING,
        )
        own = Own(answers, task.spec, task.row_maps, policy, self.randomness, rounding)
        kind: type[RoundClient | HotClient] = HotClient
        if self.course == SUBMODELS:  # a worker has a copy
            kind = RoundClient
        client = self._clients[name] = kind.join(name, own)
        return client.create_keys()


def _decoded(frame: bytes) -> Any:
    """Decode what our own server made."""
    return CODEC.decode(frame, limit=MESSAGE_LIMIT)


@dataclass
class MaskedCohort:
    """Runs one cohort's round, its clients wherever ``pool`` has them, and tallies it by exchange. What comes
    from a pool is taken as a network's server takes it: a frame that is not the one that is due costs its
    client the round, and nobody else anything."""

    simulation: Simulation
    names: Sequence[str]
    plan: Plan
    tally: RoundTally
    driver: Driver
    pool: ClientPool
    learned: dict[str, Learned] = field(default_factory=dict)

    def sums(self) -> RoundSums | HotSums:
        """Run all exchanges, and return what the cohort opened, to be added to that of the others."""
        cohort = self._check_in()
        outbound: Mapping[str, bytes] = cohort.begin()
        while exchange := cohort.exchange:
            outbound = self._exchange(cohort, exchange, outbound)
        return cohort.server.sums

    def _check_in(self) -> CohortRound:
        """Admit those who checked in with keys that are fit for use, if they are enough."""
        start = self.driver.cpu()
        replies = self.pool.check_in()
        keys: list[Keys] = []
        seen: set[bytes] = set()
        for name in self.names:
            reply = replies.get(name)
            if reply is None or reply.frame is None:
                self.tally.drop(Exchange.CHECK_IN)
                continue
            try:
                keys.append(_admitted(name, reply.frame, seen, self.driver.rules.sums))
            except RemoteError as error:
                self.tally.decline(error)
        threshold = self.driver.rules.threshold_of(len(self.names))
        if len(keys) < threshold:
            raise TooFewClients(f"{len(keys)} clients are left, {threshold} are needed")
        self._charge(Exchange.CHECK_IN, {}, replies)
        cohort = self.driver.open(self.plan, keys, self.tally, threshold=threshold, alone=False)
        self.tally.server_seconds[Exchange.CHECK_IN] = self.driver.cpu() - start
        return cohort

    def _exchange(
        self, cohort: CohortRound, exchange: Exchange, outbound: Mapping[str, bytes]
    ) -> Mapping[str, bytes]:
        """Let clients answer, and close the phase; return what the server sends next. A client that declines,
        or whose update is not finite, is a dropout. Messages of slow clients come after the phase was closed,
        and are refused."""
        faults, number = self.simulation.settings.faults, self.plan.number
        vanished = faults.vanish(number, exchange, outbound)
        self.tally.drop(exchange, 0)  # so that every exchange is in the record
        frames = {name: frame for name, frame in outbound.items() if name not in vanished}
        trains = exchange is cohort.course.trains
        replies = self._train(frames) if trains else self.pool.answer(exchange, frames)
        slow = faults.slow(number, exchange, frames)
        late: dict[str, bytes] = {}
        for name in frames:
            reply = replies.get(name)
            if reply is None:
                continue  # lost with the place where it lived
            if reply.frame is None:
                cohort.leave(name, reply.reason)
            elif name in slow:
                late[name] = reply.frame
                cohort.leave(name)
            else:
                try:
                    cohort.receive(exchange, name, reply.frame)
                except RemoteError as error:
                    cohort.leave(name, error)
        try:
            outbound = cohort.close()
        finally:
            self._charge(exchange, frames, replies)
        for name, frame in late.items():
            with suppress(RemoteError):
                cohort.receive(exchange, name, frame)
                raise AssertionError(f"a late message of {name} was accepted")
        return outbound

    def _train(self, frames: Mapping[str, bytes]) -> Mapping[str, Reply]:
        lessons = self.pool.train(frames, self.simulation.personal_rows(frames))
        self.learned = {name: lessons.learned[name] for name in frames if name in lessons.learned}
        self.tally.learn(self.learned.values(), lessons.seconds)
        return lessons.replies

    def _charge(self, exchange: Exchange, frames: Mapping[str, bytes], replies: Mapping[str, Reply]) -> None:
        """Tally what was sent and answered, late and refused answers included, per client that answered."""
        sizes = [len(reply.frame) for reply in replies.values() if reply.frame is not None]
        tally = self.tally
        tally.answered[exchange] = len(sizes)
        tally.bytes_up[exchange] = sum(sizes)
        tally.bytes_down[exchange] = sum(map(len, frames.values()))
        if exchange is Exchange.INBOUND and isinstance(self.plan, HotRound) and self.plan.published:
            # The model is downloaded beside the exchanges, and counts where submodels do.
            tally.answered[Exchange.SUBMODEL] = len(sizes)
            tally.bytes_down[Exchange.SUBMODEL] = len(sizes) * len(self.plan.published.blob)
        tally.client_seconds[exchange] = sum(reply.seconds for reply in replies.values())


def _admitted(name: str, frame: bytes, seen: set[bytes], sums: int) -> Keys:
    """Return a client's own keys, which no other client has; else the whole roster would be refused."""
    keys = CODEC.decode(frame, limit=MESSAGE_LIMIT)
    if not isinstance(keys, Keys):
        raise InvalidMessage(f"client {name!r} checks in with something else than its keys")
    seen |= admit_keys(name, keys, taken=seen, sums=sums)
    return keys


@dataclass
class Cohort:
    """Holds one cohort's part of a round: what it is to do, and, once it is over, what it did. ``sums`` is
    None where it aborted, and ``aborted`` says why."""

    names: Sequence[str]
    plan: Plan
    tally: RoundTally
    sums: RoundSums | HotSums | None = None
    aborted: str = ""
    learned: Mapping[str, Learned] = field(default_factory=dict)

    def run(self, simulation: Simulation, driver: Driver, pool: ClientPool | None) -> None:
        """Run on the protocol, with clients where ``pool`` has them; without a pool, with plain sums."""
        plan = self.plan
        running: PlainCohort | PlainHot | MaskedCohort
        if pool is not None:
            running = MaskedCohort(simulation, self.names, plan, self.tally, driver, pool)
        elif isinstance(plan, HotRound):
            running = PlainHot(simulation, self.names, plan, self.tally)
        else:
            running = PlainCohort(simulation, self.names, plan, self.tally)
        try:
            self.sums, self.learned = running.sums(), running.learned
        except Aborted as reason:
            self.aborted = str(reason)


class PopulationEngine(Engine):
    """Runs rounds of a simulation. Where its clients live, and how cohorts run, is up to the carrier. Keys
    and masks come from the operating system, and have nothing to do with the simulation's seed."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.task, self.store = simulation.task, simulation.store
        self._rebuilt: tuple[int, Rebuilt] | None = None
        rules, task = simulation.settings.rules, simulation.task
        self.driver = Driver(rules, task.spec, task.row_maps, simulation.store, cpu=time.thread_time)

    @abstractmethod
    def _run_all(self, number: int, cohorts: Sequence[Cohort], tally: RoundTally) -> None:
        """Bring each cohort of round ``number`` to its end. ``tally`` is the round's own, beside theirs."""

    def run(
        self, cohort: Sequence[str], *, scores: ScoreBins | None = None, hot: HotState | None = None
    ) -> RoundResult:
        """Run one round, up to the commit; or an abort, whose commit leaves the model as it is. Clients are
        dealt out to the cohorts in turn. A cohort that aborts adds nothing, and the round goes on without it;
        if all do, the round is aborted."""
        number, count = self.driver.number, self.simulation.settings.cohorts
        dealt = [cohort[place::count] for place in range(count)]
        cohorts = [Cohort(names, self._plan(names, scores, hot), RoundTally(len(names))) for names in dealt]
        tally = RoundTally()
        self._run_all(number, cohorts, tally)
        for one in cohorts:
            tally.add(one.tally)
        done = [one for one in cohorts if one.sums is not None]
        tally.cohorts_aborted = len(cohorts) - len(done)
        if not done:
            why = "; ".join(dict.fromkeys(one.aborted for one in cohorts))
            empty = Commit(number, selection=self.store.selection)
            plan = cohorts[0].plan  # what an aborted round cost is spent
            return RoundResult(tally.record(number, None, aborted=why), tally, empty, plan=plan)
        return self._conclude(number, done, tally)

    def rebuilt(self) -> Rebuilt | None:
        simulation = self.simulation
        local = simulation.settings.local
        if not (local.rebuild and self.task.personal):
            return None
        if self._rebuilt is None or self._rebuilt[0] != self.store.round:  # one for all pools of a round
            rows = rebuild_personal(
                self.task,
                simulation.devices,
                self.store,
                local,
                seed=simulation.seed,
                choose=self.choose,
            )
            self._rebuilt = self.store.round, rows
        return self._rebuilt[1]

    def _conclude(self, number: int, done: Sequence[Cohort], tally: RoundTally) -> RoundResult:
        start = time.thread_time()
        plan, outcome = done[0].plan, self._outcome(done)
        if tally.server_seconds:
            last = list(tally.server_seconds)[-1]
            tally.server_seconds[last] += time.thread_time() - start
        learned = {name: one for part in done for name, one in part.learned.items()}
        commit = self.simulation.with_personal(outcome.applied.commit, learned)
        return RoundResult(tally.record(number, outcome), tally, commit, outcome, plan)

    def _outcome(self, done: Sequence[Cohort]) -> RoundOutcome:
        plan, sums = done[0].plan, [one.sums for one in done]
        if isinstance(plan, HotRound):  # which has one cohort
            assert isinstance(sums[0], HotSums)  # noqa: S101
            return plan.conclude(self.store, self.task.row_maps, sums[0])
        first, *others = (one for one in sums if isinstance(one, RoundSums))
        return conclude(self.store, plan, sum(others, start=first))

    def _plan(self, cohort: Sequence[str], scores: ScoreBins | None, hot: HotState | None) -> Plan:
        simulation = self.simulation
        if self.driver.rules.hot is not None:
            return self.driver.plan(len(cohort), 0, scores=scores, hot=hot)
        seed = simulation.union_seed(self.driver.number)
        return self.driver.plan(len(cohort), simulation.largest_set(cohort), seed=seed, scores=scores)


def course(plan: Plan) -> tuple[Course, Published | None]:
    """Return how a planned round goes, and what its clients download first."""
    if not isinstance(plan, HotRound):
        return SUBMODELS, None
    return (SURVEY if plan.published is None else HOT), plan.published


class LocalEngine(PopulationEngine):
    """Runs everyone in this process, on the real protocol or with plain sums, one cohort after another."""

    def _run_all(self, number: int, cohorts: Sequence[Cohort], tally: RoundTally) -> None:
        simulation = self.simulation
        with ThreadPoolExecutor(os.cpu_count()) as workers:
            for one in cohorts:
                pool = None
                if simulation.settings.sums == "masked":
                    groups = simulation.groups(one.names)
                    pool = LocalPool(
                        simulation.population, number, groups, SystemRandomness(), workers, *course(one.plan)
                    )
                one.run(simulation, self.driver, pool)
