"""What a program is told of a run while it runs. Whoever is told cannot harm the run."""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from sfsl.durable import Closing
from sfsl.rounds.record import RoundRecord

if TYPE_CHECKING:
    from sfsl.run.summary import Summary
    from sfsl.scores import Evaluation

log = logging.getLogger(__name__)

# One that fails so often in a row is left alone: a server that is gone can take a minute to say so.
_MOST_FAILURES = 3
_LAST_SECONDS = 10.0


class StopTraining(Exception):
    """Raised in a callback of ``train``: the round stands, and the run ends with it.

    >>> import sfsl
    >>> def enough(line):
    ...     if line.round == 1:
    ...         raise sfsl.StopTraining
    >>> run = sfsl.train(rounds=50, clients=4, on_round=enough, settings={
    ...     "data.users": 12, "data.scale": 0.03, "model.kind": "logistic", "round.min_contributors": 1})
    >>> len(run.records), run.summary.complete
    (1, False)
    """


class Callback:
    """Is told what happens in a run; every method does nothing until it is overridden.

    A callback watches. One that raises is warned of once and the run goes on; after three failures in a row
    it is told nothing more. ``on_round`` may end the run, by returning True or raising ``StopTraining``.
    TensorBoard, MLflow and Weights & Biases are such callbacks (``run.track``).

    >>> import sfsl
    >>> class Diary(sfsl.Callback):
    ...     def on_start(self, settings, records):
    ...         print("training", settings["model"]["kind"], "after", len(records), "rounds")
    ...     def on_round(self, record):
    ...         print("round", record.round, "with", record.survivors, "clients")
    ...     def on_evaluation(self, number, evaluation):
    ...         print("tested after round", number, "on", evaluation.samples > 0)
    ...     def on_end(self, summary):
    ...         print("complete:", summary.complete)
    >>> run = sfsl.train(rounds=2, clients=4, callbacks=[Diary()], settings={
    ...     "data.users": 12, "data.scale": 0.03, "model.kind": "logistic", "round.min_contributors": 1})
    training logistic after 0 rounds
    round 1 with 4 clients
    round 2 with 4 clients
    tested after round 2 on True
    complete: True
    """

    def on_start(self, settings: Mapping[str, Mapping[str, Any]], records: Sequence[RoundRecord]) -> None:
        """Hear that a run begins: its settings by section, and the rounds that it has already if it is one
        that goes on."""

    def on_round(self, record: RoundRecord) -> bool | None:
        """Hear of a round once it is committed, or was aborted. True ends the run."""

    def on_evaluation(self, number: int, evaluation: "Evaluation") -> None:
        """Hear what the model after round ``number`` is worth on the central test set, beside its baselines.
        It comes after ``on_round``; a server never tests, and has what cohorts add up in its records."""

    def on_end(self, summary: "Summary | None") -> None:
        """Hear how the run ended. There is no summary of one that broke off, and none of a server."""


@dataclass
class _Told:
    callback: Callback
    failures: int = 0  # in a row
    warned: bool = False


class Callbacks:
    """Tells several callbacks what happens, and goes on where one of them fails."""

    def __init__(self, callbacks: Iterable[Callback]) -> None:
        self._all = [_Told(one) for one in callbacks]

    def start(self, settings: Mapping[str, Mapping[str, Any]], records: Sequence[RoundRecord]) -> None:
        self._tell("on_start", settings, records)

    def round(self, record: RoundRecord) -> bool:
        """Tell of a round; return whether one of them wants the run to end."""
        return self._tell("on_round", record)

    def evaluation(self, number: int, evaluation: "Evaluation") -> None:
        self._tell("on_evaluation", number, evaluation)

    def end(self, summary: "Summary | None") -> None:
        self._tell("on_end", summary)

    def _tell(self, what: str, *about: object) -> bool:
        stop = False
        for one in self._all:
            if one.failures >= _MOST_FAILURES:
                continue
            try:
                stop |= getattr(one.callback, what)(*about) is True
                one.failures = 0
            except StopTraining:
                stop = True
            except Exception as error:
                one.failures += 1
                _warn(one, what, error)
        return stop


def _warn(one: _Told, what: str, error: Exception) -> None:
    name, why = type(one.callback).__name__, " ".join(str(error).split())[:300]
    log.debug("%s.%s failed", name, what, exc_info=error)
    if not one.warned:
        one.warned = True
        log.warning(
            "%s failed (%s: %s); the run goes on, and metrics.jsonl has every round. After %d failures in a "
            "row it is told nothing more",
            name, type(error).__name__, why, _MOST_FAILURES,
        )  # fmt: skip


class Aside(Closing):
    """Tells callbacks of a server's rounds in a thread of its own: a tracker that is slow keeps no client
    waiting."""

    def __init__(
        self, told: Callbacks, settings: Mapping[str, Mapping[str, Any]], records: Sequence[RoundRecord]
    ) -> None:
        self._queue: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._told = told
        self._thread = threading.Thread(target=self._work, name="sfsl-trackers", daemon=True)
        self._thread.start()
        self._queue.put(lambda: told.start(settings, records))

    def round(self, record: RoundRecord) -> None:
        self._queue.put(lambda: self._told.round(record))

    def close(self) -> None:
        """Let what is told end, for a while: a server that stops does not wait for a tracker's network."""
        self._queue.put(lambda: self._told.end(None))
        self._queue.put(None)
        self._thread.join(_LAST_SECONDS)

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            job()
