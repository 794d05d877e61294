"""Worlds are what their settings say: their signal is known, and is where it is said to be."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sfsl.data import Interactions, bayes_auc
from sfsl.errors import InputError, ParameterError
from sfsl.scores import auc
from sfsl_research.worlds import WORLDS, World, WorldSettings, facts_of, generate, load_real

SMALL = WorldSettings(users=300, items=120, samples=25, quality=0.8, bias=0.5, taste=1.0, steer=0.5)
CLICKS = replace(SMALL, items=1500, negatives=1, steer=1.5, mood=1.0, session=5, categories=12, shared=0.5)


def made(settings: WorldSettings, seed: int = 0) -> Interactions:
    data = generate("small", seed=seed, settings=settings).data
    assert isinstance(data, Interactions)
    return data


@pytest.mark.parametrize("settings", [SMALL, CLICKS, replace(SMALL, noise=0.25)])
def test_probabilities_are_those_of_the_labels(settings: WorldSettings) -> None:
    data = made(settings)
    assert data.probability is not None
    assert auc(data.probability, data.label) == pytest.approx(bayes_auc(data.probability), abs=0.02)
    for low in np.arange(0.1, 0.9, 0.2):
        within = (data.probability >= low) & (data.probability < low + 0.2)
        if within.sum() > 300:
            assert data.label[within].mean() == pytest.approx(data.probability[within].mean(), abs=0.06)


def test_a_seed_gives_the_same_world_again_and_another_another() -> None:
    one, again, other = made(SMALL), made(SMALL), made(SMALL, seed=1)
    assert np.array_equal(one.item, again.item)
    assert np.array_equal(one.label, again.label)
    assert not np.array_equal(one.item[:100], other.item[:100])


def test_nobody_meets_an_item_twice_and_histories_are_earlier_clicks() -> None:
    for settings in (SMALL, CLICKS):
        data = made(settings)
        clicked = data.label == 1
        pairs = data.user[clicked] * len(data.items) + data.item[clicked]
        assert len(np.unique(pairs)) == len(pairs)
        assert (data.history_stop <= np.diff(data.click_offsets)[data.user]).all()
    negatives = data.user[~clicked] * len(data.items) + data.item[~clicked]
    assert not np.isin(negatives, pairs).any()


def test_the_signal_is_where_the_settings_put_it() -> None:
    plain = WorldSettings(users=600, items=100, samples=30, zipf=0.0)

    def found(**changes: float) -> tuple[float, float]:
        facts = facts_of(generate("small", seed=3, settings=replace(plain, **changes)))  # type: ignore[arg-type]
        assert facts.best_auc is not None
        return facts.popularity_auc, facts.best_auc

    assert found() == (pytest.approx(0.5, abs=0.03), pytest.approx(0.5, abs=1e-6))
    items, best = found(quality=1.0)
    assert items > best - 0.02 > 0.65
    items, best = found(bias=1.0)
    assert items < 0.55 < 0.7 < best
    items, best = found(taste=1.0)
    assert items < 0.55 < 0.7 < best


def test_the_named_worlds_vary_as_they_should() -> None:
    small = {name: replace(one, users=min(one.users, 400)) for name, one in WORLDS.items()}
    worlds = {name: generate(name, seed=0, settings=one) for name, one in small.items()}
    facts = {name: facts_of(world) for name, world in worlds.items()}
    assert len(facts) >= 8
    assert {one.clients for one in facts.values()} >= {10, 100}
    assert max(one.samples_per_client for one in facts.values()) > 300
    assert min(one.samples_per_client for one in facts.values()) < 20
    categories = [name for name, one in worlds.items() if one.data.category_of is not None]  # type: ignore[union-attr]
    assert 2 <= len(categories) < len(facts) - 2
    assert sum(one.base_rate == 0.5 for one in facts.values()) >= 2  # clicks beside sampled negatives
    assert all(one.best_auc is not None and one.popularity_auc < one.best_auc for one in facts.values())


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="there are films"):
        generate("nowhere", seed=0)
    with pytest.raises(ParameterError, match="amazon-electronics"):
        load_real("nowhere", tmp_path)
    with pytest.raises(InputError):
        load_real("amazon-electronics", tmp_path)
    with pytest.raises(ParameterError, match="empty"):
        WorldSettings(users=5, items=3, samples=2, categories=4)


def test_real_worlds_are_read_from_their_folder(tmp_path: Path) -> None:
    folder = tmp_path / "shakespeare-roles"
    folder.mkdir()
    (folder / "roles.jsonl.gz").write_text('{"play": "p", "role": "r", "lines": ["to be or not to be"]}\n')
    world = load_real("shakespeare-roles", tmp_path)
    assert world.model == "lstm"
    with pytest.raises(InputError, match="words"):
        facts_of(world)
    assert repr(World("x", world.data, 5)) == "World('x', cohorts of 5)"
