"""What a client pays for rounds over hot rows with, and which messages it takes in them."""

from collections.abc import Iterator
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sfsl.client.events import About
from sfsl.client.hot import DurablePurse, HotClientRound
from sfsl.client.participant import require_scheme
from sfsl.client.round import Chance
from sfsl.errors import BudgetExhausted, Declined, InputError, Refused, WrongPhase
from sfsl.privacy import Calendar, ClientState
from sfsl.settings.terms import Terms
from sfsl.testing import SeededRandomness

TERMS = Terms(hot_epsilon=8, participations=2)
TOTAL = TERMS.budget.rho


@pytest.fixture
def state(tmp_path: Path) -> Iterator[ClientState]:
    calendar = Calendar(start=date(1970, 1, 1), days=7)
    made = ClientState.create(tmp_path / "state", client="ann", calendar=calendar, budget=TERMS.budget)
    with made:
        yield made


def test_a_purse_pays_until_it_is_empty_and_then_stays_away(state: ClientState) -> None:
    purse = DurablePurse(state, {"item": [3, 1]})
    purse.prepare(None)
    purse.afford(0.4 * TOTAL)
    assert state.rho == 0  # looking costs nothing
    purse.spend(b"1", 0.4 * TOTAL)
    purse.spend(b"2", 0.4 * TOTAL)
    assert "in 2 rounds" in purse.account()
    purse.afford(0.2 * TOTAL)
    with pytest.raises(BudgetExhausted, match="is left"):
        purse.afford(0.4 * TOTAL)
    with pytest.raises(Declined, match="is left"):
        purse.prepare(None)
    assert state.hot_rounds == 2
    assert purse.rests_until is None
    assert {name: rows.tolist() for name, rows in purse.owned().items()} == {"item": [3, 1]}


def test_a_round_is_paid_for_once(state: ClientState) -> None:
    purse = DurablePurse(state, {})
    purse.spend(b"1", 0.1 * TOTAL)
    with pytest.raises(Refused, match="already"):
        purse.spend(b"1", 0.1 * TOTAL)
    assert state.rho == 0.1 * TOTAL


def test_a_purse_owns_up_to_what_the_server_remembers(state: ClientState) -> None:
    purse = DurablePurse(state, {})
    purse.prepare(1)
    assert state.rho == pytest.approx(TOTAL / 2)  # the most that a round may cost
    assert state.ledger.begun == 1
    purse.prepare(1)
    assert state.hot_rounds == 1


def test_messages_of_other_rounds_are_not_taken() -> None:
    nobody: Any = SimpleNamespace()
    made = HotClientRound(nobody, nobody, nobody, nobody, Chance(SeededRandomness("")))
    for message in (SimpleNamespace(), "text"):
        with pytest.raises(WrongPhase, match="no server sends"):
            made.step(message)  # type: ignore[arg-type]


ABOUT = {"protocol": 1, "deployment": "0" * 32, "model": "0" * 64, "round": 0, "time": 0}


@pytest.mark.parametrize(
    ("scheme", "terms", "says"),
    [
        ("sfsl", {}, "--exact-sums"),
        ("hot", {"hot_epsilon": 0}, "--hot-epsilon 0"),
        ("o\x1bther", {"exact_sums": True}, r"does not know the scheme 'o\?ther'"),
    ],
)
def test_a_server_whose_rounds_its_owner_has_not_allowed(
    scheme: str, terms: dict[str, Any], says: str
) -> None:
    with pytest.raises(InputError, match=says):
        require_scheme(About(**ABOUT, scheme=scheme), Terms(**terms).policy)


def test_a_server_whose_rounds_its_owner_has_allowed() -> None:
    require_scheme(About(**ABOUT), Terms(exact_sums=True).policy)  # a server of before names no scheme
    require_scheme(About(**ABOUT, scheme="hot"), Terms().policy)
