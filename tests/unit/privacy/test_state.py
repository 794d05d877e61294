"""A client's durable state: the order of a round, the ledger, periods, what it costs on disk."""

import math
import stat
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sfsl import durable
from sfsl.errors import BudgetExhausted, InputError, ParameterError, Refused, RolledBack, StateError
from sfsl.privacy import PRESETS, Budget, Calendar, ClientState, Decoys, IndexPrivacy, Ledger, Tables
from sfsl.testing import SeededRandomness

CALENDAR = Calendar(start=date(2026, 1, 1), days=30)
DAY = date(2026, 2, 3)
TABLES = Tables(shared=("goods",))
REAL = {"goods": [3, 5, 900]}
UNION = {"goods": np.arange(0, 1000, 5)}
GENEROUS = Budget(epsilon_per_period=math.inf, epsilon_total=math.inf, exposures_per_period=10**6)


def begin(state: ClientState, day: date = DAY, privacy: IndexPrivacy = PRESETS["cpp2"], **other: Any) -> None:
    given: dict[str, Any] = {"acknowledged": None, "randomness": SeededRandomness(str(day)), **other}
    state.begin(day, privacy, TABLES, given.pop("real", REAL), **given)


def create(path: Path, budget: Budget = GENEROUS) -> ClientState:
    return ClientState.create(path, client="alice", calendar=CALENDAR, budget=budget)


def reopen(path: Path, budget: Budget = GENEROUS) -> ClientState:
    return ClientState.open(path, client="alice", budget=budget)


def play_round(state: ClientState, name: bytes) -> Any:
    state.expose(name)
    return state.answer(name, UNION, SeededRandomness(name.hex()))["goods"]


def test_a_round_in_order(tmp_path: Path) -> None:
    with create(tmp_path / "state") as state:
        begin(state)
        assert state.period is None  # until something leaves
        assert state.expose(b"r1")["goods"].tolist() == [3, 5, 900]
        assert state.period == 1
        assert (state.ledger.exposures, state.ledger.answered, state.epsilon_period) == (1, 0, 0.0)
        assert state.answer(b"r1", UNION, SeededRandomness(1))["goods"].shape == (200,)
        assert (state.ledger.exposures, state.ledger.answered) == (1, 1)
        assert state.epsilon_period == pytest.approx(PRESETS["cpp2"].epsilon_one)


def test_what_must_not_be_done_out_of_order(tmp_path: Path) -> None:
    with create(tmp_path / "state") as state:
        with pytest.raises(StateError, match="begin"):
            state.expose(b"r1")
        begin(state)
        with pytest.raises(Refused, match="has not entered"):
            state.answer(b"r1", UNION, SeededRandomness(1))
        state.expose(b"r1")
        with pytest.raises(Refused, match="already entered"):
            state.expose(b"r1")
        with pytest.raises(Refused, match="has not entered"):
            state.answer(b"r2", UNION, SeededRandomness(1))
        state.answer(b"r1", UNION, SeededRandomness(1))
        with pytest.raises(Refused, match="answered it already"):
            state.answer(b"r1", UNION, SeededRandomness(2))
        assert (state.ledger.exposures, state.ledger.answered) == (1, 1)


def test_a_round_that_is_handed_from_process_to_process(tmp_path: Path) -> None:
    """From what was kept last, and from nothing else; and it is answered once."""
    path = tmp_path / "state"
    with create(path) as state:
        begin(state)
        before = path.read_bytes()
        assert b"going_on" not in before  # as states were written before there was such a thing
        state.keep(b"first")
        state.expose(b"r1")
        state.keep(b"second")
    with reopen(path) as state:
        with pytest.raises(StateError, match="begin"):
            state.go_on(b"second", b"r1")
        begin(state)
        for other in (b"first", b"", b"third"):
            with pytest.raises(RolledBack, match="not the last"):
                state.go_on(other, b"r1")
            with pytest.raises(Refused, match="has not entered"):
                state.answer(b"r1", UNION, SeededRandomness(1))
        state.go_on(b"second", b"r1")
        with pytest.raises(Refused, match="already entered"):
            state.expose(b"r1")
        state.answer(b"r1", UNION, SeededRandomness(1))
        assert (state.ledger.exposures, state.ledger.answered) == (1, 1)
        state.keep(None)
        assert b"going_on" not in path.read_bytes()
        with pytest.raises(RolledBack):
            state.go_on(b"second", None)


def test_a_round_does_not_go_on_in_the_next_period(tmp_path: Path) -> None:
    """It was exposed with the data of the one before."""
    with create(tmp_path / "state") as state:
        begin(state)
        state.expose(b"r1")
        state.keep(b"kept")
        begin(state, DAY + timedelta(days=30))
        with pytest.raises(RolledBack):
            state.go_on(b"kept", b"r1")


def test_a_bad_union_is_refused_and_costs_no_answer(tmp_path: Path) -> None:
    with create(tmp_path / "state") as state:
        begin(state)
        state.expose(b"r1")
        for bad in ({"goods": []}, {"goods": [2, 1]}, {}):
            with pytest.raises(InputError):
                state.answer(b"r1", bad, SeededRandomness(1))
        assert state.ledger.answered == 0
        state.answer(b"r1", UNION, SeededRandomness(1))


def test_the_default_is_one_exposure_per_period(tmp_path: Path) -> None:
    path, budget = tmp_path / "state", Budget(epsilon_per_period=3, epsilon_total=6)
    with create(path, budget) as state:
        begin(state)
        play_round(state, b"r1")
        with pytest.raises(BudgetExhausted, match="1 of 1 exposures"):
            state.expose(b"r2")
    with reopen(path, budget) as state:  # nor after a restart
        begin(state)
        with pytest.raises(BudgetExhausted):
            state.expose(b"r3")
        begin(state, DAY + timedelta(days=30))
        play_round(state, b"r4")
        assert state.epsilon_total == pytest.approx(2 * PRESETS["cpp2"].epsilon_one)
        assert state.epsilon_period == pytest.approx(PRESETS["cpp2"].epsilon_one)


def test_an_exposure_is_not_refunded_when_the_round_fails(tmp_path: Path) -> None:
    with create(tmp_path / "state", Budget(9, 9, exposures_per_period=2)) as state:
        begin(state)
        state.expose(b"fails")
        state.expose(b"fails too")
        with pytest.raises(BudgetExhausted):
            state.expose(b"third")
        assert (state.ledger.exposures, state.ledger.answered, state.ledger.begun) == (2, 0, 2)


def test_the_epsilon_limit_of_a_period(tmp_path: Path) -> None:
    limit = PRESETS["cpp4"].epsilon(3)
    with create(tmp_path / "state", Budget(limit, math.inf, exposures_per_period=99)) as state:
        begin(state, privacy=PRESETS["cpp4"])
        for number in range(3):
            play_round(state, b"r%d" % number)
        with pytest.raises(BudgetExhausted, match=r"after 3 rounds another answer .* 1\.066"):
            state.expose(b"r4")
        assert state.ledger.exposures == 3  # declined before anything was debited
        assert state.epsilon_period == pytest.approx(limit)


def test_the_epsilon_limit_over_all_periods(tmp_path: Path) -> None:
    with create(tmp_path / "state", Budget(math.inf, 5.0, exposures_per_period=99)) as state:
        for period in range(2):
            begin(state, DAY + timedelta(days=30 * period))
            play_round(state, b"r")
        begin(state, DAY + timedelta(days=60))
        with pytest.raises(BudgetExhausted, match="takes no further part"):
            state.expose(b"r")


def test_a_budget_may_be_spent_to_its_end() -> None:
    """What is left after the sum of the parts was rounded is nobody's to lose."""
    privacy = PRESETS["cpp2"]
    each = Ledger().after_answer(privacy).epsilon(privacy.p1, privacy.p2)
    before = Ledger(lost_epsilon=0.1 + 0.2)
    before.check_answer(Budget(each, 0.3 + each), privacy)  # 0.1 + 0.2 is a little more than 0.3
    for little in (Budget(each - 1e-6, math.inf), Budget(math.inf, 0.3 + each - 1e-6)):
        with pytest.raises(BudgetExhausted):
            before.check_answer(little, privacy)


def test_p3_and_p4_may_change_within_a_period(tmp_path: Path) -> None:
    with create(tmp_path / "state") as state:
        begin(state)
        play_round(state, b"r1")
        begin(state, privacy=IndexPrivacy(15 / 16, 1 / 16, 1, 0))
        play_round(state, b"r2")
        assert state.epsilon_period == pytest.approx(PRESETS["cpp2"].epsilon_infinity)


def test_infinite_epsilon_is_counted_too(tmp_path: Path) -> None:
    path = tmp_path / "state"
    with create(path) as state:
        begin(state, privacy=PRESETS["cpp1"])
        play_round(state, b"r1")
        assert state.epsilon_total == math.inf
    with reopen(path, Budget(3, 3, 9)) as state:
        begin(state, DAY + timedelta(days=30))
        with pytest.raises(BudgetExhausted, match="inf"):
            state.expose(b"r2")


def test_answers_survive_a_restart(tmp_path: Path) -> None:
    path, permanent = tmp_path / "state", IndexPrivacy(0.75, 0.25, 1, 0)
    with create(path) as state:
        begin(state, privacy=permanent)
        first = play_round(state, b"r1")
    with reopen(path) as state:
        # Other randomness: were the key drawn again, the answers would differ.
        begin(state, privacy=permanent, randomness=SeededRandomness("other"))
        assert np.array_equal(play_round(state, b"r2"), first)
        begin(state, DAY + timedelta(days=30), privacy=permanent)
        assert not np.array_equal(play_round(state, b"r3"), first)


def test_decoys_enter_the_union_and_stay(tmp_path: Path) -> None:
    path, decoys = tmp_path / "state", Decoys(draws=800, domain={"goods": 10_000})
    with create(path) as state:
        begin(state, decoys=decoys)
        submitted = state.expose(b"r1")["goods"]
        assert len(submitted) > 10
    with reopen(path) as state:
        begin(state, decoys=decoys)
        assert np.array_equal(state.expose(b"r2")["goods"], submitted)


@pytest.fixture
def hasty_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of rounds without waiting for the platter."""
    monkeypatch.setattr(durable, "_flush", lambda descriptor: None)


@pytest.mark.usefixtures("hasty_disk")
def test_the_file_is_private_and_small_however_many_rounds(tmp_path: Path) -> None:
    path = tmp_path / "state"
    with create(path) as state:
        for period in range(20):
            begin(state, DAY + timedelta(days=30 * period))
            for number in range(10):
                play_round(state, b"r%d" % number)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "state.lock").stat().st_mode) == 0o600
    assert path.stat().st_size < 1024 + 20 * 64


@pytest.mark.usefixtures("hasty_disk")
def test_one_period_of_many_rounds_stays_under_one_kilobyte(tmp_path: Path) -> None:
    path = tmp_path / "state"
    name = "x" * 128
    with ClientState.create(path, client=name, calendar=CALENDAR, budget=GENEROUS) as state:
        begin(state)
        sizes = set()
        for number in range(300):
            play_round(state, b"r%d" % number)
            sizes.add(path.stat().st_size)
    assert max(sizes) < 1024


def test_the_ledger_lists_closed_periods(tmp_path: Path) -> None:
    path = tmp_path / "state"
    with create(path) as state:
        for period in (0, 1, 5):  # periods in which a client takes no part leave no line
            begin(state, DAY + timedelta(days=30 * period))
            play_round(state, b"r")
    with reopen(path) as state:
        lines = [(line.number, line.exposures, line.answered) for line in state.ledger.closed]
        assert lines == [(1, 1, 1), (2, 1, 1)]
        assert [line.epsilon for line in state.ledger.closed] == pytest.approx([2.0193, 2.0193], abs=1e-4)
        assert state.ledger.begun == 3


def test_nothing_secret_shows(tmp_path: Path) -> None:
    with create(tmp_path / "state") as state:
        begin(state)
        state.expose(b"r1")
        frozen = state._record.period
        assert frozen is not None
        for shown in (repr(state), repr(state._record), repr(frozen), str(frozen)):
            assert repr(frozen.key)[2:-1] not in shown
            assert frozen.key.hex() not in shown


def test_periods_follow_the_calendar() -> None:
    assert [CALENDAR.period(CALENDAR.start + timedelta(days=d)) for d in (0, 29, 30, 59, 60)] == [
        0,
        0,
        1,
        1,
        2,
    ]
    assert CALENDAR.first_day(2) == date(2026, 3, 2)
    with pytest.raises(ParameterError, match="check the clock"):
        CALENDAR.period(date(2025, 12, 31))
    for days in (0, -1, 1.5, True):
        with pytest.raises(ParameterError, match="days"):
            Calendar(start=DAY, days=days)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "bad", [{"epsilon_per_period": -1}, {"epsilon_total": math.nan}, {"exposures_per_period": -1},
            {"exposures_per_period": 1.5}, {"exposures_per_period": True}]
)  # fmt: skip
def test_budgets_that_cannot_be(bad: dict[str, Any]) -> None:
    with pytest.raises(ParameterError):
        Budget(**{"epsilon_per_period": 1.0, "epsilon_total": 1.0, **bad})


def test_names_of_clients_are_bounded(tmp_path: Path) -> None:
    for name in ("", "x" * 129):
        with pytest.raises(InputError, match="1 to 128"):
            ClientState.create(tmp_path / "s", client=name, calendar=CALENDAR, budget=GENEROUS)


def test_a_ledger_is_never_changed_in_place() -> None:
    before = Ledger()
    before.after_exposure().after_answer(PRESETS["cpp2"]).after_period(0, 1, 0)
    assert before == Ledger()
