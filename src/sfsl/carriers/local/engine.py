"""Rounds of a simulated fleet in this process."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from sfsl.carriers.local.cohorts import CohortRound, RoundEngine
from sfsl.carriers.local.pool import LocalPool
from sfsl.simulate.settings import RoundReport


class LocalEngine(RoundEngine):
    """On the real protocol or with plain sums, as the simulation's settings say; cohorts one by one."""

    def _run_all(self, cohorts: Sequence[CohortRound], report: RoundReport) -> None:
        simulation = self.simulation
        with ThreadPoolExecutor(os.cpu_count()) as workers:
            for one in cohorts:
                hosts = None
                if simulation.settings.sums == "masked":
                    groups = simulation.groups(one.cohort)
                    hosts = LocalPool(simulation.population, report.number, groups, self._randomness, workers)
                one.run(simulation, hosts, self._randomness)
