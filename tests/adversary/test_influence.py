"""How far one liar moves rows, with the server's settings as they come."""

from typing import Any

import msgspec
import numpy as np
import pytest

from sfsl.settings.rounds import round_rules
from sfsl.settings.run import RunConfig
from sfsl.submodel import MemoryStore, ModelSpec, RowSet, StoreSpec, Table
from sfsl.submodel.quantize import WeightedSums
from sfsl.submodel.update import ModelSums, apply_sums

ROWS, WIDTH, CLIENTS = 400, 18, 80
MODEL = ModelSpec(tables=(Table(name="item", rows=ROWS, width=WIDTH),), dense=1)


def moved(*liars: Any, **server: Any) -> Any:
    """How far each row moves in the last of these rounds. Each is of 79 honest clients and a liar, whom the
    sums of rows contain."""
    config = msgspec.convert({"server": server, "round": {"clients": CLIENTS}}, RunConfig)
    update = round_rules(config).update
    spec = StoreSpec(model=MODEL, seed=bytes(32), row_slots=update.row_step.slots, dense_slots=2)
    store, every = MemoryStore(spec, np.zeros(1, np.float32)), RowSet(np.arange(ROWS))
    rng = np.random.default_rng(3)
    owners = rng.integers(1, 4, ROWS)
    honest = rng.normal(0, 0.05, (ROWS, WIDTH)) * np.sqrt(owners)[:, None]
    before = after = store.read_rows("item", every).values
    for liar in liars:
        values, weights = liar(honest, owners, update.rows.clip, update.rows.max_weight)
        sums = ModelSums(
            {"item": every},
            {"item": WeightedSums(values, weights, 0)},
            WeightedSums(np.zeros((1, 1)), np.zeros(1, np.int64), 0),
        )
        store.commit(apply_sums(store, update, sums, selection=b"").commit)
        before, after = after, store.read_rows("item", every).values
    return np.linalg.norm(after - before, axis=1)


def nobody(values: Any, owners: Any, clip: float, most: int) -> Any:
    return values, owners


def alone(values: Any, owners: Any, clip: float, most: int) -> Any:
    return values / np.sqrt(owners)[:, None], np.ones(ROWS, np.int64)


def everywhere(values: Any, owners: Any, clip: float, most: int) -> Any:
    """What decoding lets pass: the largest weight of all who asked, each at the clip."""
    asking = np.full(ROWS, 12 * most)
    return np.broadcast_to(asking[:, None] * clip, values.shape).copy(), asking


def at_one_row(values: Any, owners: Any, clip: float, most: int) -> Any:
    values, owners = values.copy(), owners.copy()
    values[7], owners[7] = 12 * most * clip, 12 * most
    return values, owners


def in_some_rows(values: Any, owners: Any, clip: float, most: int) -> Any:
    values, owners = values.copy(), owners.copy()
    values[::4], owners[::4] = 12 * most * clip, 12 * most
    return values, owners


@pytest.mark.parametrize("weights", ["owners", "samples"])
@pytest.mark.parametrize("liar", [everywhere, at_one_row, in_some_rows])
def test_a_liar_moves_no_row_further_than_an_honest_client_could(liar: Any, weights: str) -> None:
    honest = moved(nobody, weights=weights)
    assert moved(liar, weights=weights).max() < 1.1 * np.quantile(honest, 0.99)


def held_back(**server: Any) -> Any:
    """How far a row still moves in honest rounds after a liar was in it, of what it would."""
    return moved(at_one_row, nobody, **server)[7] / moved(nobody, nobody, **server)[7]


def test_a_row_into_which_somebody_lied_still_moves_where_samples_count() -> None:
    """AdaGrad remembers a lie. With no more than two samples of a client it is twice that of one who counts
    owners; with all of them the row stands still."""
    assert held_back(weights="samples") > 0.4 * held_back(weights="owners") > 0
    assert held_back(weights="samples", row_samples=1000) < 0.01 * held_back(weights="owners")


def test_without_the_limit_one_liar_moves_rows_nearly_twice_as_far() -> None:
    assert moved(at_one_row, max_move=0)[7] > 0.8
    assert np.mean(moved(in_some_rows, max_move=0) > 0.7) >= 0.25


def test_most_rows_of_one_honest_client_move_as_they_would_without_the_limit() -> None:
    bound, free = moved(alone), moved(alone, max_move=0)
    assert np.mean(np.isclose(bound, free)) > 0.7


@pytest.mark.parametrize("liar", [at_one_row, in_some_rows])
def test_a_liar_who_shouts_does_not_keep_others_from_moving(
    liar: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = np.median(moved(nobody))
    assert np.median(moved(liar)) > 0.3 * honest
    monkeypatch.setattr("sfsl.submodel.update.LOUDEST", np.inf)  # as it was
    assert np.median(moved(in_some_rows)) < 0.03 * honest


def configured(server: dict[str, Any], scheme: str) -> Any:
    told = {"round": {"scheme": scheme}, "privacy": {"participations": 5}, "hot": {"surveys": 1}}
    return round_rules(msgspec.convert(told | {"server": server}, RunConfig)).update.averaging.max_move


@pytest.mark.parametrize(
    ("server", "scheme"),
    [({"row_step": "add"}, "sfsl"), ({"row_step": "add"}, "hot"), ({}, "sfl"), ({"max_move": 0}, "hot")],
)
def test_where_no_limit_is_set(server: dict[str, Any], scheme: str) -> None:
    assert configured(server, scheme) is None


def test_rows_of_many_clients_have_the_limit_of_all_others() -> None:
    steps = {"row_rate": 0.45, "row_prior": 20.0}
    assert configured(steps, "hot") == configured({}, "hot") == configured(steps, "sfsl")
    assert configured({"row_rate": 0.9}, "hot") == pytest.approx(2 * configured({"row_rate": 0.45}, "hot"))
    assert configured({"row_prior": 200.0}, "hot") < configured({"row_prior": 20.0}, "hot")
    assert configured({"max_move": 0.2}, "hot") == 0.2
