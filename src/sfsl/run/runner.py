"""The loop of a run: choose a cohort, run its round, commit, evaluate, write the line; round after round.

A round's rows, the state of the selection and the round's line of metrics are one commit of the store.
So after a crash at any point the store says where to go on, and the metrics can be made to agree with it.
"""

import math
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Self

import msgspec
import torch

from sfsl.carriers.local.cohorts import RoundEngine
from sfsl.crypto.ring import Z32
from sfsl.errors import InputError
from sfsl.privacy import PeriodSelection
from sfsl.rounds import ScoreBins
from sfsl.rounds.record import RoundLine
from sfsl.run.evaluation import central_auc
from sfsl.run.fleet import Fleet
from sfsl.run.folder import RunFolder
from sfsl.run.selection import SelectionState, choose_cohort, choose_in_period
from sfsl.run.setup import build_engine, open_store
from sfsl.run.summary import Summary, summarize
from sfsl.secagg.meter import mask_seconds
from sfsl.service.metrics_file import MetricsFile, read_lines
from sfsl.service.outcomes import ending
from sfsl.settings.run import RunConfig
from sfsl.simulate.resident.rounds import ResidentRounds
from sfsl.simulate.settings import RoundReport


class Runner:
    """One run under way, in its folder. Opening it brings the metrics in step with the store."""

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
            self._state = self._stored_state()
            self.lines = self._known_lines()
            self._metrics = MetricsFile(folder.metrics_file, self.lines)
            folder.write_config(config)
            folder.drop_summary()  # it is about fewer rounds than there will be
        except BaseException:
            self.store.close()
            raise

    def run(self, *, stop: Callable[[], bool], seen: Callable[[RoundLine], None]) -> Summary:
        """All rounds that are left, or until ``stop``, which is asked between rounds."""
        while self.store.round < self.config.run.rounds and not stop():
            seen(self._round())
        summary = self.summary()
        self._folder.write_summary(summary)
        return summary

    def summary(self) -> Summary:
        report = self.fleet.report
        return summarize(
            self.config,
            self.fleet.task.spec,
            self.lines,
            clients=len(self._clients),
            invited=self._state.rounds,
            data_problems={} if report is None else report.problems,
            peak_memory=peak_memory(),
            mask_seconds=mask_seconds(Z32),
        )

    def close(self) -> None:
        self._metrics.close()
        if isinstance(self._engine, RoundEngine):
            self._engine.close()
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _round(self) -> RoundLine:
        start, number = time.perf_counter(), self.store.round + 1
        cohort, period = self._cohort(number)
        report = self._engine.run(cohort, scores=self._state.scores)
        line = line_of(report, time.perf_counter() - start)
        if self.config.round.stands_in:  # what plain sums cost says nothing about the protocol
            line = msgspec.structs.replace(line, bytes_up={}, bytes_down={})
        state = SelectionState(
            rounds=self._state.invited(cohort),
            line=line.encode(),
            scores=self._score_bins(report),
            period=period,
        )
        self.store.commit(replace(report.commit, selection=state.encode()))
        self._state = state
        line = msgspec.structs.replace(line, wall_seconds=time.perf_counter() - start)
        line = self._evaluated(line)
        self._metrics.append(line)
        self.lines.append(line)
        return line

    def _cohort(self, number: int) -> tuple[tuple[str, ...], PeriodSelection]:
        config, period = self.config, self._state.period
        if config.round.scheme == "centralized":
            return (), period
        count, seed = config.round.all_clients, config.run.seed
        if config.run.selection == "uniform":
            return choose_cohort(self._clients, count, seed, number), period
        now = (number - 1) // config.run.period
        return choose_in_period(period, self._clients, count, now, seed, number)

    def _score_bins(self, report: RoundReport) -> ScoreBins | None:
        """Of the next round."""
        scores = report.outcome.scores if report.outcome else None
        if scores is None:
            return self._state.scores
        return (self._state.scores or ScoreBins(bins=self.config.round.bins)).after(*scores)

    def _evaluated(self, line: RoundLine) -> RoundLine:
        every = self.config.run.evaluate_every
        if not every or (line.round % every and line.round != self.config.run.rounds):
            return line
        engine = self._engine
        auc = engine.auc() if isinstance(engine, ResidentRounds) else central_auc(self.fleet, self.store)
        return msgspec.structs.replace(line, auc=finite(auc))

    def _stored_state(self) -> SelectionState:
        if self.store.round == 0:
            return SelectionState()
        return SelectionState.decode(self.store.selection, str(self._folder.store))

    def _known_lines(self) -> list[RoundLine]:
        """The metrics as far as the store has come; the last line may be in the store only."""
        rounds, path = self.store.round, self._folder.metrics_file
        lines = read_lines(path)[:rounds]
        if len(lines) == rounds - 1:
            lines.append(self._evaluated(msgspec.json.decode(self._state.line, type=RoundLine)))
        if len(lines) < rounds:
            raise InputError(
                f"{path} ends with round {len(lines)}, the store with {rounds}: lines were lost. Restore the "
                "file, or begin another run"
            )
        return lines


def line_of(report: RoundReport, seconds: float) -> RoundLine:
    return RoundLine(
        round=report.number,
        aborted=report.aborted,
        cohort=report.cohort,
        dropped=report.dropped,
        late=report.late,
        declined=report.declined,
        diverged=report.diverged,
        samples=report.samples,
        unknown_rows=report.unknown_rows,
        loss=finite(report.loss),
        auc=None,
        bytes_up=report.bytes_up,
        bytes_down=report.bytes_down,
        client_seconds=report.client_seconds,
        server_seconds=report.server_seconds,
        training_seconds=report.training_seconds,
        wall_seconds=seconds,
        cohorts_aborted=report.cohorts_aborted,
        workers_lost=report.workers_lost,
        **ending(report.outcome),
    )


def finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def peak_memory() -> int:
    """The most bytes this process ever had in memory: all simulated parties together."""
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
