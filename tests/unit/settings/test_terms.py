"""What a client insists on: one declaration for the command, for Flower and for Python."""

import inspect
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sfsl.cli.join import join
from sfsl.errors import InputError, ParameterError, SfslError
from sfsl.privacy import PRESETS
from sfsl.settings.terms import Terms


def test_its_parts() -> None:
    terms = Terms(privacy="cpp3", period_days=3, exposures=2, epsilon=5, least_cohort=9, max_rows=7)
    assert terms.index_privacy == PRESETS["cpp3"]
    assert (terms.budget.epsilon_total, terms.budget.exposures_per_period) == (5, 2)
    assert terms.calendar.days == 3
    policy = terms.policy
    assert (policy.session.min_clients, policy.max_rows, policy.max_clip) == (9, 7, 10.0)
    assert terms.roster_file is None
    assert Terms(roster="all.txt").roster_file == Path("all.txt")


@pytest.mark.parametrize(
    ("wrong", "error", "says"),
    [
        ({"privacy": "cpp9"}, InputError, "privacy 'cpp9': there are cpp1, cpp2"),
        ({"epsilon": -1}, InputError, "^epsilon -1: a number from 0 up; without it there is no limit$"),
        ({"epsilon": math.nan}, InputError, "^epsilon nan: a number"),
        ({"max_clip": 0}, InputError, "^max-clip 0: a number above 0$"),
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
            field.default or None if field.name == "roster" else field.default
        )


def test_flowers_terms_are_the_same_and_two_more() -> None:
    pytest.importorskip("flwr")
    from sfsl.flower import Terms as NodeTerms

    def names(kind: type[msgspec.Struct]) -> set[str]:
        return {field.encode_name for field in msgspec.structs.fields(kind)}

    assert issubclass(NodeTerms, Terms)
    assert names(NodeTerms) == names(Terms) | {"state", "data"}
    assert NodeTerms().budget == Terms().budget  # no limit, which is 0 in a node's configuration
    assert NodeTerms(epsilon=2).budget.epsilon_total == 2
