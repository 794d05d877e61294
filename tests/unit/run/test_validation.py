"""Held-out samples of some devices choose the model; those of all others test it."""

from dataclasses import replace

import numpy as np
import torch

from sfsl.data import Samples, speech_of
from sfsl.data.words import Role
from sfsl.run.fleet import Collected, Fleet, build_fleet
from sfsl.run.validation import LEAST, _fraction, choosing, split_held_out
from sfsl.settings.run import RunConfig, from_sections
from sfsl.simulate.engine import Pool
from sfsl.submodel import Table
from sfsl.training.task import Task

CLICKS = {"users": 120, "scale": 0.05}


def config(share: float, seed: int = 0, **data: object) -> RunConfig:
    return from_sections({"data": {"validation": share, **data}, "run": {"seed": seed}})


def owners(pool: Pool) -> set[object]:
    names, which = pool.owners()
    return {names[number] for number in np.unique(which).tolist()}


def films(count: int) -> Samples:
    rows = np.arange(count)
    return Samples({"film": rows % 3, "label": np.float32(rows % 2)}, {"film": "film"})


def fleet_of(names: list[str], samples: int = 4) -> Fleet:
    class Rating(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.film = torch.nn.Embedding(3, 1, device="meta")

    every = {name: films(samples) for name in names}
    return Fleet.of(Task(Rating(), (Table(name="film", rows=3, width=1),)), every, every)


def test_a_device_is_in_one_pool_and_every_sample_is_in_one() -> None:
    wanted = config(0.3, **CLICKS)
    fleet = build_fleet(wanted)
    pools = split_held_out(wanted, fleet)
    assert not owners(pools["valid"]) & owners(pools["test"])
    assert owners(pools["valid"]) | owners(pools["test"]) == owners(fleet.test)
    assert len(pools["valid"]) + len(pools["test"]) == len(fleet.test)
    named = choosing(pools, fleet)
    held_out = sum(len(fleet.devices[name].held_out or ()) for name in named)
    assert (len(named), held_out) == (len(owners(pools["valid"])), len(pools["valid"]))
    assert 0.15 < len(owners(pools["valid"])) / len(owners(fleet.test)) < 0.45
    for pool in pools.values():
        some = pool.samples(np.arange(5)).local_columns({})
        for name in ("user", "item", "label"):
            column = pool.column(name)
            assert column is not None
            assert some[name].tolist() == column[:5].tolist()


def test_without_a_share_there_is_the_test_set_as_it_was() -> None:
    wanted = config(0, **CLICKS)
    fleet = build_fleet(wanted)
    pools = split_held_out(wanted, fleet)
    assert [*pools] == ["test"]
    assert pools["test"] is fleet.test


def test_the_seed_draws_devices_which_stay_when_others_come() -> None:
    names = [f"user {number}" for number in range(200)]
    pools = split_held_out(config(0.2), fleet_of(names))
    more = split_held_out(config(0.2), fleet_of([f"new {one}" for one in range(100)] + names))
    assert owners(more["valid"]) & set(names) == owners(pools["valid"])
    assert choosing(pools, fleet_of(names)) == owners(pools["valid"])
    assert owners(split_held_out(config(0.2, seed=1), fleet_of(names))["valid"]) != owners(pools["valid"])


def test_where_a_side_has_too_few_clicks_or_devices_all_is_for_testing() -> None:
    names = [str(number) for number in range(50)]
    assert "valid" in split_held_out(config(0.5), fleet_of(names, 4))
    only_one_kind = fleet_of(names, 1)
    two_devices = fleet_of(["ann", "bob"], 100)
    nothing = replace(two_devices, test=Collected.of({}, films(0)))
    for fleet, share in ((only_one_kind, 0.5), (two_devices, 0.01), (two_devices, 0.99), (nothing, 0.5)):
        assert split_held_out(config(share), fleet) == {"test": fleet.test}
    few = fleet_of(names, 2)  # one click and one non-click each: there must be ten such devices
    for share in (0.1, 0.15, 0.2, 0.25, 0.3):
        devices = sum(_fraction(0, name) < share for name in names)
        assert ("valid" in split_held_out(config(share), few)) == (devices >= LEAST)


def test_roles_are_devices_too() -> None:
    lines = ("To be, or not to be, that is the question: whether 'tis nobler in the mind to suffer",)
    speech = speech_of([Role(play="A", role=str(number), lines=lines) for number in range(40)])
    _, test = speech.windows(0.3)
    pools = split_held_out(config(0.3), replace(fleet_of(["ann"]), test=test))
    assert not owners(pools["valid"]) & owners(pools["test"])
    names, which = test.owners()
    for number in np.unique(which).tolist():
        assert len(test.client(number)) == np.count_nonzero(which == number)
    assert len(names) == 40
