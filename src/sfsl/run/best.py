"""The best model of a run, in a store beside that of the last round, and what a model in a store is worth."""

import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from sfsl.checksums import with_json_sum, without_json_sum
from sfsl.durable import write_whole
from sfsl.rounds.record import RoundRecord
from sfsl.run.fleet import Fleet
from sfsl.run.setup import rebuilds
from sfsl.run.validation import TEST, VALID, choosing, split_held_out
from sfsl.scores import Evaluation, correction_of, evaluate
from sfsl.settings.run import RunConfig
from sfsl.simulate.engine import baselines_of, score_pool
from sfsl.simulate.rebuilt import rebuild_personal
from sfsl.submodel import LmdbStore, RowStore
from sfsl.training import LocalSettings

_EVALUATION = "evaluation.json"


class _Evaluated(msgspec.Struct, frozen=True):
    """``line`` is there for a run whose metrics are lost; earlier versions did not keep it."""

    round: int
    evaluation: Evaluation
    line: RoundRecord | None = None


class BestModel:
    """A copy of the run's store as it was after the round whose validation figure is the best so far.

    The copy says itself of which round it is, and replaces the one before in one step. It is made before the
    round's line of metrics is written; after a crash in between, the line is made again from the store, and
    so is the copy. ``line`` is that of its round; None where there is no copy.
    """

    def __init__(
        self,
        path: Path,
        store: LmdbStore,
        keep: str,
        lines: Sequence[RoundRecord],
        evaluation: Evaluation | None = None,
    ) -> None:
        """Take up the copy at ``path``, if there is one. ``lines`` are those of all rounds in the store, and
        ``evaluation`` is of the last, if it was made just now."""
        self._path, self._store, self._keep = path, store, keep
        self.line: RoundRecord | None = None
        if path.exists():
            with LmdbStore.open(path, store.spec) as kept:
                number = kept.round
            if number > len(lines):  # the store is a backup of an earlier round
                shutil.rmtree(path)
            else:
                self.line = lines[number - 1]
                known = self._known()
                if self.line.lost and known is not None and known.line is not None:
                    self.line = known.line  # or any model would be better than it
        if lines:
            self.consider(lines[-1], evaluation)

    def consider(self, line: RoundRecord, evaluation: Evaluation | None) -> None:
        """Keep the model in the store, and its evaluation, if the line of its round is the best so far."""
        new = line.validation(self._keep)
        old = None if self.line is None else self.line.validation(self._keep)
        if new is None or (old is not None and old <= new):
            return
        self._store.copy_to(self._path)
        self.line = line
        if evaluation is None:
            return
        with suppress(OSError):  # what is not written down is computed again
            known = _Evaluated(line.round, evaluation, line)
            write_whole(self._path / _EVALUATION, with_json_sum(msgspec.json.encode(known)))

    def behind(self, line: RoundRecord) -> int:
        """Return for how many rounds no model was better; 0 where the line has no validation figure."""
        if self.line is None or line.validation(self._keep) is None:
            return 0
        return line.round - self.line.round

    def evaluate(self, config: RunConfig, fleet: Fleet) -> Evaluation:
        """Return what the copy is worth on the test set, computed where that is not written down."""
        if (known := self._known()) is not None:
            return known.evaluation
        with LmdbStore.open(self._path, check=False) as kept:
            return evaluate_store(config, fleet, kept)

    def _known(self) -> _Evaluated | None:
        """Read what is written down of the copy; None where that is nothing, damaged or of another round."""
        with suppress(OSError, ValueError, msgspec.MsgspecError):
            content = without_json_sum((self._path / _EVALUATION).read_bytes(), _EVALUATION)
            known = msgspec.json.decode(content, type=_Evaluated)
            if self.line is not None and known.round == self.line.round:
                return known
        return None


def evaluate_store(config: RunConfig | None, fleet: Fleet, store: RowStore) -> Evaluation:
    """Return what the model in a store is worth on the test set of its run, as validation devices correct it,
    beside the baselines. Without the run's settings, that is everyone's held-out samples."""
    task, pools, rows = fleet.task, {TEST: fleet.test}, None
    if config is not None:
        pools = split_held_out(config, fleet)
        choose = choosing(pools, fleet)
        if rebuilds(config, task):
            local = LocalSettings(**msgspec.structs.asdict(config.training))
            rows = rebuild_personal(task, fleet.devices, store, local, seed=config.run.seed, choose=choose)
    correction = correction_of(score_pool(task, pools[VALID], store, rows)) if VALID in pools else None
    scored = score_pool(task, pools[TEST], store, rows)
    return evaluate(scored, baselines_of(task, fleet.train), correction)
