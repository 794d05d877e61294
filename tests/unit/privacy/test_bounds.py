"""Limits of a client's privacy at their boundary and beyond, and what holds where nothing is said."""

import math
from datetime import date
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from sfsl.crypto.secret import Secret, digest
from sfsl.errors import BudgetExhausted, InputError, ParameterError, TooFewClients
from sfsl.privacy import IndexPrivacy, owner_distribution
from sfsl.privacy import accounting as costs
from sfsl.privacy.ledger import (
    Budget,
    Calendar,
    ClosedPeriod,
    HotLedger,
    Ledger,
    PeriodSelection,
    choose_uniformly,
)
from sfsl.privacy.noise import DiscreteGaussian
from sfsl.privacy.parameters import (
    LEAST,
    PRESETS,
    Workload,
    epsilon_after,
    evidence,
    frontier,
    tune,
)
from sfsl.privacy.response import Decoys, Perturber, Tables, keyed_words
from sfsl.privacy.state import ClientState, freeze
from sfsl.testing import SeededRandomness

INF = math.inf
BUDGET = Budget(epsilon_per_period=2.0, epsilon_total=5.0)
PLAIN = IndexPrivacy(0.9, 0.2, 1, 0)


# -- budgets -------------------------------------------------------------------------------------------


def test_a_budget_where_nothing_is_said() -> None:
    assert (BUDGET.exposures_per_period, BUDGET.epsilon_hot, BUDGET.delta_hot) == (1, 0.0, 1e-6)
    assert (BUDGET.rho_per_round, BUDGET.rho) == (INF, 0.0)
    nothing = Budget(0.0, 0.0, 0, 0.0, 0.5, 0.0)
    assert nothing.exposures_per_period == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"epsilon_per_period": -0.1},
        {"epsilon_total": -0.1},
        {"epsilon_hot": -0.1},
        {"rho_per_round": -0.1},
        {"epsilon_total": math.nan},
        {"delta_hot": 0.0},
        {"delta_hot": 1.0},
        {"exposures_per_period": -1},
        {"exposures_per_period": True},
        {"exposures_per_period": 1.0},
    ],
)
def test_budgets_one_beyond(wrong: dict[str, Any]) -> None:
    with pytest.raises(ParameterError):
        Budget(**{"epsilon_per_period": 1.0, "epsilon_total": 1.0} | wrong)


def test_a_ledger_counts_to_the_end_of_its_budget_and_no_further() -> None:
    once = PLAIN.epsilon(1)
    ledger = Ledger()
    ledger.check_round(Budget(once, once), PLAIN)
    for short, says in (
        (Budget(once - 1e-6, INF), "in this period"),
        (Budget(INF, once - 1e-6), "over all periods"),
        (Budget(INF, INF, 0), "0 of 0 exposures"),
    ):
        with pytest.raises(BudgetExhausted, match=says):
            ledger.check_round(short, PLAIN)
    ledger = ledger.after_exposure().after_answer(PLAIN)
    assert (ledger.exposures, ledger.answered, ledger.begun) == (1, 1, 1)
    assert ledger.epsilon(PLAIN.p1, PLAIN.p2) == pytest.approx(once)
    with pytest.raises(BudgetExhausted, match="1 of 1 exposures"):
        ledger.check_round(Budget(INF, INF), PLAIN)
    ledger.check_round(Budget(INF, INF, 2), PLAIN)
    closed = ledger.after_period(4, PLAIN.p1, PLAIN.p2)
    assert closed.closed == (ClosedPeriod(4, 1, 1, pytest.approx(once)),)
    assert (closed.exposures, closed.answered, closed.begun, closed.yes_evidence) == (0, 0, 1, 0.0)
    assert closed.epsilon_before == pytest.approx(once)
    with pytest.raises(BudgetExhausted, match="over all periods"):
        closed.check_answer(Budget(INF, 2 * once - 1e-6), PLAIN)
    closed.check_answer(Budget(INF, 2 * once), PLAIN)


def test_rounds_that_only_the_server_remembers() -> None:
    lost = Ledger(begun=2, lost=1, lost_epsilon=0.5).after_loss(5, 0.25)
    assert (lost.begun, lost.lost, lost.lost_epsilon) == (5, 4, 0.5 + 3 * 0.25)
    assert lost.epsilon_before == 1.25
    assert lost.after_hot_round().begun == 6
    kept = lost.after_period(1, 0.9, 0.2)
    assert (kept.begun, kept.lost, kept.lost_epsilon) == (5, 4, 1.25)
    hot = HotLedger(rho=0.5, rounds=2, lost=1, last=b"x")
    budget = Budget(1.0, 1.0, epsilon_hot=INF, rho_per_round=0.25)
    assert hot.after_loss(2, budget) == HotLedger(1.0, 4, 3, b"x")
    assert hot.after_loss(2, Budget(1.0, 1.0)) is hot
    assert hot.after_round(b"y", 0.1) == HotLedger(0.6, 3, 1, b"y")


def test_noisy_rounds_to_the_end_of_their_budget() -> None:
    budget = Budget(1.0, 1.0, epsilon_hot=2.0, rho_per_round=0.01)
    HotLedger().check(budget, 0.01)
    with pytest.raises(BudgetExhausted, match="sits it out"):
        HotLedger().check(budget, 0.0101)
    spent = HotLedger(rho=budget.rho - 0.01)
    spent.check(budget, 0.01)
    with pytest.raises(BudgetExhausted, match="more than is left"):
        HotLedger(rho=budget.rho - 0.0099).check(budget, 0.01)
    with pytest.raises(InputError, match="more than nothing"):
        HotLedger().check(budget, 0.0)
    with pytest.raises(BudgetExhausted, match="no hot rounds"):
        HotLedger().check(Budget(1.0, 1.0), 0.01)


# -- periods and selections ----------------------------------------------------------------------------


def test_periods_at_their_first_and_last_day() -> None:
    calendar = Calendar(date(2026, 1, 1), 7)
    days = [date(2026, 1, 1), date(2026, 1, 7), date(2026, 1, 8)]
    assert [calendar.period(day) for day in days] == [0, 0, 1]
    assert [calendar.first_day(number) for number in (0, 1)] == [days[0], days[2]]
    with pytest.raises(ParameterError, match="check the clock"):
        calendar.period(date(2025, 12, 31))
    assert Calendar(date(2026, 1, 1), 1).period(date(2026, 1, 2)) == 1
    for wrong in (0, True, 1.0):
        with pytest.raises(ParameterError, match="from 1 up"):
            Calendar(date(2026, 1, 1), wrong)  # type: ignore[arg-type]


def test_a_selection_takes_all_that_are_left_and_no_more() -> None:
    chance = SeededRandomness("selection")
    first, after = PeriodSelection().choose(["a", "b", "c"], 2, 0, chance)
    assert (len(first), after.period, after.invited) == (2, 0, frozenset(first))
    with pytest.raises(TooFewClients, match="2 clients wanted, but only 1"):
        after.choose(["a", "b", "c"], 2, 0, chance)
    rest, done = after.choose(["a", "b", "c"], 1, 0, chance)
    assert {*first, *rest} == done.invited == {"a", "b", "c"}
    anew, later = done.choose(["a", "b", "c"], 3, 1, chance)
    assert (anew, later.period) == (("a", "b", "c"), 1)
    with pytest.raises(InputError, match="period 0 is over"):
        later.choose(["a"], 1, 0, chance)
    assert choose_uniformly(["a", "b"], 0, chance) == ()
    assert choose_uniformly(["b", "a", "a"], 2, chance) == ("a", "b")
    for wrong in (-1, 3):
        with pytest.raises(InputError, match=f"cannot choose {wrong} of 2"):
            choose_uniformly(["a", "b"], wrong, chance)


# -- what noisy sums cost ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "fits", "beyond", "says"),
    [
        (lambda x: costs.epsilon_of(x, 1e-6), 0.0, -1e-9, "rho is a number from 0 up"),
        (lambda x: costs.rho_for(x, 1e-6), 0.0, -1e-9, "epsilon is a number from 0 up"),
        (lambda x: costs.epsilon_of(0.0, x), 0.999, 1.0, "delta lies between"),
        (lambda x: costs.rho_for(0.0, x), 1e-300, 0.0, "delta lies between"),
        (costs.multiplier, 1.1e-12, 1e-12, "costs more than 1e-12"),
        (lambda x: costs.rho_of(1.0, x, 1), 2.5, 2.49, "from 2.5"),
        (lambda x: costs.rho_of(1.0, x, 1), 2.0**24, 2.0**24 + 1, "from 2.5"),
        (lambda x: costs.rho_of(x, 3.0, 1), 1e-9, 0.0, "sensitivity"),
        (lambda x: costs.rho_of(x, 3.0, 1), 1e300, INF, "sensitivity|too large"),
        (lambda x: costs.rho_of(1.0, 3.0, x), 1, 0, "honest clients"),
        (lambda x: costs.rho_of(1.0, 3.0, x), 100_000, 100_001, "honest clients"),
        (lambda x: costs.honest_survivors(5, 10, x), 0.0, -0.1, "share of corrupt"),
        (lambda x: costs.honest_survivors(10, 10, x), 0.99, 1.0, "share of corrupt"),
        (lambda x: costs.honest_survivors(x, 10, 0.0), 1, 0, "from 1 to all 10"),
        (lambda x: costs.honest_survivors(x, 10, 0.0), 10, 11, "from 1 to all 10"),
        (lambda x: costs.honest_survivors(x, 10, 0.3), 4, 3, "none that is honest"),
        (lambda x: costs.plan_noise(x, 1e-6, 1), 1e-2, 0.0, "epsilon is above 0"),
        (lambda x: costs.plan_noise(1.0, 1e-6, x), 1, 0, "at least once"),
        (lambda x: costs.plan_noise(1.0, 1e-6, 1, x), 0, -1, "0 surveys or more"),
        (lambda x: costs.plan_noise(1.0, 1e-6, 1, 1, x), 0.999, 1.0, "share between"),
        (lambda x: costs.plan_noise(1.0, 1e-6, 1, 1, x), 0.001, 0.0, "share between"),
        (DiscreteGaussian, 0.25, 0.2499, "noise has a deviation"),
        (DiscreteGaussian, 2.0**24, 2.0**24 + 1, "noise has a deviation"),
    ],
)
def test_costs_at_their_bounds(call: Any, fits: Any, beyond: Any, says: str) -> None:
    if fits != 1e300:  # its square is no number
        call(fits)
    with pytest.raises(ParameterError, match=says):
        call(beyond)


def test_what_a_round_costs_by_hand() -> None:
    assert costs.multiplier(0.5 + 1e-12) == pytest.approx(1.0)
    assert costs.rho_of(6.0, 3.0, 2) == pytest.approx(36 / (2 * 2 * 9) + 1e-12)
    assert costs.rho_of(6.0, 0, 2) == INF
    assert costs.deviation_for(INF, 1.0, 1) == 0.0
    assert costs.deviation_for(0.5, 12.0, 4) == pytest.approx(6.0)
    with pytest.raises(ParameterError, match="1/3 of the present"):
        costs.deviation_for(0.5, 1.0, 1)
    with pytest.raises(ParameterError, match="at least 2 times"):
        costs.deviation_for(0.5, 2.0**24 * 1.5, 1)
    plan = costs.plan_noise(1.0, 1e-6, 4, surveys=2)
    assert (plan.rho_survey, plan.rho_train) == pytest.approx((plan.rho * 0.1 / 2, plan.rho * 0.9 / 4))
    assert (plan.rho_per_round("survey"), plan.rho_per_round("train")) == (plan.rho_survey, plan.rho_train)
    assert plan.deviation("train", 100.0, 9) == costs.deviation_for(plan.rho_train, 100.0, 9)
    assert costs.plan_noise(1.0, 1e-6, 4).surveys == 1


# -- four probabilities --------------------------------------------------------------------------------


def test_evidence_and_epsilon_by_hand() -> None:
    assert evidence(0.5, 0.5) == (0.0, 0.0)
    assert evidence(0.8, 0.2) == pytest.approx((math.log(0.25), math.log(0.25)))
    assert evidence(1.0, 0.0) == (-INF, -INF)
    assert epsilon_after(0.9, 0.2, -INF, -INF) == pytest.approx(math.log(0.8 / 0.1))
    assert epsilon_after(0.9, 0.9, -INF, -INF) == epsilon_after(0.9, 0.2, 0.0, 0.0) == 0.0
    assert epsilon_after(0.9, 0.2, -1.0, 0.0) == pytest.approx(
        math.log((0.9 + 0.1 / math.e) / (0.2 + 0.8 / math.e))
    )


def test_probabilities_at_their_bounds() -> None:
    for fits in ((LEAST, 0, 1, 0), (1 - LEAST, 0, 1, 0), (0.5, 0.5, 0.5, 0.5), (1, LEAST, 1, 1)):
        IndexPrivacy(*fits)
    for wrong in ((LEAST / 2, 0, 1, 0), (1 - LEAST / 2, 0, 1, 0), (0.4, 0.5, 1, 0), (1, 0, 0.4, 0.5)):
        with pytest.raises(ParameterError):
            IndexPrivacy(*wrong)
    assert IndexPrivacy(0.9, 0.2, 0.8, 0.3).p5 == pytest.approx(0.9 * 0.8 + 0.1 * 0.3)
    assert IndexPrivacy(0.9, 0.2, 0.8, 0.3).p6 == pytest.approx(0.2 * 0.8 + 0.8 * 0.3)


WORK = Workload(cohort=10, set_size=20, row_width=3, single_owner=0.5, mean_owners=2.0)


@pytest.mark.parametrize(
    ("wish", "says"),
    [
        ({"epsilon": -0.1}, "epsilon is a number"),
        ({"p5": 0.0}, "p5 = 0.0 must be above 0"),
        ({"p5": 1.01}, "must be above 0 and at most 1"),
        ({"flip": -0.01}, "flip"),
        ({"flip": 0.5}, "flip"),
        ({"rounds": 0}, "starts at 1"),
        ({"p5": 0.95, "flip": 0.1}, "p5 lies between 0.1 and 0.9"),
        ({"p5": 0.05, "flip": 0.1}, "p5 lies between 0.1 and 0.9"),
    ],
)
def test_wishes_that_cannot_be(wish: dict[str, Any], says: str) -> None:
    usual: dict[str, Any] = {"epsilon": 1.0, "rounds": None, "p5": 0.8, "workload": WORK}
    with pytest.raises(ParameterError, match=says):
        tune(**usual | wish)


def test_the_cheapest_parameters_spend_all_of_epsilon() -> None:
    for rounds, flip in ((None, 0.0), (1, 0.0), (1, 0.1), (3, 0.2)):
        found = tune(1.0, rounds, 0.75, WORK, flip=flip)
        assert found.epsilon == pytest.approx(1.0)
        assert found.privacy.p5 == pytest.approx(0.75)
        assert (found.privacy.p3, found.privacy.p4) == (1 - flip, flip)
        assert found.rows == pytest.approx(WORK.rows(found.privacy))
        assert found.bytes_per_round == pytest.approx(WORK.bytes_per_round(found.privacy))
        assert found.events == found.privacy.events(WORK.owners, 10)
    free = tune(INF, None, 1.0, WORK)
    assert free.privacy == IndexPrivacy(1, 0, 1, 0)
    nothing = tune(0.0, None, 0.5, WORK)
    assert (nothing.privacy.p1, nothing.privacy.p2) == (0.5, 0.5)
    assert len(frontier([1.0], None, [0.1, 0.9], WORK, flip=0.1)) == 2
    assert [
        one.epsilon for one in frontier([0.5, 1.0], None, [0.09, 0.5, 0.91], WORK, flip=0.1)
    ] == pytest.approx([0.5, 1.0])


def test_a_workload_is_the_papers_unless_said() -> None:
    usual = Workload()
    assert (usual.cohort, usual.set_size, usual.row_width) == (100, 301, 18)
    assert (usual.single_owner, usual.mean_owners) == (0.8673, 1.17)


def test_owners_at_their_bounds() -> None:
    privacy = PRESETS["cpp2"]
    assert privacy.events(3, 3).p8 == pytest.approx(0.0, abs=1e-12)
    for owners, cohort in ((4, 3), (-1, 3), (0, 0)):
        with pytest.raises(ParameterError):
            privacy.events(owners, cohort)
    assert owner_distribution(0.5, 1.5, 2) == pytest.approx({1: 0.5, 2: 0.5})
    assert owner_distribution(0.0, 2.0, 2) == pytest.approx({1: 0.0, 2: 1.0})
    for single, mean in ((0.5, 1.49), (0.5, 1.51)):
        with pytest.raises(ParameterError, match="owners per row"):
            owner_distribution(single, mean, 2)
    with pytest.raises(ParameterError, match="the mean is 1"):
        owner_distribution(0.5, 1.5, 1)


# -- answers -------------------------------------------------------------------------------------------


def test_decoys_at_their_bounds() -> None:
    decoys = Decoys(3, {"a": 4})
    assert decoys.rate("a") == pytest.approx(1 - 0.75**3)
    assert decoys.epsilon_owned(PLAIN, "a") == pytest.approx(math.log(0.9 / (0.2 * (1 - 0.75**3))))
    assert decoys.epsilon_owned(IndexPrivacy(0, 0, 1, 0), "a") == 0.0
    assert Decoys(0, {"a": 1}).epsilon_owned(PLAIN, "a") == INF
    Decoys(0, {"a": 2**63 - 1})
    for draws, rows in ((-1, 1), (0, 0), (0, 2**63)):
        with pytest.raises(ParameterError, match="decoys need"):
            Decoys(draws, {"a": rows})
    with pytest.raises(ParameterError, match="decoys need"):
        Decoys(0, {"a": 5, "b": 0})  # one of them is enough
    tables = Tables(("a",))
    with pytest.raises(InputError, match="the number of its rows"):
        Perturber(Secret(bytes(32)), PLAIN, tables, {"a": [1]}).union_input(Decoys(1, {"b": 1}))
    for size in (31, 33):
        with pytest.raises(ParameterError, match=f"not {size}"):
            Perturber(Secret(bytes(size)), PLAIN, tables, {"a": [1]})


def test_decoys_are_drawn_from_the_whole_table_and_from_nothing_else() -> None:
    always = Perturber(Secret(bytes(32)), IndexPrivacy(1, 1, 1, 1), Tables(("a",)), {"a": [7]})
    found = always.union_input(Decoys(200, {"a": 5}))["a"]
    assert found.tolist() == [0, 1, 2, 3, 4, 7]
    assert always.union_input(Decoys(0, {"a": 5}))["a"].tolist() == [7]
    words = keyed_words(Secret(bytes(32)), np.array([0, 1, 2**40]))
    assert (words.dtype, len(set(words.tolist()))) == (np.uint64, 3)


def test_what_a_server_may_remember(tmp_path: Path) -> None:
    calendar = Calendar(date(2026, 1, 1), 7)
    with ClientState.create(tmp_path / "s", client="x" * 128, calendar=calendar, budget=BUDGET) as state:
        assert state.catch_up(None) == state.catch_up(0) == 0
        for wrong in (-1, 2**63):
            with pytest.raises(InputError, match=f"cannot remember {wrong}"):
                state.catch_up(wrong)
        assert (state.rho, state.hot_rounds, state.epsilon_total) == (0.0, 0, 0.0)
        assert state.next_period is None
        assert not state.going_on(date(2026, 1, 1))
        assert state.catch_up(2) == 2
        assert (state.ledger.begun, state.ledger.lost, state.ledger.lost_epsilon) == (2, 2, 4.0)
        assert state.hot_rounds == 0
    for name in ("", "x" * 129):
        with pytest.raises(InputError, match="1 to 128"):
            ClientState.create(tmp_path / "other", client=name, calendar=calendar, budget=BUDGET)


def test_a_state_knows_until_when_it_goes_on(tmp_path: Path) -> None:
    calendar, chance = Calendar(date(2026, 1, 1), 7), SeededRandomness("state")
    with ClientState.create(tmp_path / "s", client="a", calendar=calendar, budget=Budget(3.0, 5.0)) as state:
        begin = {"acknowledged": 0, "randomness": chance}
        state.begin(date(2026, 1, 9), PLAIN, Tables(("a",)), {"a": [1]}, **begin)  # type: ignore[arg-type]
        assert (state.period, state.next_period) == (None, date(2026, 1, 15))
        state.expose(b"one")
        assert (state.period, state.next_period) == (1, date(2026, 1, 15))
        days = (date(2026, 1, 1), date(2026, 1, 14), date(2026, 1, 15))
        assert [state.going_on(day) for day in days] == [True, True, False]
        assert state.epsilon_period == 0.0
        state.answer(b"one", {"a": [1, 2]}, chance)
        assert state.epsilon_period == state.epsilon_total == pytest.approx(PLAIN.epsilon(1))
    assert msgspec.structs.replace(state.ledger, begun=0).exposures == 1


def test_a_period_fixes_all_that_answers_hang_on() -> None:
    def fixed(**changes: Any) -> tuple[bytes, bytes]:
        given: dict[str, Any] = {"key": bytes(32), "real": {"a": [3, 1], "b": []}, "decoys": None} | changes
        made = freeze(1, given["key"], PLAIN, Tables(("a", "b")), given["real"], given["decoys"])
        return made.snapshot, made.decoys

    decoys = [None, Decoys(3, {"a": 9}), Decoys(4, {"a": 9}), Decoys(3, {"a": 8}), Decoys(3, {"b": 9})]
    assert len({fixed(decoys=one)[1] for one in decoys}) == 5
    assert fixed(decoys=Decoys(3, {"a": 9, "b": 5})) == fixed(decoys=Decoys(3, {"b": 5, "a": 9}))
    assert fixed(real={"b": [], "a": [1, 3, 3]}) == fixed()
    assert (
        len(
            {fixed(real=one)[0] for one in ({"a": [1], "b": [3]}, {"a": [1, 3], "b": []}, {"a": [], "b": []})}
        )
        == 3
    )
    assert fixed(key=bytes([1]) * 32)[0] != fixed()[0]


def test_what_a_period_fixes_is_known_again_by_later_versions() -> None:
    """Its digests are on disk: another form of the same would bar every client for a period."""
    made = freeze(
        1, bytes(32), PLAIN, Tables(("a", "b")), {"a": [3, 1], "b": []}, Decoys(3, {"b": 5, "a": 9})
    )
    key, one, three, five, nine = bytes(32), *(number.to_bytes(8, "big") for number in (1, 3, 5, 9))
    assert made.snapshot == digest("period-snapshot", key, b"a", one + three, b"b", b"")
    assert made.decoys == digest("period-decoys", key, three, b"a", nine, b"b", five)
    assert (made.number, made.key, made.p1, made.p2, made.barred) == (1, key, 0.9, 0.2, False)
