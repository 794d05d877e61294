"""Training that goes astray on a device: it is left out, spoils nothing, and is never committed."""

import numpy as np
import pytest
import torch
from torch import nn

from sfsl.data.catalogue import Catalogue
from sfsl.data.interactions import Interactions
from sfsl.errors import NotFinite
from sfsl.models import din, logistic_regression
from sfsl.privacy import PRESETS
from sfsl.run.fleet import Interacted
from sfsl.training import stack
from sfsl_research.resident import ResidentClients
from sfsl_research.resident.compact import compact
from sfsl_research.resident.rounds import ResidentRounds
from sfsl_research.resident.scoring import ResidentTest
from small_fleet import CLIENTS, DEVICES, NAMES, engine_of, interactions, model_of, settings_of, store_of

COHORT = 4


@pytest.fixture(scope="module")
def data() -> Interactions:
    return interactions()


@pytest.fixture(scope="module", params=DEVICES)
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


@pytest.fixture(params=["looked up", "multiplied"])
def fetching(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU fetches rows by a product, in which NaN in any row is NaN in all."""
    made = stack._Fetched.__init__

    def with_product(self: stack._Fetched, table: nn.Embedding, product: bool) -> None:
        made(self, table, product=True)

    if request.param == "multiplied":
        monkeypatch.setattr(stack._Fetched, "__init__", with_product)


@pytest.mark.usefixtures("fetching")
def test_a_client_that_diverged_spoils_nothing_for_the_next(data: Interactions, device: torch.device) -> None:
    """Rounds after it are those of an engine that never saw it."""
    task = din(Catalogue.of(data), seed=1)
    settings = settings_of("cpp2", round={"clients": COHORT}, training={"batch_size": 2})
    fleet, model = ResidentClients(compact(data), device), model_of(task, settings, device)
    engine = engine_of(fleet, [model], settings, ["cpp2"], COHORT)
    rng = np.random.default_rng(0)
    chosen = rng.choice(CLIENTS, COHORT, replace=False)
    astray = int(chosen[0])
    own = model.tables["user"][astray].clone()
    model.tables["user"][astray] = float("inf")
    (figures,) = engine.run(1, chosen)
    model.tables["user"][astray] = own
    assert int(figures.diverged) == 1
    assert 0 < int(figures.samples) < fleet.host.samples[chosen].sum()
    assert all(np.isfinite(one).all() for one in model.state().values())

    other = model_of(task, settings, device)
    other.restore({name: one.copy() for name, one in model.state().items()})
    fresh = engine_of(fleet, [other], settings, ["cpp2"], COHORT)
    for number in range(2, 8):
        chosen = rng.choice(CLIENTS, COHORT, replace=False)
        both = [one.run(number, chosen)[0] for one in (engine, fresh)]
        assert [int(one.diverged) for one in both] == [0, 0]
    tolerance = 4 * settings.rules.update.dense.unit + 1e-5  # a GPU adds up in another order
    for name, one in model.state().items():
        np.testing.assert_allclose(one, other.state()[name], rtol=0, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("part", ["rows", "dense"])
def test_numbers_that_are_not_finite_are_not_committed(
    data: Interactions, device: torch.device, part: str
) -> None:
    task = logistic_regression(Catalogue.of(data))
    rounds = ResidentRounds(
        task,
        ResidentClients(compact(data), device),
        {name: place for place, name in enumerate(NAMES)},
        store_of(task),
        settings_of("cpp1"),
        PRESETS["cpp1"],
        {"test": ResidentTest(task, Interacted(data, 50), device, most=10, seed=0)},
        clients=CLIENTS,
        seed=0,
    )
    spoiled = rounds._model.tables["user"][0] if part == "rows" else rounds._model.dense
    spoiled[0] = float("nan")
    with pytest.raises(NotFinite, match="round 1 made numbers that are not finite"):
        rounds.run(NAMES)
