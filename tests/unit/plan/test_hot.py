"""What rounds over hot rows are predicted to cost, and when a fleet is too small for them."""

import json
import math

import numpy as np
import pytest
from typer.testing import CliRunner

from sfsl.cli import app
from sfsl.errors import ParameterError
from sfsl.plan.hot import HotPlan, Owners, owners_assumed, plan_hot_rounds
from sfsl.rounds.params import HotRules
from sfsl.submodel import ModelSpec, Table

MODEL = ModelSpec(
    tables=(
        Table(name="item", rows=20_000, width=8),
        Table(name="kind", rows=50, width=8, kind="derived", source="item"),
    ),
    dense=2000,
)


def planned(fleet: int = 50_000, clients: int = 500, epsilon: float = 8.0, **more: float) -> HotPlan:
    owners = {"item": owners_assumed(20_000, fleet, 100)}
    surveys = math.ceil(fleet / clients)
    rules = HotRules(rho=math.inf, survey_rho=math.inf, surveys=surveys, megabytes=more.pop("megabytes", 0.4))
    return plan_hot_rounds(
        MODEL,
        owners,
        fleet=fleet,
        clients=clients,
        per_client=100,
        epsilon=epsilon,
        delta=1e-6,
        participations=int(more.pop("participations", 5)),
        rules=rules,
    )


def test_assumed_owners_are_as_many_as_clients_have_rows() -> None:
    found = owners_assumed(1000, 300, 50)
    assert found.touches == pytest.approx(300 * 50, rel=1e-6)
    assert found.owners.max() == 300
    assert (np.diff(found.owners) <= 0).all()


def test_a_large_fleet_learns_and_a_small_one_is_told_why_it_cannot() -> None:
    large, small = planned(), planned(fleet=2000, clients=100)
    assert large.large_enough, large.problems
    assert large.rounds == 500
    assert not small.large_enough
    assert any("noise" in one and "clients a round" in one for one in small.problems)


def test_two_thousand_users_are_too_few_however_they_are_divided() -> None:
    for clients in (50, 100, 250, 400, 1000, 2000):
        assert not planned(fleet=2000, clients=clients).large_enough


def test_without_noise_every_row_that_fits_is_hot() -> None:
    found = planned(epsilon=math.inf)
    assert found.noise_share == 0
    assert found.noise_seconds == 0
    assert math.isinf(found.epsilon_round)
    assert found.hot_rows["kind"] == 50
    assert found.owners_needed == 1


def test_more_privacy_costs_hot_rows_and_adds_noise() -> None:
    strict, lax = planned(epsilon=1), planned(epsilon=16)
    assert strict.noise_share > 3 * lax.noise_share
    assert strict.owners_needed > 3 * lax.owners_needed
    assert strict.hot_rows["item"] < lax.hot_rows["item"]
    assert strict.covered["item"] < lax.covered["item"] <= 1


def test_hot_rows_fit_the_bytes_they_are_given() -> None:
    found = planned(epsilon=math.inf, megabytes=0.2)
    assert found.bytes_up + found.bytes_down < 0.35 * 2**20  # beside keys and shares of 499 others
    with pytest.raises(ParameterError, match="no room"):
        planned(megabytes=0.01)


def test_a_round_larger_than_its_fleet_is_refused() -> None:
    with pytest.raises(ParameterError, match="out of a fleet"):
        planned(fleet=100, clients=101)


def test_rows_are_counted_by_how_many_own_them() -> None:
    half = Owners(np.array([10.0, 1000.0]), np.array([90.0, 10.0]))
    rules = HotRules(rho=math.inf, survey_rho=math.inf, surveys=10)
    found = plan_hot_rounds(
        MODEL,
        {"item": half},
        fleet=1000,
        clients=100,
        per_client=50,
        epsilon=8,
        delta=1e-6,
        participations=5,
        rules=rules,
    )
    assert found.hot_rows["item"] == pytest.approx(10, abs=0.5)  # everybody has these, ten have the others
    assert found.covered["item"] == pytest.approx(10_000 / 10_900, abs=0.05)


def test_the_command_plans_from_figures_and_from_a_file() -> None:
    shown = CliRunner().invoke(app, ["plan", "--scheme", "hot", "--clients", "5000", "--json"])
    assert shown.exit_code == 0, shown.output
    found = json.loads(shown.stdout)
    assert found["large_enough"] is True
    assert found["epsilon"] == 8
    small = CliRunner().invoke(app, ["plan", "--scheme", "hot", "--clients", "100", "--fleet", "2000"])
    assert "too small" in small.stdout
    wrong = CliRunner().invoke(app, ["plan", "--scheme", "cold"])
    assert wrong.exit_code != 0
