"""What an attacker, or an unlucky operator, would try on a client's state: clear errors, nothing answered."""

import errno
import math
import os
import subprocess
import sys
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sfsl.errors import BudgetExhausted, Declined, InputError, PeriodFrozen, Refused, RolledBack, StateError
from sfsl.privacy import PRESETS, Budget, Calendar, ClientState, Decoys, IndexPrivacy, Tables
from sfsl.privacy.state import MAGIC
from sfsl.testing import SeededRandomness

CALENDAR = Calendar(start=date(2026, 1, 1), days=30)
DAY = date(2026, 2, 3)
NEXT = DAY + timedelta(days=30)
TABLES = Tables(shared=("goods",))
REAL = {"goods": [3, 5, 900]}
UNION = {"goods": np.arange(1000)}
MANY = Budget(epsilon_per_period=math.inf, epsilon_total=math.inf, exposures_per_period=1000)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "alice.state"


def create(path: Path) -> ClientState:
    return ClientState.create(path, client="alice", calendar=CALENDAR, budget=MANY)


def reopen(path: Path, client: str = "alice", budget: Budget = MANY) -> ClientState:
    return ClientState.open(path, client=client, budget=budget)


def begin(state: ClientState, day: date = DAY, **other: Any) -> None:
    given: dict[str, Any] = {"acknowledged": None, "randomness": SeededRandomness("any"), **other}
    state.begin(day, given.pop("privacy", PRESETS["cpp2"]), TABLES, given.pop("real", REAL), **given)


def play_round(state: ClientState, name: bytes) -> None:
    state.expose(name)
    state.answer(name, UNION, SeededRandomness(1))


# --- data or parameters that change within a period ---


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"real": {"goods": [3, 5]}}, "real set differs"),
        ({"real": {"goods": [3, 5, 900, 901]}}, "real set differs"),
        ({"real": {"goods": []}}, "real set differs"),
        ({"privacy": PRESETS["cpp3"]}, "drawn with p1 = 0.9375"),
        ({"privacy": IndexPrivacy(15 / 16, 1 / 8, 15 / 16, 1 / 16)}, "p2 = 0.125"),
        ({"decoys": Decoys(9, {"goods": 1000})}, "decoys differ"),
    ],
)
def test_changes_wait_for_the_next_period(path: Path, change: dict[str, Any], says: str) -> None:
    with create(path) as state:
        begin(state, **change)  # nothing has left yet, so nothing is frozen
        begin(state)
        state.expose(b"r0")
        before = path.read_bytes()
        with pytest.raises(PeriodFrozen, match=says) as caught:
            begin(state, **change)
        assert "2026-03-02" in str(caught.value)  # when the next period starts
        with pytest.raises(StateError, match="begin"):  # and until begin() succeeds, nothing leaves
            state.expose(b"r1")
        assert path.read_bytes() == before
        begin(state, NEXT, **change)
        play_round(state, b"r1")


def test_the_same_set_in_another_order_is_the_same_set(path: Path) -> None:
    with create(path) as state:
        begin(state)
        state.expose(b"r1")
        begin(state, real={"goods": [900, 3, 5, 3]})


@pytest.mark.parametrize(
    "mistake", [{"decoys": Decoys(9, {"shops": 10})}, {"real": {"goods": [-1]}}, {"real": {"shops": [1]}}]
)
def test_a_mistake_is_not_frozen_for_a_period(path: Path, mistake: dict[str, Any]) -> None:
    with create(path) as state:
        with pytest.raises(InputError):
            begin(state, **mistake)
        assert state.period is None
        begin(state)
        play_round(state, b"r1")


def test_a_clock_that_goes_back_does_not_reopen_a_period(path: Path) -> None:
    """It goes on in the later one, with what is left of its budget and the answers that were drawn for it."""
    budget = Budget(math.inf, math.inf, exposures_per_period=2)
    with ClientState.create(path, client="alice", calendar=CALENDAR, budget=budget) as state:
        begin(state, DAY)
        play_round(state, b"r0")
        begin(state, NEXT)
        play_round(state, b"r1")
        key = state._record.period
        begin(state, DAY)
        assert state._record.period == key
        play_round(state, b"r2")
        for day in (DAY, NEXT):
            begin(state, day)
            with pytest.raises(BudgetExhausted):
                state.expose(b"r3")
        assert (state.ledger.exposures, [one.exposures for one in state.ledger.closed]) == (2, [1])


@pytest.mark.parametrize("wrong", [timedelta(days=4000), timedelta(days=10), timedelta(days=-30)])
def test_a_start_with_a_wrong_clock_costs_nothing(path: Path, wrong: timedelta) -> None:
    """A client that looked and was not in a round has entered no period."""
    budget = Budget(math.inf, math.inf)
    ClientState.create(path, client="alice", calendar=CALENDAR, budget=budget).close()
    before = path.read_bytes()
    with reopen(path, budget=budget) as state:
        begin(state, DAY + wrong)
        state.require_round()
    assert path.read_bytes() == before
    with reopen(path, budget=budget) as state:
        begin(state)
        play_round(state, b"r1")
        assert state.period == CALENDAR.period(DAY)


def test_however_a_clock_jumps_a_period_has_one_budget_and_one_key(path: Path) -> None:
    """An attacker that sets the clock between and within rounds, and makes the client start again, gets one
    exposure of each period, none of a period that is over, and the same permanent answers every time."""
    budget = Budget(math.inf, math.inf)
    ClientState.create(path, client="alice", calendar=CALENDAR, budget=budget).close()
    source = np.random.default_rng(19)
    keys: dict[int, set[bytes]] = {}
    seen: list[int] = []
    state = reopen(path, budget=budget)
    for attempt in range(400):
        for _ in range(int(source.integers(1, 3))):  # perhaps the clock is set once more, after the check-in
            day = DAY + timedelta(days=int(attempt + source.integers(-33, 40)))
            begin(state, day, randomness=SeededRandomness(f"{attempt} {day}"))
        try:
            state.expose(b"round %d" % attempt)
        except BudgetExhausted:
            pass
        else:
            seen.append(CALENDAR.period(day) if state.period is None else state.period)
        if state._record.period is not None:
            keys.setdefault(state._record.period.number, set()).add(state._record.period.key)
        if source.random() < 0.3:
            state.close()
            state = reopen(path, budget=budget)
    state.close()
    assert len(seen) > 10
    assert seen == sorted(set(seen)), "a period was exposed twice, or an earlier one after a later"
    assert all(len(some) == 1 for some in keys.values())


# --- a server that wants more ---


def test_a_server_that_asks_for_more_exposures(path: Path) -> None:
    budget = Budget(math.inf, math.inf)
    ClientState.create(path, client="alice", calendar=CALENDAR, budget=budget).close()
    entered = 0
    for attempt in range(20):
        with reopen(path, budget=budget) as state:
            begin(state)
            try:
                state.expose(b"round %d" % attempt)
                entered += 1
            except BudgetExhausted:
                pass
    assert entered == 1


def test_a_server_that_asks_about_a_row_twice(path: Path) -> None:
    """Two draws for one row in one round would be a round that the ledger does not see."""
    with create(path) as state:
        begin(state)
        state.expose(b"r1")
        with pytest.raises(InputError, match="each row once"):
            state.answer(b"r1", {"goods": [3, 3]}, SeededRandomness(1))


# --- an old copy of the state ---


def test_a_restored_backup_is_detected_by_the_servers_count(path: Path) -> None:
    with create(path) as state:
        begin(state)
        play_round(state, b"r1")
        backup = path.read_bytes()
        play_round(state, b"r2")
        play_round(state, b"r3")
    path.write_bytes(backup)
    with reopen(path) as state:
        with pytest.raises(RolledBack, match="remembers 3 rounds of this client, its state only 1"):
            begin(state, acknowledged=3)
        with pytest.raises(Declined, match="sits out until 2026-03-02"):
            state.expose(b"r4")
    with reopen(path) as state:  # it remembers that, also after a restart and with a quiet server
        begin(state)
        with pytest.raises(Declined, match="sits out"):
            state.expose(b"r4")
        assert state.ledger.lost == 2
        assert state.ledger.lost_epsilon == pytest.approx(2 * PRESETS["cpp2"].epsilon_infinity)
        begin(state, NEXT, acknowledged=3)  # the next period is free of it, its cost is not forgotten
        play_round(state, b"r5")
        assert state.epsilon_total == pytest.approx(
            2 * PRESETS["cpp2"].epsilon_infinity + 2 * PRESETS["cpp2"].epsilon_one
        )


def test_a_backup_from_an_earlier_period_cannot_make_a_second_key(path: Path) -> None:
    with create(path) as state:
        begin(state)
        backup = path.read_bytes()
        begin(state, NEXT)
        play_round(state, b"r1")
    path.write_bytes(backup)
    with reopen(path) as state:
        with pytest.raises(RolledBack):
            begin(state, NEXT, acknowledged=1)
        with pytest.raises(Declined):
            state.expose(b"r2")


def test_an_old_copy_found_in_a_new_period_closes_the_one_before(path: Path) -> None:
    """What the old period cost stays counted, beside what nobody remembers."""
    once = PRESETS["cpp2"].epsilon_one
    with create(path) as state:
        begin(state)
        play_round(state, b"r1")
        with pytest.raises(RolledBack):
            begin(state, NEXT, acknowledged=3)
        assert [line.exposures for line in state.ledger.closed] == [1]
    with reopen(path) as state:
        assert [line.exposures for line in state.ledger.closed] == [1]
        assert (state.ledger.lost, state.ledger.begun) == (2, 3)
        assert state.epsilon_total == pytest.approx(once + 2 * PRESETS["cpp2"].epsilon_infinity)
        begin(state, NEXT, acknowledged=3)
        with pytest.raises(Declined, match="sits out"):
            state.expose(b"r2")


def test_a_fresh_state_of_a_client_that_took_part_before(path: Path) -> None:
    with create(path) as state, pytest.raises(RolledBack):
        begin(state, acknowledged=7)


def test_a_server_that_remembers_fewer_rounds_is_fine(path: Path) -> None:
    with create(path) as state:
        begin(state)
        state.expose(b"never arrived")
        begin(state, acknowledged=0)
        play_round(state, b"r2")


@pytest.mark.parametrize("count", [-1, 2**63])
def test_a_count_that_cannot_be(path: Path, count: int) -> None:
    with create(path) as state, pytest.raises(InputError, match="cannot remember"):
        begin(state, acknowledged=count)


# --- files that are not what they should be ---


def test_a_missing_state_is_not_silently_replaced(path: Path) -> None:
    with pytest.raises(StateError, match=r"no state at .*next period"):
        reopen(path)
    assert not path.exists()


def test_an_existing_state_is_not_overwritten(path: Path) -> None:
    create(path).close()
    with pytest.raises(StateError, match="exists"):
        create(path)


def test_the_state_of_another_client(path: Path) -> None:
    create(path).close()
    with pytest.raises(StateError, match="of client 'alice', not of 'bob'"):
        reopen(path, client="bob")


def test_every_truncation_and_every_flipped_byte_is_noticed(path: Path) -> None:
    with create(path) as state:
        begin(state)
        play_round(state, b"r1")
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(StateError):
            reopen(path)
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 0x40
        path.write_bytes(damaged)
        with pytest.raises(StateError):
            reopen(path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(StateError, match="damaged"):
        reopen(path)
    path.write_bytes(whole)
    reopen(path).close()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04" + bytes(400), b"{}", b"\0" * 5000, os.urandom(300)])
def test_a_foreign_file(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(StateError, match="not a client state"):
        reopen(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("body", "says"),
    [(b"\x07\x80", "another version"), (b"\x01\x80", "does not hold"), (b"\x01\xc1", "does not")],
)
def test_a_well_sealed_file_with_other_content(path: Path, body: bytes, says: str) -> None:
    import hashlib

    path.write_bytes(MAGIC + hashlib.sha256(body).digest() + body)
    path.chmod(0o600)
    with pytest.raises(StateError, match=says):
        reopen(path)


def test_a_huge_file_is_not_read(path: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(1 << 30)
    path.chmod(0o600)
    with pytest.raises(StateError, match="more than"):
        reopen(path)


def test_a_folder_where_the_file_should_be(path: Path) -> None:
    path.mkdir()
    with pytest.raises(StateError, match="cannot read"):
        reopen(path)


# --- disks that do not write ---


@pytest.mark.parametrize("folder", ["missing", "file"])
def test_no_folder_to_write_to(tmp_path: Path, folder: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StateError, match="folder must exist and be writable"):
        create(tmp_path / folder / "state")


@pytest.mark.parametrize("call", ["open", "write", "fsync", "rename"])
@pytest.mark.parametrize("code", [errno.EROFS, errno.ENOSPC, errno.EIO])
def test_a_disk_that_fails_answers_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    with create(path) as state:
        begin(state)
        state.expose(b"r1")
        debited = path.read_bytes()

        def fail(*_: Any, **__: Any) -> Any:
            raise OSError(code, os.strerror(code))

        with monkeypatch.context() as broken:
            broken.setattr(os, call, fail)
            with pytest.raises(StateError, match=r"cannot write .*nothing was answered"):
                state.answer(b"r1", UNION, SeededRandomness(1))
        # Whether the bytes reached the disk is unknown, so this object is done for.
        with pytest.raises(Refused, match="has not entered"):
            state.answer(b"r1", UNION, SeededRandomness(1))
        with pytest.raises(StateError, match="open it again"):
            state.expose(b"r2")
        begin(state, NEXT)
        with pytest.raises(StateError, match="open it again"):
            state.expose(b"r2")
        if call != "fsync":
            assert path.read_bytes() == debited
    with reopen(path) as state:
        begin(state)
        play_round(state, b"r2")


def test_a_closed_state_writes_nothing(path: Path) -> None:
    state = create(path)
    begin(state)
    state.close()
    state.close()
    with pytest.raises(StateError):
        state.expose(b"r1")
    begin(state, NEXT)
    with pytest.raises(StateError, match="closed"):
        state.expose(b"r1")


# --- two processes ---


def test_two_at_once(path: Path) -> None:
    with create(path) as state:
        begin(state)
        with pytest.raises(StateError, match="in use by another process"):
            reopen(path)
        link = path.with_name("link")
        link.symlink_to(path)
        with pytest.raises(StateError, match="in use"):
            reopen(link)
        code = (
            "import sys\nfrom sfsl.errors import StateError\nfrom sfsl.privacy import Budget, ClientState\n"
            "try:\n    ClientState.open(sys.argv[1], client='alice', budget=Budget(1, 1))\n"
            "except StateError as error:\n    print(error)\n"
        )
        shown = subprocess.run(  # noqa: S603
            [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True, timeout=60
        )
        assert "in use by another process" in shown.stdout
        play_round(state, b"r1")  # the first is undisturbed
    reopen(path).close()


def test_a_fork_does_not_write(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A forked child shares the lock; it must not answer from the same state."""
    with create(path) as state:
        begin(state)
        monkeypatch.setattr(os, "getpid", lambda: -1)
        with pytest.raises(StateError, match="fork"):
            state.expose(b"r1")


def test_a_leftover_of_a_crash_is_replaced_and_made_private(path: Path) -> None:
    leftover = path.with_name(path.name + ".new")
    leftover.write_bytes(b"half a state")
    leftover.chmod(0o644)
    create(path).close()
    assert not leftover.exists()
    assert path.stat().st_mode & 0o777 == 0o600
    reopen(path).close()
