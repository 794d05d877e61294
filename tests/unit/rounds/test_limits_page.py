"""Every parameter that a server chooses has a line in docs/spec/limits.md, and every line a parameter."""

import re
import typing
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import msgspec

from sfsl.carriers.flower.messages import Call
from sfsl.client.device import DeviceTrainer
from sfsl.client.events import About
from sfsl.data.catalogue import Catalogue, CatalogueTable
from sfsl.errors import Refused
from sfsl.models.package import Package, WordPackage
from sfsl.rounds.exchanges import HotInvitation, Invitation
from sfsl.rounds.hot import HotParams
from sfsl.rounds.params import RoundParams
from sfsl.secagg import SessionParams
from sfsl.service.messages import CheckedIn
from sfsl.settings.rounds import round_rules
from sfsl.settings.run import RunConfig

PAGE = (Path(__file__).parents[3] / "docs/spec/limits.md").read_text()
BEFORE = "## 8 "


def lines(text: str) -> list[tuple[str, str, str]]:
    return re.findall(r"^\| `([\w.]+)` \| (.+) \| *(.*)\|$", text, re.MULTILINE)


LINES = lines(PAGE.partition(BEFORE)[0])


def structs(kind: typing.Any) -> Iterator[type[msgspec.Struct]]:
    """Find all structs that values of a type are made of."""
    for part in typing.get_args(kind):
        yield from structs(part)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield kind
        for field in msgspec.structs.fields(kind):
            yield from structs(field.type)


def named(*roots: type) -> set[str]:
    """Return all fields that values of these types are made of."""
    return {
        f"{kind.__name__}.{field.name}"
        for root in roots
        for kind in structs(root)
        for field in msgspec.structs.fields(kind)
    }


OF_ROUNDS = named(RoundParams, HotParams, SessionParams)


def test_every_parameter_of_a_round_has_a_line() -> None:
    assert {name for name, *_ in LINES if "." in name} == OF_ROUNDS
    assert all(gain.strip() for _, gain, _ in lines(PAGE))


def test_so_has_all_that_is_said_before_a_round() -> None:
    said = named(About, CheckedIn, Call, Package, WordPackage)
    said |= {
        f"{kind.__name__}.{field.name}" for kind in (Catalogue, CatalogueTable) for field in fields(kind)
    }
    assert {name for name, *_ in lines(PAGE.partition(BEFORE)[2])} == said - OF_ROUNDS


def test_every_hyperparameter_has_a_line() -> None:
    told = round_rules(RunConfig()).training(1)
    assert {name for name, *_ in LINES if "." not in name} >= set(told)


class Asked(dict[str, float]):
    """Hyperparameters that note which of them somebody looks for."""

    def __init__(self) -> None:
        super().__init__()
        self.names = set[str]()

    def get(self, name: str, default: object = None) -> typing.Any:
        self.names.add(name)
        return default

    __getitem__ = get


def test_so_has_every_hyperparameter_that_a_client_looks_for() -> None:
    """Whether our server tells it or not: others may."""
    asked = Asked()
    DeviceTrainer(None, lambda number: number).require(asked)  # type: ignore[arg-type]
    assert asked.names == {name for name, *_ in LINES if "." not in name}


def test_an_invitation_is_its_roster_and_its_parameters() -> None:
    """What else it said would be a knob without a line."""
    for kind in (Invitation, HotInvitation):
        assert kind.__struct_fields__ == ("roster", "round")


def test_hyperparameters_are_refused_beyond_their_lines() -> None:
    trainer = DeviceTrainer(None, lambda number: number)  # type: ignore[arg-type]
    for name, value in {
        "rate": 1001.0,
        "clip": float("inf"),
        "batch_size": 65_537.0,
        "epochs": 21.0,
        "max_samples": 15.0,
        "rebuild": 0.91,
        "rebuild_rate": 1001.0,
        "rebuild_epochs": 21.0,
    }.items():
        try:
            trainer.require({"rate": 0.1} | {name: value})
        except Refused:
            continue
        raise AssertionError(f"{name} = {value} was taken")
