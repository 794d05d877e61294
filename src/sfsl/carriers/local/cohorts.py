"""A round of one or more cohorts against one store: planned, run, added up, averaged once."""

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sfsl.carriers.local.masked import MaskedRound
from sfsl.carriers.local.pool import ClientPool
from sfsl.client.device import Learned
from sfsl.crypto.randomness import Randomness, SystemRandomness
from sfsl.errors import Aborted
from sfsl.rounds import RoundParams, RoundSums, ScoreBins, conclude
from sfsl.rounds.exchanges import LAST
from sfsl.simulate.plain import PlainRound
from sfsl.simulate.settings import RoundReport
from sfsl.simulate.simulation import Simulation
from sfsl.submodel import Commit
from sfsl.union import UnionParams, choose, planned_capacity


@dataclass
class CohortRound:
    """One cohort's part of a round: what it is to do, and, once it is over, what it did.

    ``sums`` is None where it aborted; the report says why.
    """

    cohort: Sequence[str]
    params: RoundParams
    report: RoundReport
    sums: RoundSums | None = None
    learned: Mapping[str, Learned] = field(default_factory=dict)

    def run(self, simulation: Simulation, hosts: ClientPool | None, randomness: Randomness) -> None:
        """On the protocol, with clients where ``hosts`` has them; without hosts, with plain sums."""
        try:
            running = (
                PlainRound(simulation, self.cohort, self.params, self.report)
                if hosts is None
                else MaskedRound(simulation, self.cohort, self.params, self.report, hosts, randomness)
            )
            self.sums = running.sums()
        except Aborted as reason:
            self.report.aborted = str(reason)
            return
        self.learned = running.learned


class RoundEngine(ABC):
    """Runs rounds of a simulation. How cohorts run, and where their clients live, is up to the engine.

    Keys and masks come from the operating system, and have nothing to do with the simulation's seed.
    """

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self._randomness = SystemRandomness()

    @abstractmethod
    def _run_all(self, cohorts: Sequence[CohortRound], report: RoundReport) -> None:
        """Bring each to its end. ``report`` is the round's; the cohorts have their own."""

    def close(self) -> None:  # noqa: B027 -- most hold on to nothing
        """Give back what the engine holds on to."""

    def run(self, cohort: Sequence[str], *, scores: ScoreBins | None = None) -> RoundReport:
        """One round, up to the commit; or an abort, whose commit leaves the model as it is.

        Clients are dealt out to the cohorts in turn. A cohort that aborts adds nothing, and the round goes
        on without it; if all do, the round is aborted. ``scores``: the bins in which they are counted;
        those to begin with if there are none.
        """
        store, count = self.simulation.store, self.simulation.settings.cohorts
        number = store.round + 1
        report = RoundReport(number, 0, Commit(number, selection=store.selection))
        cohorts = [
            CohortRound(
                names,
                self._params(number, names, scores),
                RoundReport(number, len(names), report.commit),
            )
            for names in (cohort[place::count] for place in range(count))
        ]
        self._run_all(cohorts, report)
        for one in cohorts:
            report.add(one.report)
        done = [one for one in cohorts if one.sums is not None]
        report.cohorts_aborted = len(cohorts) - len(done)
        if not done:
            report.aborted = "; ".join(dict.fromkeys(str(one.report.aborted) for one in cohorts))
            return report
        self._conclude(done, report)
        return report

    def _conclude(self, done: Sequence[CohortRound], report: RoundReport) -> None:
        start = time.thread_time()
        first, *others = (one.sums for one in done if one.sums is not None)
        total = sum(others, start=first)
        report.outcome = conclude(self.simulation.store, done[0].params, total)
        if report.server_seconds:
            report.server_seconds[LAST] += time.thread_time() - start
        learned = {name: one for part in done for name, one in part.learned.items()}
        report.commit = self.simulation.with_personal(report.outcome.applied.commit, learned)

    def _params(self, number: int, cohort: Sequence[str], scores: ScoreBins | None) -> RoundParams:
        simulation, settings = self.simulation, self.simulation.settings
        domain = simulation.space.domain
        capacity = planned_capacity(domain, len(cohort), simulation.largest_set(cohort))
        seed = simulation.union_seed(number)
        chosen = choose(settings.encoding, domain, capacity, seed)
        return RoundParams(
            number=number,
            model=simulation.task.spec,
            union=UnionParams(
                domain=domain,
                encoding=chosen.name,  # type: ignore[arg-type]
                capacity=capacity,
                seed=seed,
            ),
            update=settings.update_in(number),
            min_contributors=settings.min_contributors,
            training={"rate": settings.local.rate(number - 1)},
            precision=settings.precision,
            scores=scores or (ScoreBins(bins=settings.bins) if settings.bins else None),
        )
