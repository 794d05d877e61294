"""What a client insists on: one declaration for the command, for Flower and for Python."""

import inspect
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sfsl.cli.join import join
from sfsl.errors import InputError, ParameterError, SfslError
from sfsl.privacy import PRESETS, rho_for
from sfsl.secagg import default_threshold
from sfsl.secagg.graph import opened_alone
from sfsl.settings.rounds import hot_rules
from sfsl.settings.serve import from_all_sections, least_cohort
from sfsl.settings.terms import ALLOWED, LESS, MORE, Terms


def test_its_parts() -> None:
    terms = Terms(privacy="cpp3", period_days=3, exposures=2, epsilon=5, least_cohort=9, max_rows=7)
    assert terms.index_privacy == PRESETS["cpp3"]
    assert (terms.budget.epsilon_total, terms.budget.exposures_per_period) == (5, 2)
    assert terms.calendar.days == 3
    policy = terms.policy
    assert (policy.session.min_clients, policy.max_rows, policy.max_clip) == (9, 7, 10.0)
    assert terms.roster_file is None
    assert Terms(roster="all.txt").roster_file == Path("all.txt")


def test_rounds_over_hot_rows_cost_something_finite_and_exact_sums_are_a_choice() -> None:
    policy = Terms().policy
    assert not policy.exact
    assert policy.hot is not None
    total = rho_for(8, 1e-6)
    assert policy.hot.max_rho == pytest.approx(total / 5)
    assert (policy.hot.corruption, policy.hot.max_marks, policy.hot.max_bytes) == (0.1, 1024, 32 << 20)
    assert (Terms().budget.rho, Terms().budget.rho_per_round) == pytest.approx((total, total / 5))
    assert Terms(exact_sums=True).policy.exact
    assert Terms(hot_epsilon=0).policy.hot is None
    free = Terms(hot_epsilon=math.inf)
    assert free.policy.hot is not None
    assert free.policy.hot.max_rho == free.budget.rho_per_round == math.inf


def test_what_a_server_asks_for_by_default_a_client_allows_by_default() -> None:
    run = from_all_sections({"serve": {"enrolment": "open"}}).run
    rules, limits = hot_rules(run), Terms().policy.hot
    assert limits is not None
    assert max(rules.rho, rules.survey_rho) < limits.max_rho
    assert rules.marks <= limits.max_marks
    # Also where as many have dropped out as the server puts up with.
    one, few = run.round, least_cohort(run.round.clients, "auto")
    assert Terms().least_cohort <= default_threshold(few) <= few <= one.clients
    assert rules.survey_rho + 10 * rules.rho <= Terms().budget.rho * (1 + 1e-9)


@pytest.mark.parametrize(
    ("wrong", "error", "says"),
    [
        ({"privacy": "cpp9"}, InputError, "privacy 'cpp9': there are cpp1, cpp2"),
        ({"epsilon": -1}, InputError, "^epsilon -1: a number from 0 up, or inf for no limit$"),
        ({"epsilon": math.nan}, InputError, "^epsilon nan: a number"),
        ({"max_clip": 0}, InputError, "^max-clip 0: a number above 0$"),
        ({"hot_epsilon": math.nan}, InputError, "^hot-epsilon nan: a number from 0 up, or inf"),
        ({"hot_delta": 1.0}, InputError, "^hot-delta 1: a number between 0 and 1"),
        ({"participations": 0}, ParameterError, "participations"),
        ({"corruption": 1.0}, ParameterError, "corruption"),
        ({"max_clip": math.nan}, InputError, "max-clip nan"),
        ({"least_cohort": 1}, ParameterError, "least_cohort"),
        ({"least_contributors": 0}, ParameterError, "least_contributors"),
        ({"exposures": -1}, ParameterError, "exposures"),
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, Any], error: type[SfslError], says: str) -> None:
    with pytest.raises(error, match=says):
        Terms(**wrong)


def test_every_term_is_a_flag_of_join_with_its_default() -> None:
    flags = inspect.signature(join).parameters
    for field in msgspec.structs.fields(Terms):
        assert flags[field.name].default == (
            field.default or None if field.name in ("roster", "log") else field.default
        )


def test_flowers_terms_are_the_same_and_two_more() -> None:
    pytest.importorskip("flwr")
    from sfsl.flower import Terms as NodeTerms

    def names(kind: type[msgspec.Struct]) -> set[str]:
        return {field.encode_name for field in msgspec.structs.fields(kind)}

    assert issubclass(NodeTerms, Terms)
    assert names(NodeTerms) == names(Terms) | {"state", "data"}
    assert NodeTerms().budget == Terms().budget
    assert NodeTerms(epsilon=0).budget.epsilon_total == math.inf  # no limit in a node's configuration
    assert NodeTerms(epsilon=2).budget.epsilon_total == 2


def test_contributors_as_a_plan_has_them() -> None:
    """Of the rows of a client of the paper's size, each with as few askers as may be, how many are expected
    to be opened with nobody else in them, where a tenth vanish."""
    least = Terms().least_contributors
    alone = [301 * float(opened_alone(askers, 0.1)) / askers for askers in (least - 1, least)]
    assert alone[1] < 0.05 < alone[0]


def test_every_term_says_which_way_it_is_loosened() -> None:
    about_work = {"max_megabytes", "max_rows", "patience_hours", "roster", "log"}
    ranked = [*MORE, *LESS, *ALLOWED, "privacy", "least_threshold"]
    assert len(ranked) == len(set(ranked))
    assert {field.name for field in msgspec.structs.fields(Terms)} - about_work == set(ranked)


def test_what_is_loosened_is_named_and_what_is_tightened_is_not() -> None:
    assert Terms().loosened() == []
    loose = Terms(privacy="cpp1", least_threshold=2, least_cohort=3, epsilon=math.inf, repeat_samples=True)
    assert loose.loosened() == [
        "privacy cpp1 (cpp2)",
        "epsilon inf (28)",
        "repeat-samples",
        "least-cohort 3 (50)",
        "least-threshold 2 (two thirds)",
    ]
    assert Terms(privacy="cpp3", epsilon=1, least_cohort=500, participations=50).loosened() == []
    from sfsl.flower import Terms as NodeTerms

    assert NodeTerms(epsilon=0).loosened() == ["epsilon 0 (28)"]  # no limit in a node's configuration
