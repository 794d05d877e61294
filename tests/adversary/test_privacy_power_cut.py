"""Power cuts and kills: never a second permanent answer, never a lost ledger, never more than the budget."""

import itertools
import math
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from power import MEMORY, Disk, PowerCut, powered_by

from sfsl import durable
from sfsl.errors import BudgetExhausted, StateError
from sfsl.privacy import Budget, Calendar, ClientState, IndexPrivacy, Tables
from sfsl.testing import SeededRandomness

CALENDAR = Calendar(start=date(2026, 1, 1), days=30)
DAYS = (date(2026, 2, 3), date(2026, 2, 3) + timedelta(days=30))
# The answers are the permanent ones, so a second key would show.
PERMANENT = IndexPrivacy(0.75, 0.25, 1, 0)
LIMIT = 3
BUDGET = Budget(math.inf, math.inf, exposures_per_period=LIMIT)
UNION = {"goods": np.arange(256)}
NAME = "alice.state"


class World:
    """What has left the device: per period, how often the client was exposed, and its answers."""

    def __init__(self) -> None:
        self.created = False
        self.exposed = dict.fromkeys(DAYS, 0)
        self.answers: dict[date, list[Any]] = {day: [] for day in DAYS}


def begin(state: ClientState, day: date, seed: str) -> None:
    tables = Tables(shared=("goods",))
    real = {"goods": np.arange(0, 256, 3)}
    state.begin(day, PERMANENT, tables, real, acknowledged=None, randomness=SeededRandomness(seed))


def play_round(state: ClientState, day: date, name: bytes, world: World) -> None:
    state.expose(name)
    world.exposed[day] += 1
    world.answers[day].append(state.answer(name, UNION, SeededRandomness(name.hex()))["goods"])


def live(path: Path, world: World) -> None:
    """A short life: a new state, two rounds, the next period, one round."""
    state = ClientState.create(path, client="alice", calendar=CALENDAR, budget=BUDGET)
    try:
        world.created = True
        begin(state, DAYS[0], "first key")
        play_round(state, DAYS[0], b"r1", world)
        play_round(state, DAYS[0], b"r2", world)
        begin(state, DAYS[1], "second key")
        play_round(state, DAYS[1], b"r3", world)
    finally:
        state.close()


def recover(path: Path, world: World) -> None:
    """Take up what the power cut left, spend the rest of the budget, and compare with what had left."""
    try:
        state = ClientState.open(path, client="alice", budget=BUDGET)
    except StateError as error:
        # Only a client that never got as far as having a state may start afresh.
        if world.created or "no state" not in str(error):
            raise AssertionError(f"the state is lost: {error}") from error
        state = ClientState.create(path, client="alice", calendar=CALENDAR, budget=BUDGET)
    with state:
        assert state.ledger.begun >= sum(world.exposed.values())
        periods = [day for day in DAYS if world.exposed[day] or world.answers[day]] or [DAYS[0]]
        day = DAYS[1] if state.period == CALENDAR.period(DAYS[1]) else periods[-1]
        begin(state, day, "another key")
        assert state.ledger.answered >= len(world.answers[day])
        for number in itertools.count():
            try:
                play_round(state, day, b"after %d" % number, world)
            except BudgetExhausted:
                break
        assert world.exposed[day] <= LIMIT
        for answer in world.answers[day]:
            assert np.array_equal(answer, world.answers[day][0]), "a second permanent answer"


def cut_everywhere() -> int:
    """Cut the power before every system call and recover from everything that may be left."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        whole = Disk()
        with powered_by(whole):
            live(Path(folder) / NAME, World())
    recoveries = 0
    for position in range(whole.calls + 1):
        disk, world = Disk(cut_before=position), World()
        with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
            try:
                with powered_by(disk):
                    live(Path(folder) / NAME, world)
            except PowerCut:
                pass
        for left in disk.after_a_cut():
            with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
                for name, content in left.items():
                    (Path(folder) / name).write_bytes(content)
                    (Path(folder) / name).chmod(0o600)
                again = World()
                again.created = world.created
                again.exposed = dict(world.exposed)
                again.answers = {day: list(answers) for day, answers in world.answers.items()}
                with powered_by(Disk()):  # no real flushing: this is about order, not about platters
                    recover(Path(folder) / NAME, again)
                recoveries += 1
    return recoveries


def test_a_power_cut_between_any_two_system_calls() -> None:
    assert cut_everywhere() > 150


def without_file_flush(path: Path, data: bytes, *, mode: int) -> None:
    _replace(path, data, file=False)


def without_folder_flush(path: Path, data: bytes, *, mode: int) -> None:
    _replace(path, data, folder=False)


def in_place(path: Path, data: bytes, *, mode: int) -> None:
    descriptor = durable.os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    while data:
        data = data[durable.os.write(descriptor, data) :]
    durable.os.fsync(descriptor)
    durable.os.close(descriptor)


def _replace(path: Path, data: bytes, *, file: bool = True, folder: bool = True) -> None:
    descriptor = durable.os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    while data:
        data = data[durable.os.write(descriptor, data) :]
    if file:
        durable.os.fsync(descriptor)
    durable.os.close(descriptor)
    durable.os.rename(f"{path}.new", path)
    if folder:
        descriptor = durable.os.open(path.parent, os.O_RDONLY)
        durable.os.fsync(descriptor)
        durable.os.close(descriptor)


@pytest.mark.parametrize("careless", [without_file_flush, without_folder_flush, in_place])
def test_careless_writes_are_caught(monkeypatch: pytest.MonkeyPatch, careless: Callable[..., None]) -> None:
    """The test above can fail: each of these habits loses a state."""
    monkeypatch.setattr(durable, "write_whole", careless)
    with pytest.raises(AssertionError):
        cut_everywhere()


def test_answering_before_the_debit_is_durable_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """So does a client that answers first and writes afterwards."""
    kept, write_whole = list[bytes](), durable.write_whole

    def late(path: Path, data: bytes, *, mode: int) -> None:
        kept.append(data)
        if len(kept) > 1:
            write_whole(path, kept[-2], mode=mode)

    monkeypatch.setattr(durable, "write_whole", late)
    with pytest.raises(AssertionError):
        cut_everywhere()


ROUNDS = 200
CHILD = f"""
import sys
import numpy as np
from datetime import date
from pathlib import Path
from sfsl.crypto.secret import SystemRandomness
from sfsl.errors import BudgetExhausted
from sfsl.privacy import Budget, Calendar, ClientState, IndexPrivacy, Tables

path, tables, randomness = Path(sys.argv[1]), Tables(shared=("goods",)), SystemRandomness()
budget = Budget(2.0, 2.0, exposures_per_period={ROUNDS})
calendar = Calendar(start=date(2026, 1, 1), days=30)
make = ClientState.open if path.exists() else lambda *a, **k: ClientState.create(*a, calendar=calendar, **k)
with make(path, client="alice", budget=budget) as state:
    state.begin(date(2026, 2, 3), IndexPrivacy(0.75, 0.25, 1, 0), tables, {{"goods": np.arange(0, 256, 3)}},
                acknowledged=None, randomness=randomness)
    print("ready", flush=True)
    while True:
        round_id = randomness.bytes(16)
        try:
            state.expose(round_id)
        except BudgetExhausted:
            print("done", flush=True)
            break
        print("exposed", flush=True)
        answer = state.answer(round_id, {{"goods": np.arange(256)}}, randomness)["goods"]
        print("answer", np.packbits(answer).tobytes().hex(), flush=True)
"""


def test_killed_at_random_while_answering_200_rounds() -> None:
    rng = random.Random(4)
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        path = Path(folder) / NAME
        answers: list[str] = []
        exposed = kills = 0
        done = False
        while not done:
            child = subprocess.Popen(  # noqa: S603
                [sys.executable, "-c", CHILD, str(path)], stdout=subprocess.PIPE, text=True
            )
            assert child.stdout is not None
            lines_to_live = rng.randrange(1, 45)
            lines = []
            for line in child.stdout:
                lines.append(line)
                if line == "done\n":
                    done = True
                elif len(lines) == lines_to_live:
                    child.kill()  # SIGKILL, wherever it is by now
                    kills += 1
            child.wait()
            child.stdout.close()
            assert done or child.returncode == -9
            # All that was printed has left, also a line that was cut short.
            exposed += sum(line.startswith("exp") for line in lines)
            answers += [
                line.split()[1] for line in lines if line.startswith("answer ") and line.endswith("\n")
            ]
            with ClientState.open(path, client="alice", budget=BUDGET) as state:
                assert state.ledger.exposures >= exposed
                assert state.ledger.answered >= len(answers)
                assert state.ledger.exposures <= ROUNDS
                assert state.epsilon_period <= 2.0
        assert kills >= 5
        assert len(set(answers)) == 1
        assert ROUNDS - 2 * kills <= len(answers) <= exposed <= ROUNDS


def test_killed_at_random_an_epsilon_budget_is_never_exceeded() -> None:
    """cpp4's epsilon is 0.85 after two answers and more after three: a budget of 0.9 ends after two."""
    child_code = CHILD.replace("Budget(2.0, 2.0,", "Budget(0.9, 0.9,").replace(
        "IndexPrivacy(0.75, 0.25, 1, 0)", "IndexPrivacy(0.75, 0.25, 0.75, 0.25)"
    )
    assert child_code.count("0.9, 0.9") == child_code.count("0.75, 0.25, 0.75, 0.25") == 1
    rng = random.Random(9)
    for _ in range(4):
        with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
            path = Path(folder) / NAME
            answers, done, lives = 0, False, 0
            while not done:
                child = subprocess.Popen(  # noqa: S603
                    [sys.executable, "-c", child_code, str(path)], stdout=subprocess.PIPE, text=True
                )
                assert child.stdout is not None
                lines_to_live = rng.randrange(1, 6) if lives < 6 else 100
                lives += 1
                for number, line in enumerate(child.stdout, 1):
                    answers += line.startswith("answer")
                    done |= line == "done\n"
                    if number == lines_to_live and not done:
                        child.kill()
                child.wait(timeout=30)
                child.stdout.close()
            assert answers <= 2
            with ClientState.open(path, client="alice", budget=Budget(0.9, 0.9)) as state:
                assert 0 < state.epsilon_period <= 0.9
