"""Old copies, power cuts and kills around hot rounds: what has left a device is never under-counted."""

import itertools
import math
import random
import subprocess
import sys
import tempfile
from datetime import date, timedelta
from pathlib import Path

import pytest
from power import MEMORY, Disk, PowerCut, powered_by

from sfsl import durable
from sfsl.errors import BudgetExhausted, Declined, InputError, StateError
from sfsl.privacy import PRESETS, Budget, Calendar, ClientState, Tables
from sfsl.testing import SeededRandomness

CALENDAR = Calendar(start=date(2026, 1, 1), days=30)
BUDGET = Budget(0.0, 0.0, epsilon_hot=2.0, rho_per_round=0.02)
COST = 0.02
MOST = int(BUDGET.rho / COST)
NAME = "alice.state"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / NAME


def create(path: Path, budget: Budget = BUDGET) -> ClientState:
    return ClientState.create(path, client="alice", calendar=CALENDAR, budget=budget)


def reopen(path: Path, budget: Budget = BUDGET) -> ClientState:
    return ClientState.open(path, client="alice", budget=budget)


def begin(state: ClientState, day: date, acknowledged: int | None) -> None:
    state.begin(
        day, PRESETS["cpp2"], Tables(shared=("goods",)), {"goods": [3]},
        acknowledged=acknowledged, randomness=SeededRandomness(str(day)),
    )  # fmt: skip


# --- an old copy of the state ---


def test_a_restored_backup_is_charged_for_what_the_server_remembers(path: Path) -> None:
    with create(path) as state:
        state.spend(b"r1", 0.01)
        backup = path.read_bytes()
        state.spend(b"r2", 0.01)
        state.spend(b"r3", 0.015)
    path.write_bytes(backup)
    with reopen(path) as state:
        assert state.catch_up(3) == 2
        assert state.rho == pytest.approx(0.01 + 2 * BUDGET.rho_per_round)
        assert (state.hot_rounds, state.ledger.begun, state.ledger.lost) == (3, 3, 2)
    with reopen(path) as state:  # durably, and once
        assert state.catch_up(3) == 0
        assert state.rho == pytest.approx(0.01 + 2 * BUDGET.rho_per_round)
        state.spend(b"r4", 0.01)
        assert state.catch_up(4) == 0


def test_without_a_limit_per_round_a_lost_one_costs_all(path: Path) -> None:
    budget = Budget(0.0, 0.0, epsilon_hot=2.0)
    with create(path, budget) as state:
        assert state.catch_up(1) == 1
        assert state.rho == budget.rho
        with pytest.raises(BudgetExhausted, match="0 of"):
            state.spend(b"r1", 1e-4)


def test_a_server_that_remembers_fewer_rounds_or_none_is_fine(path: Path) -> None:
    with create(path) as state:
        state.spend(b"never arrived", 0.01)
        before = path.read_bytes()
        for acknowledged in (None, 0, 1):
            assert state.catch_up(acknowledged) == 0
        assert path.read_bytes() == before


@pytest.mark.parametrize("count", [-1, 2**63])
def test_a_count_that_cannot_be(path: Path, count: int) -> None:
    with create(path) as state, pytest.raises(InputError, match="cannot remember"):
        state.catch_up(count)


def test_lost_rounds_of_a_client_of_both_kinds_are_charged_as_both(path: Path) -> None:
    """Nobody knows what the missing rounds were, and the period's key may be a second one."""
    budget = Budget(3.0, 100.0, exposures_per_period=9, epsilon_hot=2.0, rho_per_round=0.02)
    day = date(2026, 2, 3)
    with create(path, budget) as state:
        begin(state, day, None)
        assert state.catch_up(2) == 2
        assert state.rho == pytest.approx(0.04)
        assert state.ledger.lost_epsilon == pytest.approx(6.0)
        with pytest.raises(Declined, match="sits out"):
            state.expose(b"r1")
        state.spend(b"h1", 0.02)  # which has no key that could be a second one
        begin(state, day + timedelta(days=30), 3)
        state.expose(b"r2")
    with reopen(path, budget) as state:
        with pytest.raises(StateError, match="remembers 5 rounds"):
            begin(state, day + timedelta(days=30), 5)
        assert state.rho == pytest.approx(0.08)  # one more: 5 against 1 noisy, 1 exposed, 2 lost before


def test_a_client_that_allows_no_hot_rounds_is_charged_for_none(path: Path) -> None:
    with create(path, Budget(3.0, 100.0)) as state:
        with pytest.raises(StateError, match="remembers 2"):
            begin(state, date(2026, 2, 3), 2)
        assert (state.rho, state.hot_rounds) == (0.0, 0)
        assert b"\xa3hot" not in path.read_bytes()


# --- power cuts ---


class World:
    """What has left the device: a vector per paid round."""

    created = False
    sent: tuple[bytes, ...] = ()

    def send(self, state: ClientState, name: bytes) -> None:
        state.spend(name, COST)
        self.sent = (*self.sent, name)


def live(path: Path, world: World) -> None:
    with create(path) as state:
        world.created = True
        world.send(state, b"r1")
        state.catch_up(len(world.sent))
        world.send(state, b"r2")


def recover(path: Path, world: World) -> None:
    try:
        state = reopen(path)
    except StateError as error:
        if world.created or "no state" not in str(error):
            raise AssertionError(f"the state is lost: {error}") from error
        state = create(path)
    with state:
        assert state.rho >= COST * len(world.sent) - 1e-12
        assert state.catch_up(len(world.sent)) == 0
        for number in itertools.count():
            try:
                world.send(state, b"after %d" % number)
            except BudgetExhausted:
                break
        assert len(world.sent) <= MOST


def cut_everywhere() -> int:
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
                again.created, again.sent = world.created, world.sent
                with powered_by(Disk()):
                    recover(Path(folder) / NAME, again)
                recoveries += 1
    return recoveries


def test_a_power_cut_between_any_two_system_calls() -> None:
    assert cut_everywhere() > 40


def test_sending_before_the_debit_is_durable_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above can fail: a client that writes one debit late under-counts."""
    kept, write_whole = list[bytes](), durable.write_whole

    def late(path: Path, data: bytes, *, mode: int) -> None:
        kept.append(data)
        if len(kept) > 1:
            write_whole(path, kept[-2], mode=mode)

    monkeypatch.setattr(durable, "write_whole", late)
    with pytest.raises(AssertionError):
        cut_everywhere()


# --- kills ---

ROUNDS = 120
CHILD = f"""
import sys
from datetime import date
from pathlib import Path
from sfsl.crypto.secret import SystemRandomness
from sfsl.errors import BudgetExhausted
from sfsl.privacy import Budget, Calendar, ClientState

path, randomness = Path(sys.argv[1]), SystemRandomness()
budget = Budget(0.0, 0.0, epsilon_hot=float("inf"), rho_per_round=0.001)
calendar = Calendar(start=date(2026, 1, 1), days=30)
make = ClientState.open if path.exists() else lambda *a, **k: ClientState.create(*a, calendar=calendar, **k)
with make(path, client="alice", budget=budget) as state:
    print("ready", flush=True)
    while state.hot_rounds < {ROUNDS}:
        state.spend(randomness.bytes(16), 0.001)
        print("sent", flush=True)
print("done", flush=True)
"""


def test_killed_at_random_between_debit_and_answer() -> None:
    rng = random.Random(4)
    budget = Budget(0.0, 0.0, epsilon_hot=math.inf)
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        path = Path(folder) / NAME
        sent = kills = 0
        done = False
        while not done:
            child = subprocess.Popen(  # noqa: S603
                [sys.executable, "-c", CHILD, str(path)], stdout=subprocess.PIPE, text=True
            )
            assert child.stdout is not None
            lines_to_live = rng.randrange(1, 40)
            lines = []
            for line in child.stdout:
                lines.append(line)
                done |= line == "done\n"
                if len(lines) == lines_to_live and not done:
                    child.kill()
                    kills += 1
            child.wait(timeout=30)
            child.stdout.close()
            sent += sum(line.startswith("sent") for line in lines)  # all that was printed has left
            if path.exists():
                with reopen(path, budget) as state:
                    assert state.hot_rounds >= sent
                    assert state.rho >= 0.001 * sent - 1e-12
                    assert state.catch_up(sent) == 0
        assert kills >= 3
        assert ROUNDS - kills <= sent <= ROUNDS
