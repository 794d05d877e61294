"""A run's rounds on a device, committed round by round to a store as those of any other engine."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from sfsl.errors import NotFinite
from sfsl.privacy import IndexPrivacy
from sfsl.rounds import RoundOutcome, ScoreBins
from sfsl.rounds.hot import HotState
from sfsl.rounds.hot_server import HotSums, plan_hot
from sfsl.rounds.record import RoundTally
from sfsl.scores import Scored
from sfsl.simulate.engine import Engine, RoundResult
from sfsl.simulate.rebuilt import Rebuilt
from sfsl.simulate.settings import SimulationSettings
from sfsl.submodel import Applied, Commit, DenseBlock, RowBlock, RowSet, RowStore
from sfsl.training.task import Task
from sfsl_research.resident.clients import ResidentClients
from sfsl_research.resident.engine import Arm, Figures, ResidentEngine, TableFigures
from sfsl_research.resident.hot import HotRows, noise_words, surveyed_words
from sfsl_research.resident.model import ResidentModel
from sfsl_research.resident.scoring import ResidentTest

# Clients of a round over hot rows that train at once: each has a dense part and rows of its own meanwhile.
HOT_TOGETHER = 400
# Clients whose rows are rebuilt at once to be tested, where cohorts are smaller.
TESTED_TOGETHER = 100


class ResidentRounds(Engine):
    """Runs rounds on a device. ``numbers`` says which client of the fleet each name is. The store is only
    read, and must get every commit that comes of it."""

    def __init__(
        self,
        task: Task,
        fleet: ResidentClients,
        numbers: Mapping[str, int],
        store: RowStore,
        settings: SimulationSettings,
        privacy: IndexPrivacy,
        held_out: Mapping[str, ResidentTest],
        *,
        clients: int,
        seed: int,
    ) -> None:
        self.task, self.store = task, store
        self._numbers, self._held_out, self._rebuilt_at = numbers, held_out, -1
        self._users = next((one.users for one in held_out.values()), None)
        self._model = ResidentModel(task, store, fleet.device)
        # There is no secure evaluation here.
        self._rules, self._fleet, self._seed = replace(settings.rules, bins=0), fleet, seed
        arm = Arm("run", self._model, settings, privacy)
        together = min(clients, HOT_TOGETHER) if settings.rules.hot is not None else clients
        self._engine = self._tester = ResidentEngine(fleet, [arm], clients=together, seed=seed)
        if self._users is not None and (tested := min(len(self._users), TESTED_TOGETHER)) > together:
            self._tester = ResidentEngine(fleet, [arm], clients=tested, seed=seed)

    def run(
        self, cohort: Sequence[str], *, scores: ScoreBins | None = None, hot: HotState | None = None
    ) -> RoundResult:
        if self._rules.hot is not None:
            return self._run_hot(cohort, HotState() if hot is None else hot)
        start, number = time.perf_counter(), self.store.round + 1
        chosen = np.array([self._numbers[name] for name in cohort], np.int64)
        (figures,) = self._engine.run(number, chosen)
        commit = self._commit(number)
        outcome = self._outcome(cohort, figures, commit)
        tally = RoundTally(len(cohort), samples=int(figures.samples), diverged=int(figures.diverged))
        tally.loss, tally.training_seconds = float(figures.loss), time.perf_counter() - start
        return RoundResult(tally.record(number, outcome), tally, commit, outcome)

    def _run_hot(self, cohort: Sequence[str], state: HotState) -> RoundResult:
        """Run a survey, or a round over hot rows: its sum on the device, and what the server makes of it by
        the functions of every engine."""
        start = time.perf_counter()
        plan = plan_hot(self._rules, self.task.spec, self.store, clients=len(cohort), state=state)
        chosen, tally = np.array([self._numbers[name] for name in cohort], np.int64), RoundTally(len(cohort))
        if plan.published is None:
            words = surveyed_words(plan.params, self._fleet.host, chosen, seed=self._seed)
        else:
            rows = HotRows(plan.params, plan.published.hot, self._model.tables)
            figures = self._engine.run_hot(plan.number, chosen, rows)
            words = figures.words(plan.params)
            tally.samples, tally.diverged = int(figures.samples), int(figures.diverged)
            tally.loss, tally.training_seconds = float(figures.loss), time.perf_counter() - start
        words += noise_words(plan.params, len(cohort), seed=self._seed)
        outcome = plan.conclude(self.store, self.task.row_maps, HotSums(words, tuple(cohort)))
        made = outcome.applied.commit
        self._model.take(made)
        own = {
            name: RowBlock(RowSet(rows), values, slots)
            for name, (rows, values, slots) in self._model.changes().items()
            if name in self.task.personal
        }
        commit = Commit(made.round, {**made.tables, **own}, made.dense, self.store.selection)
        return RoundResult(tally.record(plan.number, outcome), tally, commit, outcome, plan)

    def scored(self, pool: str) -> Scored:
        """Score samples that are on the device."""
        if pool not in self._held_out:
            return super().scored(pool)
        self._rebuild()
        return self._held_out[pool].scored(self._model)

    def rebuilt(self) -> Rebuilt | None:
        self._rebuild()
        tables, users = self._model.tables, self._users  # a client's personal row has its number
        if users is None:
            return None
        return {name: (users, tables[name][users].cpu().numpy()) for name in self.task.personal}

    def _rebuild(self) -> None:
        """Rebuild the rows of those who are tested, once for all pools of a round."""
        if self._users is not None and self._rebuilt_at != self.store.round:
            self._tester.rebuild(self._users)
            self._rebuilt_at = self.store.round

    def _commit(self, number: int) -> Commit:
        changes = self._model.changes().items()
        blocks = {name: RowBlock(RowSet(rows), values, state) for name, (rows, values, state) in changes}
        dense = DenseBlock(self._model.dense.cpu().numpy(), self._model.dense_state.cpu().numpy())
        parts = [dense.values, *(block.values for block in blocks.values())]
        if not all(np.isfinite(one).all() for one in parts):
            raise NotFinite(f"round {number} made numbers that are not finite; lower the learning rate")
        return Commit(number, blocks, dense, self.store.selection)

    def _outcome(self, cohort: Sequence[str], figures: Figures, commit: Commit) -> RoundOutcome:
        tables = {
            name: TableFigures(*(part.cpu() for part in vars(one).values()))
            for name, one in figures.tables.items()
        }
        return RoundOutcome(
            applied=Applied(
                commit,
                moved={name: int(one.moved.sum()) for name, one in tables.items()},
                refused=dict.fromkeys(tables, 0),  # clients here are honest
                dense_refused=False,
            ),
            survivors=tuple(cohort),
            union={name: RowSet(one.union[one.real].numpy()) for name, one in tables.items()},
            contributors={
                name: one.opened[one.real].numpy().astype(np.int64) for name, one in tables.items()
            },
            scores=None,
        )
