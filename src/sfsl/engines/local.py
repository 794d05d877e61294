"""Rounds of a simulated fleet in this process."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from sfsl.crypto.randomness import SystemRandomness
from sfsl.engines.masked import MaskedRound
from sfsl.engines.plain import PlainRound
from sfsl.engines.settings import RoundReport
from sfsl.engines.simulation import Simulation
from sfsl.errors import Aborted
from sfsl.rounds import RoundParams, ScoreBins
from sfsl.submodel import Commit
from sfsl.union import UnionParams, choose, planned_capacity


class LocalEngine:
    """Runs rounds of a simulation, on the real protocol or with plain sums, as its settings say.

    Keys and masks come from the operating system, and have nothing to do with the simulation's seed.
    """

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self._randomness = SystemRandomness()

    def run(self, cohort: Sequence[str], *, scores: ScoreBins | None = None) -> RoundReport:
        """One round, up to the commit; or an abort, whose commit leaves the model as it is.

        ``scores``: the bins in which they are counted; those to begin with if there are none.
        """
        simulation = self.simulation
        store, settings = simulation.store, simulation.settings
        number = store.round + 1
        report = RoundReport(number, len(cohort), Commit(number, selection=store.selection))
        params = self._params(number, cohort, scores)
        try:
            with ThreadPoolExecutor(os.cpu_count()) as workers:
                running = (
                    PlainRound(simulation, cohort, params, report)
                    if settings.sums == "plain"
                    else MaskedRound(simulation, cohort, params, report, self._randomness, workers)
                )
                outcome = running.outcome()
        except Aborted as reason:
            report.aborted = str(reason)
            return report
        report.commit = simulation.with_personal(outcome.applied.commit, running.learned)
        report.outcome = outcome
        return report

    def _params(self, number: int, cohort: Sequence[str], scores: ScoreBins | None) -> RoundParams:
        simulation, settings = self.simulation, self.simulation.settings
        domain, devices = simulation.space.domain, simulation.devices
        sizes = (sum(len(devices[name].needed[table]) for table in simulation.shared) for name in cohort)
        capacity = planned_capacity(domain, len(cohort), max(1, *sizes))
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
