"""Whole rounds on Flower's apps and messages, without its processes: the local engine's model, dropouts,
a server that is killed."""

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("flwr")

from flwr.app import Message

from clocks import SteppingClock
from federation import FIRST, LoopGrid
from same_model import local_rounds, require_same_model
from sfsl.carriers.flower.apps import GridPost, run_rounds
from sfsl.errors import TooFewClients
from sfsl.rounds.exchanges import Exchange, order
from sfsl.run.fleet import Fleet, build_fleet
from sfsl.service.folder import read_lines
from sfsl.settings.flower import FlowerConfig, read_config
from sfsl_research.flower_members import seeded_members

CLIENTS, ROUNDS = 6, 2
RUN: dict[str, Any] = {
    "round.scheme": "sfsl",
    "round.clients": CLIENTS,
    "round.min_contributors": 2,
    "server.row_step": "adagrad",
    "server.kappa_rounds": 10,
    "flower.rounds": ROUNDS,
    "flower.period_days": 0,
    "flower.largest_set": 300,
    "flower.poll_seconds": 0.05,
    "flower.wait_seconds": 5.0,
    "flower.check_in_seconds": 1.0,
    "flower.phase_seconds": 1.0,
    "flower.training_seconds": 1.0,
}
DATA = {"data": {"users": CLIENTS, "scale": 0.03}, "privacy": {"preset": "cpp2"}}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def world(
    tmp_path: Path, training: dict[str, Any] | None = None, **changes: Any
) -> tuple[FlowerConfig, Any, Fleet]:
    told = {f"training.{name}": value for name, value in (training or {}).items()}
    config = read_config(RUN | {"flower.state": str(tmp_path / "server")} | told | changes)
    from sfsl.settings.run import from_sections

    sections = {"round": {"clients": CLIENTS, "min_contributors": 2}, "server": {}}
    sections["server"] = {"row_step": "adagrad", "kappa_rounds": 10}
    run = from_sections(sections | DATA | {"training": training or {}})
    return config, run, build_fleet(run)


def run(config: FlowerConfig, fleet: Fleet, grid: LoopGrid) -> None:
    clock = SteppingClock()
    run_rounds(config, fleet.task, GridPost(grid, 0.05, clock=clock, sleep=clock.sleep))


@pytest.mark.parametrize("training", [{}, {"rebuild": 0.4, "rebuild_rate": 3.0, "max_samples": 16}])
def test_the_model_is_the_local_engines_word_for_word(tmp_path: Path, training: dict[str, Any]) -> None:
    config, chosen, fleet = world(tmp_path, training)
    grid = LoopGrid(seeded_members(chosen, fleet), tmp_path, CLIENTS)
    run(config, fleet, grid)
    local = local_rounds(chosen, fleet, [sorted(fleet.devices)] * ROUNDS)
    require_same_model(tmp_path / "server" / "store", local)
    lines = read_lines(tmp_path / "server" / "metrics.jsonl")
    assert [(line.round, line.survivors) for line in lines] == [(1, CLIENTS), (2, CLIENTS)]
    assert [line.samples for line in lines] == local.samples
    assert [line.union for line in lines] == local.unions
    for line in lines:
        assert list(line.exchange_seconds) == [Exchange.CHECK_IN, *order(active=False)]
        assert line.bytes_up["submodel"] > line.bytes_up["union"] > 0
    assert all(not context.state for context in grid.contexts.values())  # nothing of a round is left
    assert grid.silences == []


@pytest.mark.parametrize("exchange", ["inbound", "unmask-union", "union", "submodel"])
def test_a_node_that_vanishes_is_a_dropout(tmp_path: Path, exchange: str) -> None:
    """``exchange``: the first message of round 1 that it does not answer."""
    config, chosen, fleet = world(tmp_path)
    due = 2 + order(active=False).index(exchange)  # after the check-in, counted from 1
    grid = LoopGrid(
        seeded_members(chosen, fleet),
        tmp_path,
        CLIENTS,
        lost=lambda node, count: (node, count) == (FIRST + 2, due),
    )
    run(config, fleet, grid)
    name = sorted(fleet.devices)[2]
    local = local_rounds(chosen, fleet, [sorted(fleet.devices)] * ROUNDS, {(1, exchange): {name}})
    require_same_model(tmp_path / "server" / "store", local)
    first, second = read_lines(tmp_path / "server" / "metrics.jsonl")
    assert first.dropped == {exchange: 1}
    assert (first.survivors, second.survivors) == (CLIENTS - 1, CLIENTS)
    assert all(not context.state for context in grid.contexts.values())


class Killed(BaseException):
    pass


def test_a_run_that_is_killed_goes_on_from_its_store(tmp_path: Path) -> None:
    config, chosen, fleet = world(tmp_path)
    replies = 0

    def meddle(reply: Message) -> Message:
        nonlocal replies
        replies += 1
        if replies == CLIENTS * 10:  # in mid-round 2
            raise Killed
        return reply

    grid = LoopGrid(seeded_members(chosen, fleet), tmp_path, CLIENTS, meddle=meddle)
    with pytest.raises(Killed):
        run(config, fleet, grid)
    assert len(read_lines(tmp_path / "server" / "metrics.jsonl")) == 1
    run(config, fleet, grid)
    require_same_model(
        tmp_path / "server" / "store", local_rounds(chosen, fleet, [sorted(fleet.devices)] * ROUNDS)
    )
    run(config, fleet, grid)  # nothing left to do
    assert len(read_lines(tmp_path / "server" / "metrics.jsonl")) == ROUNDS


def test_too_few_nodes_end_the_run_and_the_store_stands(tmp_path: Path) -> None:
    config, chosen, fleet = world(tmp_path, **{"flower.wait_seconds": 0.2, "flower.check_in_seconds": 0.1})
    with pytest.raises(TooFewClients, match=r"3 nodes that may be invited \(none was called\), 5 or more"):
        run(config, fleet, LoopGrid(seeded_members(chosen, fleet), tmp_path, 3))
