"""Rounds over hot rows on Flower's apps and messages, without its processes: the local engine's model, and
ledgers that count what left."""

import math
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("flwr")

from clocks import SteppingClock
from federation import FIRST, LoopGrid
from same_model import local_rounds, require_same_model
from sfsl.carriers.flower.apps import GridPost, run_rounds
from sfsl.carriers.flower.messages import CODEC, Call
from sfsl.rounds.exchanges import HOT, Exchange
from sfsl.run.fleet import Fleet, build_fleet
from sfsl.service.folder import read_lines
from sfsl.settings.flower import FlowerConfig, read_config
from sfsl.settings.run import RunConfig, from_sections
from sfsl_research.flower_members import seeded_members

CLIENTS, ROUNDS = 6, 3  # a survey, and two rounds that train
SECTIONS: dict[str, dict[str, Any]] = {
    "round": {"scheme": "hot", "clients": CLIENTS},
    "privacy": {"epsilon": math.inf, "participations": 2},
    "server": {"row_step": "adagrad", "kappa_rounds": 10},
}
FLOWER = {"rounds": ROUNDS, "period_days": 0, "poll_seconds": 0.05, "wait_seconds": 5.0}
FLOWER |= {f"{name}_seconds": 1.0 for name in ("check_in", "phase", "training")}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def world(tmp_path: Path) -> tuple[FlowerConfig, RunConfig, Fleet]:
    sections = SECTIONS | {"flower": FLOWER | {"state": str(tmp_path / "server")}}
    flat = {f"{name}.{key}": value for name, part in sections.items() for key, value in part.items()}
    del flat["round.scheme"]  # it is what a server on Flower does unless told otherwise
    run = from_sections(SECTIONS | {"data": {"users": CLIENTS, "scale": 0.03, "world": "films"}})
    return read_config(flat), run, build_fleet(run)


def run(config: FlowerConfig, fleet: Fleet, grid: LoopGrid) -> None:
    clock = SteppingClock()
    run_rounds(config, fleet.task, GridPost(grid, 0.05, clock=clock, sleep=clock.sleep))


def test_a_survey_and_two_rounds_are_the_local_engines_word_for_word(tmp_path: Path) -> None:
    config, chosen, fleet = world(tmp_path)
    grid = LoopGrid(seeded_members(chosen, fleet), tmp_path, CLIENTS)
    run(config, fleet, grid)
    local = local_rounds(chosen, fleet, [sorted(fleet.devices)] * ROUNDS)
    require_same_model(tmp_path / "server" / "store", local)
    lines = read_lines(tmp_path / "server" / "metrics.jsonl")
    assert [(line.round, line.survivors) for line in lines] == [(number, CLIENTS) for number in (1, 2, 3)]
    for line in lines:
        assert list(line.exchange_seconds) == [Exchange.CHECK_IN, *HOT.order()]
    survey, *trained = lines
    beside = 4 * local.store.spec.model.dense  # of what is published the dense part alone
    for line in trained:
        assert line.bytes_down["inbound"] > beside > survey.bytes_down["inbound"]
    assert all(not context.state for context in grid.contexts.values())  # nothing of a round is left
    assert grid.silences == []
    calls = [one for _, frame in grid.sent if isinstance(one := CODEC.decode(frame, limit=1 << 24), Call)]
    assert {one.rho for one in calls} == {math.inf}


@pytest.mark.parametrize("exchange", ["inbound", "unmask-update"])
@pytest.mark.parametrize("number", [1, 2])
def test_a_node_that_vanishes_is_a_dropout(tmp_path: Path, number: int, exchange: str) -> None:
    """In the survey and in a round that trains, before its vector and after it."""
    config, chosen, fleet = world(tmp_path)
    messages = len(HOT.order()) + 1  # with the check-in; whoever is late is told that the round is over
    due = (number - 1) * messages + 2 + HOT.order().index(Exchange(exchange))
    grid = LoopGrid(
        seeded_members(chosen, fleet),
        tmp_path,
        CLIENTS,
        lost=lambda node, count: (node, count) == (FIRST + 2, due),
    )
    run(config, fleet, grid)
    name = sorted(fleet.devices)[2]
    gone = {(number, exchange): {name}}
    local = local_rounds(chosen, fleet, [sorted(fleet.devices)] * ROUNDS, gone)
    require_same_model(tmp_path / "server" / "store", local)
    lines = read_lines(tmp_path / "server" / "metrics.jsonl")
    assert lines[number - 1].dropped == {exchange: 1}
    assert all(not context.state for context in grid.contexts.values())
