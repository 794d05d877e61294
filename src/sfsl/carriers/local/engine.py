"""Rounds of a simulated population: one or more cohorts against one store, added up and averaged once."""

import os
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from sfsl.carriers.local.masked import MaskedCohort
from sfsl.carriers.local.pool import ClientPool, LocalPool
from sfsl.client.device import Learned
from sfsl.crypto.randomness import SystemRandomness
from sfsl.errors import Aborted
from sfsl.rounds import RoundParams, RoundSums, ScoreBins, conclude
from sfsl.rounds.exchanges import LAST
from sfsl.rounds.record import RoundTally
from sfsl.service.driver import Driver
from sfsl.simulate.engine import Engine, Pool, RoundResult
from sfsl.simulate.plain import PlainCohort
from sfsl.simulate.simulation import Simulation
from sfsl.submodel import Commit


@dataclass
class Cohort:
    """One cohort's part of a round: what it is to do, and, once it is over, what it did.

    ``sums`` is None where it aborted, and ``aborted`` says why.
    """

    names: Sequence[str]
    params: RoundParams
    tally: RoundTally
    sums: RoundSums | None = None
    aborted: str = ""
    learned: Mapping[str, Learned] = field(default_factory=dict)

    def run(self, simulation: Simulation, driver: Driver, pool: ClientPool | None) -> None:
        """Run on the protocol, with clients where ``pool`` has them; without a pool, with plain sums."""
        try:
            running = (
                PlainCohort(simulation, self.names, self.params, self.tally)
                if pool is None
                else MaskedCohort(simulation, self.names, self.params, self.tally, driver, pool)
            )
            self.sums = running.sums()
        except Aborted as reason:
            self.aborted = str(reason)
            return
        self.learned = running.learned


class PopulationEngine(Engine):
    """Runs rounds of a simulation. Where its clients live, and how cohorts run, is up to the carrier.

    Keys and masks come from the operating system, and have nothing to do with the simulation's seed.
    """

    def __init__(self, simulation: Simulation, test: Pool | None = None) -> None:
        self.simulation, self.test = simulation, test
        self.task, self.store = simulation.task, simulation.store
        self.driver = Driver(
            simulation.settings.rules,
            simulation.task.spec,
            simulation.task.row_maps,
            simulation.store,
            cpu=time.thread_time,
        )

    @abstractmethod
    def _run_all(self, number: int, cohorts: Sequence[Cohort], tally: RoundTally) -> None:
        """Bring each cohort of round ``number`` to its end. ``tally`` is the round's own, beside theirs."""

    def run(self, cohort: Sequence[str], *, scores: ScoreBins | None = None) -> RoundResult:
        """Run one round, up to the commit; or an abort, whose commit leaves the model as it is.

        Clients are dealt out to the cohorts in turn. A cohort that aborts adds nothing, and the round goes
        on without it; if all do, the round is aborted.
        """
        number, count = self.driver.number, self.simulation.settings.cohorts
        dealt = [cohort[place::count] for place in range(count)]
        cohorts = [Cohort(names, self._plan(names, scores), RoundTally(len(names))) for names in dealt]
        tally = RoundTally()
        self._run_all(number, cohorts, tally)
        for one in cohorts:
            tally.add(one.tally)
        done = [one for one in cohorts if one.sums is not None]
        tally.cohorts_aborted = len(cohorts) - len(done)
        if not done:
            why = "; ".join(dict.fromkeys(one.aborted for one in cohorts))
            empty = Commit(number, selection=self.store.selection)
            return RoundResult(tally.record(number, None, aborted=why), tally, empty)
        return self._conclude(number, done, tally)

    def _conclude(self, number: int, done: Sequence[Cohort], tally: RoundTally) -> RoundResult:
        start = time.thread_time()
        first, *others = (one.sums for one in done if one.sums is not None)
        outcome = conclude(self.store, done[0].params, sum(others, start=first))
        if tally.server_seconds:
            tally.server_seconds[LAST] += time.thread_time() - start
        learned = {name: one for part in done for name, one in part.learned.items()}
        commit = self.simulation.with_personal(outcome.applied.commit, learned)
        return RoundResult(tally.record(number, outcome), tally, commit, outcome, done[0].params)

    def _plan(self, cohort: Sequence[str], scores: ScoreBins | None) -> RoundParams:
        simulation = self.simulation
        return self.driver.plan(
            len(cohort),
            largest_set=simulation.largest_set(cohort),
            seed=simulation.union_seed(self.driver.number),
            scores=scores,
        )


class LocalEngine(PopulationEngine):
    """Runs everyone in this process, on the real protocol or with plain sums, one cohort after another."""

    def _run_all(self, number: int, cohorts: Sequence[Cohort], tally: RoundTally) -> None:
        simulation = self.simulation
        with ThreadPoolExecutor(os.cpu_count()) as workers:
            for one in cohorts:
                pool = None
                if simulation.settings.sums == "masked":
                    groups = simulation.groups(one.names)
                    pool = LocalPool(simulation.population, number, groups, SystemRandomness(), workers)
                one.run(simulation, self.driver, pool)
