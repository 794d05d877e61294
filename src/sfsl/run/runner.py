"""The loop of a run: choose a cohort, run its round, commit, evaluate, write the line; round after round.

A round's rows, the state of the selection and the round's line of metrics are one commit of the store.
So after a crash at any point the store says where to go on, and the metrics can be made to agree with it.
"""

import logging
import resource
import sys
import time
from collections.abc import Callable, Iterable, Mapping

import msgspec
import torch

from sfsl.bundle.describe import describe as describe_model
from sfsl.bundle.describe import write_described
from sfsl.crypto.ring import Z32
from sfsl.durable import Closing
from sfsl.privacy import PeriodSelection
from sfsl.privacy.accounting import rho_for
from sfsl.rounds.hot_server import HotRound
from sfsl.rounds.record import RoundRecord
from sfsl.run.best import BestModel
from sfsl.run.callbacks import Callback, Callbacks
from sfsl.run.fleet import Fleet
from sfsl.run.folder import RunFolder
from sfsl.run.load import history_of
from sfsl.run.planning import choose_cohort, choose_in_period, choose_in_turn, predict_bytes
from sfsl.run.setup import build_engine, open_store
from sfsl.run.summary import Predicted, Summary, summarize
from sfsl.run.trackers import trackers
from sfsl.scores import Evaluation
from sfsl.secagg.facade import mask_seconds
from sfsl.service.driver import Journal, next_bins
from sfsl.service.folder import MetricsFile, recover_lines
from sfsl.settings.rounds import hot_rules
from sfsl.settings.run import RunConfig
from sfsl.simulate.engine import Pool

log = logging.getLogger(__name__)


class Runner(Closing):
    """One run under way, in its folder. Opening it brings the metrics in step with the store.

    ``evaluation`` is the last one on the test set that was made since then. ``pools`` are the held-out
    samples that it evaluates on, by name.
    """

    def __init__(self, folder: RunFolder, config: RunConfig, fleet: Fleet) -> None:
        self.config = config
        self.fleet = fleet
        self._folder = folder
        self._clients = sorted(fleet.devices)
        if config.run.threads:
            torch.set_num_threads(config.run.threads)
        self.store = open_store(folder, config, fleet)
        try:
            self._engine = build_engine(config, fleet, self.store)
            self.evaluation: Evaluation | None = None
            self._journal = Journal(self.store)
            self.lines = recover_lines(folder.metrics_file, self._journal, self._evaluated)
            self._metrics = MetricsFile(folder.metrics_file, self.lines)
            keep = config.run.keep
            self._best = BestModel(folder.best, self.store, keep, self.lines, self.evaluation)
            folder.write_config(config)
            about = describe_model(fleet.task, config, "run", history_of(config))
            write_described(folder.path, fleet.task, about, fleet.catalogue)
            folder.drop_summary()  # it is about fewer rounds than there will be
        except BaseException:
            self.store.close()
            raise

    def run(
        self,
        *,
        stop: Callable[[], bool],
        seen: Callable[[RoundRecord], None],
        callbacks: Iterable[Callback] = (),
    ) -> Summary:
        """Run all rounds that are left, or until ``stop``, which is asked between rounds. ``callbacks`` are
        told of them, and the trackers of ``run.track``."""
        told = Callbacks([*trackers(self.config.run.track, self._folder.path), *callbacks])
        told.start(msgspec.to_builtins(self.config), tuple(self.lines))
        summary = None
        try:
            enough = False
            while self.store.round < self.config.run.rounds and not self._done() and not (enough or stop()):
                before, line = self.evaluation, self._round()
                seen(line)
                enough = told.round(line)
                if self.evaluation is not None and self.evaluation is not before:
                    told.evaluation(line.round, self.evaluation)
            summary = self.summary()
            self._folder.write_summary(summary)
        finally:
            told.end(summary)
        return summary

    @property
    def pools(self) -> Mapping[str, Pool]:
        return self._engine.pools

    @property
    def out_of_patience(self) -> bool:
        """Whether no model was better on validation devices for ``run.patience`` rounds."""
        patience = self.config.run.patience
        return bool(patience and self.lines and self._best.behind(self.lines[-1]) >= patience)

    @property
    def out_of_budget(self) -> bool:
        """Whether too few clients are left that may take part in one more round over hot rows."""
        return self.config.round.scheme == "hot" and len(self._solvent()) < self.config.round.clients

    def _done(self) -> bool:
        return self.out_of_patience or self.out_of_budget

    def _solvent(self) -> list[str]:
        """Return the clients whose budget one more round fits into."""
        rules, kept, privacy = hot_rules(self.config), self._journal.kept, self.config.privacy
        cost = rules.survey_rho if kept.hot.surveys < rules.surveys else rules.rho
        most = rho_for(privacy.epsilon, privacy.delta) * (1 + 1e-9)
        return [name for name in self._clients if kept.spent.get(name, 0.0) + cost <= most]

    def summary(self) -> Summary:
        report = self.fleet.report
        return summarize(
            self.config,
            self.fleet.task.spec,
            self.lines,
            clients=len(self._clients),
            invited=self._journal.kept.rounds,
            evaluation=self._final_evaluation(),
            best=self._best.line,
            out_of_patience=self.out_of_patience,
            out_of_budget=self.out_of_budget,
            kept=self._journal.kept,
            predicted=self._predicted(),
            data_problems={} if report is None else report.problems,
            peak_memory=peak_memory(),
            mask_seconds=mask_seconds(Z32),
        )

    def _predicted(self) -> Predicted | None:
        if not self.config.round.stands_in:
            return None
        spec, hot = self.fleet.task.spec, self._journal.kept.hot.hot_set()
        rows = {} if hot is None else {name: len(one) for name, one in hot.sets(spec).items()}
        return predict_bytes(self.config, self.fleet, rows)

    def close(self) -> None:
        self._metrics.close()
        self._engine.close()
        self.store.close()

    def _round(self) -> RoundRecord:
        start, number, kept = time.perf_counter(), self.store.round + 1, self._journal.kept
        cohort, period = self._cohort(number)
        result = self._engine.run(cohort, scores=kept.scores, hot=kept.hot)
        line = msgspec.structs.replace(result.record, wall_seconds=time.perf_counter() - start)
        if self.config.round.stands_in:  # what plain sums cost says nothing about the protocol
            line = msgspec.structs.replace(line, bytes_up={}, bytes_down={})
        if not self.fleet.task.chances:  # a server cannot know this; here it is known
            line = msgspec.structs.replace(line, log_loss_secure=None, log_loss_secure_error=None)
            line = msgspec.structs.replace(line, base_log_loss_secure=None)
        changes: dict[str, object] = {"period": period}
        changes["rounds"] = kept.rounds | {name: kept.rounds.get(name, 0) + 1 for name in cohort}
        plan, scores = result.plan, None
        if isinstance(plan, HotRound):
            scores = next_bins(plan.params, result.outcome)
            changes["hot"] = kept.hot if result.outcome is None else result.outcome.hot
            cost = plan.rho(len(cohort))
            changes["spent"] = kept.spent | {name: kept.spent.get(name, 0.0) + cost for name in cohort}
        elif plan is not None:
            scores = next_bins(plan, result.outcome)
        self._journal.commit(result.commit, line, scores, **changes)
        line = self._evaluated(msgspec.structs.replace(line, wall_seconds=time.perf_counter() - start))
        self._best.consider(line, self.evaluation)
        self._metrics.append(line)
        self.lines.append(line)
        end = "committed" if line.aborted is None else f"aborted: {line.aborted}"
        log.info(
            "round %d of %d %s: %d of %d clients, %.1f s",
            line.round, self.config.run.rounds, end, line.survivors, line.cohort, line.wall_seconds,
            extra={"figures": line.scalars()},
        )  # fmt: skip
        return line

    def _cohort(self, number: int) -> tuple[tuple[str, ...], PeriodSelection]:
        config, period = self.config, self._journal.kept.period
        if config.round.scheme == "centralized":
            return (), period
        count, seed = config.round.all_clients, config.run.seed
        if config.round.scheme == "hot":
            turns = self._journal.kept.rounds
            return choose_in_turn(turns, self._solvent(), count, seed, number), period
        if config.run.selection == "uniform":
            return choose_cohort(self._clients, count, seed, number), period
        now = (number - 1) // config.run.period
        return choose_in_period(period, self._clients, count, now, seed, number)

    def _evaluated(self, line: RoundRecord) -> RoundRecord:
        every = self.config.run.evaluate_every
        if not every or (line.round % every and line.round != self.config.run.rounds):
            return line
        found, chooses = self._engine.evaluate_both()
        self.evaluation = found
        return msgspec.structs.replace(
            line,
            **{name: getattr(found, name) for name in ("auc", "log_loss", "ndcg", "recall")},
            auc_valid=chooses.auc,
            log_loss_valid=chooses.log_loss,
            correction=found.correction,
        )

    def _final_evaluation(self) -> Evaluation | None:
        """Return the evaluation of the model that is exported."""
        if self._best.line is not None:
            return self._best.evaluate(self.config, self.fleet)
        if self.evaluation is None and any(line.auc is not None for line in self.lines):
            self.evaluation, _ = self._engine.evaluate_both()  # it was made by another process
        return self.evaluation


def peak_memory() -> int:
    """The most bytes this process ever had in memory: all simulated parties together."""
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
