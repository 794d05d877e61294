"""Whoever is told of a run cannot harm it."""

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from sfsl.rounds.record import RoundRecord, RoundTally
from sfsl.run.callbacks import Aside, Callback, Callbacks, StopTraining

LINES = [RoundTally(cohort=4).record(number, None) for number in range(1, 9)]


@dataclass  # has no hash: callbacks need none
class Diary(Callback):
    heard: list[object] = field(default_factory=list)

    def on_start(self, settings: Mapping[str, Mapping[str, Any]], records: Sequence[RoundRecord]) -> None:
        self.heard.append((dict(settings), len(records)))

    def on_round(self, record: RoundRecord) -> None:
        self.heard.append(record.round)

    def on_end(self, summary: object) -> None:
        self.heard.append("end")


class Broken(Callback):
    """Fails in the rounds that it is given."""

    def __init__(self, *rounds: int) -> None:
        self.rounds, self.asked = rounds, 0

    def on_round(self, record: RoundRecord) -> None:
        self.asked += 1
        if record.round in self.rounds:
            raise OSError("no route\nto host")


def test_one_that_fails_is_warned_of_once_and_the_others_hear_everything(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken, diary = Broken(1, 3, 4), Diary()
    told = Callbacks([broken, diary])
    told.start({"run": {"rounds": 5}}, LINES[:2])
    assert not any(told.round(line) for line in LINES[:5])
    told.end(None)
    assert diary.heard == [({"run": {"rounds": 5}}, 2), 1, 2, 3, 4, 5, "end"]
    assert broken.asked == 5, "it was well in between"
    (said,) = (one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING)
    assert said.startswith("Broken failed (OSError: no route to host); the run goes on")


def test_one_that_fails_three_times_in_a_row_is_left_alone() -> None:
    broken = Broken(*range(2, 9))
    told = Callbacks([broken])
    for line in LINES:
        told.round(line)
    assert broken.asked == 4


@pytest.mark.parametrize("how", ["returns", "raises"])
def test_a_callback_ends_a_run(how: str) -> None:
    class Enough(Callback):
        def on_round(self, record: RoundRecord) -> bool:
            if how == "raises" and record.round == 2:
                raise StopTraining
            return record.round == 2

    told = Callbacks([Enough(), Diary()])
    assert [told.round(line) for line in LINES[:2]] == [False, True]


def test_a_server_tells_in_a_thread_of_its_own_and_in_order() -> None:
    class Slow(Diary):
        def on_round(self, record: RoundRecord) -> None:
            assert go.wait(30)
            super().on_round(record)
            self.heard.append(threading.current_thread().name)

    go, slow = threading.Event(), Slow()
    with Aside(Callbacks([slow]), {}, ()) as aside:
        aside.round(LINES[0])  # comes back while the tracker waits
        aside.round(LINES[1])
        go.set()
    name = "sfsl-trackers"
    assert slow.heard == [({}, 0), 1, name, 2, name, "end"]
