"""Held-out samples are scored with personal rows that are rebuilt for it, whoever was in a round."""

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from sfsl.carriers.local.engine import LocalEngine
from sfsl.client.device import Device, DeviceTrainer
from sfsl.data import hold_out_last
from sfsl.data.catalogue import Catalogue
from sfsl.models import din
from sfsl.rounds import Download, ScoreBins
from sfsl.run.fleet import Interacted
from sfsl.simulate import rebuilt
from sfsl.simulate.engine import score_pool
from sfsl.simulate.population import Simulation
from sfsl.simulate.rebuilt import draw_tested, rebuild_personal
from sfsl.submodel import RowBlock, RowSet
from sfsl.training import LocalSettings
from small_fleet import CLIENTS, NAMES, interactions, settings_of, store_of

torch.set_num_threads(1)

REBUILD = {"batch_size": 8, "rebuild": 0.5, "rebuild_rate": 20.0, "rebuild_epochs": 3, "learning_rate": 0.3}
LOCAL = LocalSettings(clip=0.1, **REBUILD)  # type: ignore[arg-type]
TRAIN, TEST = hold_out_last(interactions(), 0.3)
TASK = din(Catalogue.of(TRAIN), seed=1)
DEVICES = {name: Device(TASK, TRAIN.client(user), TEST.client(user)) for user, name in enumerate(NAMES)}


def simulation() -> Simulation:
    return Simulation(TASK, DEVICES, store_of(TASK), settings_of("cpp5", training=REBUILD), seed=0)


def test_a_client_that_was_in_no_round_has_a_row_to_be_scored_with() -> None:
    world = simulation()
    engine = LocalEngine(world)
    engine.pools = {"test": Interacted(TEST, 50)}
    last = CLIENTS - 1
    for _ in range(2):
        world.store.commit(engine.run(NAMES[:last]).commit)
    rows, values = engine.rebuilt()["user"]  # type: ignore[index]
    assert rows.tolist() == list(range(CLIENTS))
    for own, name in zip(values, NAMES, strict=True):  # a sample without a history trains nothing
        device = DEVICES[name]
        assert own.any() == bool(len(device.train.keep(device.needed)))
    assert values[last].any()
    scored = engine.scored("test")
    assert last in scored.users  # type: ignore[operator]
    # What the store has of anyone does not count.
    every = RowSet(np.arange(CLIENTS))
    block = world.store.read_rows("user", every)
    changed = RowBlock(every, block.values + 3, block.state)
    empty = engine.run(NAMES[:last]).commit
    world.store.commit(replace(empty, tables={"user": changed}, dense=None))
    assert np.array_equal(engine.scored("test").scores, scored.scores)
    kept = score_pool(TASK, engine.pools["test"], world.store)
    assert not np.allclose(kept.scores, scored.scores)


def test_the_tested_are_drawn_once_and_no_others_are_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        rebuilt, "draw_tested", lambda clients, seed, choose: draw_tested(clients, seed, most=5)
    )
    engine = LocalEngine(simulation())
    engine.pools = {"test": Interacted(TEST, 50)}
    rows, _ = engine.rebuilt()["user"]  # type: ignore[index]
    assert rows.tolist() == draw_tested(CLIENTS, 0, most=5).tolist()
    users = engine.scored("test").users
    assert users is not None
    assert set(users) == {user for user in rows.tolist() if len(DEVICES[NAMES[user]].held_out)}  # type: ignore[arg-type]


def test_without_rebuilding_the_stored_rows_count() -> None:
    world = Simulation(TASK, DEVICES, store_of(TASK), settings_of("cpp5"), seed=0)
    assert LocalEngine(world).rebuilt() is None


def test_in_parts_as_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_of(TASK)
    rows, values = rebuild_personal(TASK, DEVICES, store, LOCAL, seed=0)["user"]
    monkeypatch.setattr(rebuilt, "_AT_ONCE", 5)
    again = rebuild_personal(TASK, DEVICES, store, LOCAL, seed=0)["user"]
    assert np.array_equal(rows, again[0])
    np.testing.assert_allclose(values, again[1], atol=1e-6)


def download(scores: ScoreBins | None) -> Download:
    store = store_of(TASK)
    rows = {table.name: RowSet(np.arange(table.rows)) for table in TASK.tables}
    values = {name: store.read_rows(name, some).values for name, some in rows.items()}
    return Download(rows, values, TASK.initial_dense(), {}, scores)


@pytest.mark.parametrize("share", [0.5, 0.0])
def test_a_device_scores_with_rows_rebuilt_from_the_download(share: float) -> None:
    """Before it trains; what it kept at home has a say only where nothing is rebuilt."""
    device = DEVICES[NAMES[3]]
    trainer = DeviceTrainer(device, lambda number: number, replace(LOCAL, rebuild=share))
    given = download(ScoreBins(bins=4096))
    scored = []
    for kept in (0.0, 1.0):
        personal = {
            name: np.full((len(rows), 18), kept, np.float32) for name, rows in device.personal.items()
        }
        lesson = trainer.train(given, personal, 1)
        assert lesson.trained.scores is not None
        assert sum(one.sum() for one in lesson.trained.scores) > 0
        scored.append(np.concatenate(lesson.trained.scores))
    assert np.array_equal(*scored) == bool(share)


def test_one_by_one_as_together() -> None:
    uploads = []
    for alone in (True, False):
        settings = settings_of("cpp5", training=REBUILD)
        world = Simulation(TASK, DEVICES, store_of(TASK), settings, seed=0, alone=alone)
        given = dict.fromkeys(NAMES, download(ScoreBins(bins=64)))
        personal = world.personal_rows(NAMES)
        uploads.append(world.population.train(1, [NAMES], given, personal))
    for name in NAMES:
        one, other = (trained[name] for trained, _ in uploads)
        assert one.samples == other.samples
        np.testing.assert_allclose(one.dense, other.dense, atol=2e-5)
        assert one.scores is not None
        assert other.scores is not None
        assert abs(one.scores[0].sum() - other.scores[0].sum()) == 0
        (rows, moved), (_, also) = (learned[name].personal["user"] for _, learned in uploads)
        np.testing.assert_allclose(moved, also, atol=2e-5)
        assert bool(len(rows)) == bool(one.samples)


def test_those_who_choose_the_model_are_up_to_a_third_of_those_tested() -> None:
    choose = np.zeros(1000, dtype=bool)
    choose[::10] = True
    drawn = draw_tested(1000, 0, 90, choose=choose)
    assert (len(drawn), len(np.unique(drawn)), choose[drawn].sum()) == (90, 90, 30)
    assert choose[draw_tested(1000, 0, 600, choose=choose)].sum() == 100  # there are no more
    assert choose[draw_tested(1000, 0, 950, choose=choose)].sum() == 100
    assert draw_tested(1000, 0, 2000, choose=choose).tolist() == list(range(1000))
    assert choose[draw_tested(1000, 0, 90, choose=~choose)].sum() == 60
