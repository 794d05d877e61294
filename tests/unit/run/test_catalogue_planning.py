"""What is planned from the statistics of a catalogue is what samples would have given."""

import numpy as np
import pytest

pytest.importorskip("torch")

from sfsl.data import SyntheticSettings, SyntheticTaobao
from sfsl.data.catalogue import Catalogue
from sfsl.data.statistics import items_of
from sfsl.errors import ParameterError
from sfsl.models import logistic_regression
from sfsl.privacy import PRESETS
from sfsl.run.planning import (
    drawn_requesters,
    largest_set,
    plan_from_statistics,
    planned_requesters,
)
from sfsl.settings.run import from_sections

CLIENTS = 60
DATA = SyntheticTaobao(SyntheticSettings().scaled(0.05, users=300), seed=2).interactions()
CATALOGUE = Catalogue.of(DATA, statistics=True)


@pytest.mark.parametrize("preset", ["cpp1", "cpp2", "cpp5"])
def test_requesters_are_those_that_samples_give(preset: str) -> None:
    """Of items: rows of the union, and how many ask for each, on average over cohorts."""
    rng, task = np.random.default_rng(1), logistic_regression(Catalogue.of_items(DATA.items))
    assert CATALOGUE.statistics is not None
    known = CATALOGUE.statistics
    items = type(known)(known.clients, known.rows, {"item": known.owners["item"]})
    from_samples, from_statistics = [], []
    for _ in range(40):
        cohort = rng.choice(DATA.clients, CLIENTS, replace=False)
        needed = [{"item": items_of(DATA, int(user))} for user in cohort]
        from_samples.append(planned_requesters(task, needed, [PRESETS[preset]] * CLIENTS, rng))
        from_statistics.append(drawn_requesters(items, CLIENTS, PRESETS[preset], rng))
    for measure in (len, np.mean, lambda some: np.mean(some == 1), lambda some: np.mean(some == 2)):
        told = [float(np.mean([measure(one) for one in some])) for some in (from_samples, from_statistics)]
        assert told[0] == pytest.approx(told[1], rel=0.1, abs=0.01)


def test_numbers_in_place_of_auto() -> None:
    config = from_sections({"round": {"clients": CLIENTS}, "run": {"seed": 3}})
    assert 2 <= plan_from_statistics(config, CATALOGUE) <= 8
    more = from_sections({"round": {"clients": CLIENTS}, "faults": {"submodel": 0.5}})
    assert plan_from_statistics(more, CATALOGUE) > plan_from_statistics(config, CATALOGUE)
    assert largest_set(CATALOGUE) == max(len(items_of(DATA, int(user))) for user in DATA.clients)


def test_cohorts_larger_than_the_data_are_planned_too() -> None:
    config = from_sections({"round": {"clients": 400}})
    assert plan_from_statistics(config, CATALOGUE) >= 2


def test_without_statistics_a_number_is_asked_for() -> None:
    for plan in (
        lambda: largest_set(Catalogue.of(DATA)),
        lambda: plan_from_statistics(from_sections({}), Catalogue.of(DATA)),
    ):
        with pytest.raises(ParameterError, match="Write a number"):
            plan()
