"""Hot rounds in a client's durable ledger: what is debited and refused, what older states look like."""

import math
from datetime import date
from pathlib import Path

import numpy as np
import pytest

from sfsl import durable
from sfsl.errors import BudgetExhausted, InputError, ParameterError, Refused
from sfsl.privacy import PRESETS, Budget, Calendar, ClientState, Tables, epsilon_of, plan_noise, rho_for
from sfsl.privacy.state import read_state
from sfsl.testing import SeededRandomness

CALENDAR = Calendar(start=date(2026, 1, 1), days=30)
PLAN = plan_noise(8.0, 1e-6, 5)
BUDGET = Budget(0.0, 0.0, epsilon_hot=8.0)
# A state as it was written before there were hot rounds: one period, one round, answered.
BEFORE = bytes.fromhex(
    "7366736c2073746174650d0a1a0a0000d95926b0048d7053c0ecbb5ea07330ff938ec13a1197b3b030b1f0e8571cf62e0185"
    "a474797065ac636c69656e742d7374617465a6636c69656e74a5616c696365a863616c656e64617282a57374617274aa3230"
    "32362d30312d3031a4646179731ea66c656467657288a96578706f737572657301a8616e73776572656401ac7965735f6576"
    "6964656e6365cbc005aa16394d481fab6e6f5f65766964656e6365cbc005aa16394d481fa6636c6f73656490a5626567756e"
    "01a46c6f737400ac6c6f73745f657073696c6f6ecb0000000000000000a6706572696f6487a66e756d62657201a36b6579c4"
    "204f8aa894e72679ebc06237fababfbed4507cc89ee8bb425766fb808a61d75c7ba27031cb3fee000000000000a27032cb3f"
    "b0000000000000a8736e617073686f74c4207a08fb886d5b5580e811a0d5bf898a1880e47236c403b37ab3241ebeabd1b2ad"
    "a66465636f7973c4206bc6fadcee7ad465768e86ae3a9ef4a205f860b074027cf5800fc01f68110ed6a6626172726564c2"
)


def create(path: Path, budget: Budget = BUDGET) -> ClientState:
    return ClientState.create(path, client="alice", calendar=CALENDAR, budget=budget)


def test_a_run_as_planned_fits_the_budget_and_not_one_round_more(tmp_path: Path) -> None:
    with create(tmp_path / "state") as state:
        state.spend(b"survey", PLAN.rho_survey)
        for number in range(5):
            assert state.epsilon_hot(1e-6) < 8.0
            state.spend(b"round %d" % number, PLAN.rho_train)
        assert (state.hot_rounds, state.ledger.begun) == (6, 6)
        assert state.rho == pytest.approx(PLAN.rho)
        assert state.epsilon_hot(1e-6) == pytest.approx(8.0, rel=1e-6)
        before = (tmp_path / "state").read_bytes()
        for refuse in (state.require_spend, lambda rho: state.spend(b"round 5", rho)):
            with pytest.raises(
                BudgetExhausted, match=r"costs rho 0.189.* and .* of 1.052 is left.* 8 .*1e-06"
            ):
                refuse(PLAN.rho_train)
        assert (tmp_path / "state").read_bytes() == before
        assert state.hot_rounds == 6


def test_what_is_left_can_be_spent_on_a_cheaper_round(tmp_path: Path) -> None:
    with create(tmp_path / "state") as state:
        state.spend(b"r1", BUDGET.rho * 0.9)
        with pytest.raises(BudgetExhausted):
            state.spend(b"r2", BUDGET.rho * 0.2)
        state.spend(b"r2", BUDGET.rho * 0.1)


def test_a_round_is_paid_for_once(tmp_path: Path) -> None:
    path = tmp_path / "state"
    with create(path) as state:
        state.spend(b"r1", 0.1)
        with pytest.raises(Refused, match="paid for this round already"):
            state.spend(b"r1", 0.1)
    with ClientState.open(path, client="alice", budget=BUDGET) as state:  # a new process is a dropout too
        with pytest.raises(Refused, match="dropout"):
            state.spend(b"r1", 0.1)
        assert (state.rho, state.hot_rounds) == (0.1, 1)
        state.spend(b"r2", 0.1)


@pytest.mark.parametrize("rho", [0.0, -0.1, math.nan])
def test_a_round_that_claims_to_cost_nothing(tmp_path: Path, rho: float) -> None:
    with create(tmp_path / "state") as state, pytest.raises(InputError, match="more than nothing"):
        state.spend(b"r1", rho)


def test_the_owner_limits_a_single_round(tmp_path: Path) -> None:
    with create(tmp_path / "state", Budget(0, 0, epsilon_hot=8.0, rho_per_round=0.2)) as state:
        state.spend(b"r1", 0.2)
        with pytest.raises(BudgetExhausted, match=r"costs rho 0.21, where .* allows 0.2"):
            state.spend(b"r2", 0.21)
        with pytest.raises(BudgetExhausted, match=r"costs rho inf"):
            state.spend(b"r2", math.inf)


def test_hot_rounds_are_a_choice(tmp_path: Path) -> None:
    with (
        create(tmp_path / "state", Budget(1.0, 1.0)) as state,
        pytest.raises(BudgetExhausted, match="no hot"),
    ):
        state.spend(b"r1", 1e-6)


def test_rounds_without_noise_need_an_owner_without_limit(tmp_path: Path) -> None:
    path = tmp_path / "state"
    unlimited = Budget(0, 0, epsilon_hot=math.inf)
    with create(path) as state, pytest.raises(BudgetExhausted):
        state.spend(b"r1", math.inf)
    with ClientState.open(path, client="alice", budget=unlimited) as state:
        state.spend(b"r1", math.inf)
        state.spend(b"r2", 0.1)
        assert state.rho == state.epsilon_hot(1e-6) == math.inf
    with ClientState.open(path, client="alice", budget=unlimited) as state:
        assert (state.rho, state.hot_rounds) == (math.inf, 2)


@pytest.mark.parametrize(
    "wrong", [{"epsilon_hot": -1}, {"epsilon_hot": math.nan}, {"rho_per_round": -0.1}, {"delta_hot": 0.0}]
)
def test_limits_that_are_none(wrong: dict[str, float]) -> None:
    with pytest.raises(ParameterError):
        Budget(1.0, 1.0, **wrong)  # type: ignore[arg-type]


def test_both_kinds_of_rounds_share_a_ledger(tmp_path: Path) -> None:
    budget = Budget(math.inf, math.inf, epsilon_hot=2.0)
    with create(tmp_path / "state", budget) as state:
        state.spend(b"h1", 0.01)
        state.begin(
            date(2026, 2, 3), PRESETS["cpp2"], Tables(shared=("goods",)), {"goods": [3]},
            acknowledged=1, randomness=SeededRandomness(1),
        )  # fmt: skip
        state.expose(b"r1")
        state.spend(b"h2", 0.02)
        state.answer(b"r1", {"goods": np.arange(9)}, SeededRandomness(2))
        assert (state.ledger.begun, state.ledger.exposures, state.hot_rounds) == (3, 1, 2)
        assert state.rho == 0.03
        assert state.epsilon_total == pytest.approx(PRESETS["cpp2"].epsilon_one)
        state.begin(
            date(2026, 3, 8), PRESETS["cpp2"], Tables(shared=("goods",)), {"goods": [3]},
            acknowledged=3, randomness=SeededRandomness(3),
        )  # fmt: skip
        assert (state.rho, state.ledger.begun) == (0.03, 3)  # a new period is no new budget


def test_a_state_of_before_opens_and_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_bytes(BEFORE)
    path.chmod(0o600)
    record = read_state(path)
    assert (record.hot.rho, record.ledger.begun) == (0.0, 1)
    again = tmp_path / "again"
    with ClientState.create(
        again, client="alice", calendar=CALENDAR, budget=Budget(math.inf, math.inf)
    ) as state:
        state.begin(
            date(2026, 2, 3), PRESETS["cpp2"], Tables(shared=("goods",)), {"goods": [3, 5, 900]},
            acknowledged=None, randomness=SeededRandomness("old"),
        )  # fmt: skip
        state.expose(b"r1")
        state.answer(b"r1", {"goods": np.arange(10)}, SeededRandomness(1))
        assert again.read_bytes() == BEFORE
    with ClientState.open(path, client="alice", budget=BUDGET) as state:
        assert state.rho == state.epsilon_hot(1e-6) == 0.0
        state.spend(b"h1", 0.1)
    assert read_state(path).hot.rho == 0.1
    assert b"\xa3hot" in path.read_bytes()


def test_the_budget_is_converted_once() -> None:
    assert BUDGET.rho == rho_for(8.0, 1e-6) == PLAN.rho
    assert epsilon_of(BUDGET.rho, 1e-6) <= 8.0


def test_nothing_is_debited_where_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with create(tmp_path / "state") as state:

        def fail(*_: object, **__: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(durable, "write_whole", fail)
        with pytest.raises(Exception, match="cannot write"):
            state.spend(b"r1", 0.1)
        assert state.rho == 0.0


def test_one_round_that_the_server_remembers_alone_is_owned_up_to(tmp_path: Path) -> None:
    with create(tmp_path / "state") as state:
        assert (state.catch_up(None), state.catch_up(0)) == (0, 0)
        assert state.catch_up(1) == 1
        assert (state.ledger.begun, state.ledger.lost) == (1, 1)
