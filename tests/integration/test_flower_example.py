"""The app that users copy, as they run it: ``flwr run`` with simulated nodes, and what its files say."""

import os
import sys
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("flwr")
pytest.importorskip("ray")

from clocks import SteppingClock
from federation import LoopGrid
from sfsl.carriers.flower.apps import GridPost, run_rounds
from sfsl.errors import TooFewClients
from sfsl.flower import Member, Node, device_member
from sfsl.privacy import epsilon_of
from sfsl.privacy.state import read_state
from sfsl.service.folder import read_lines
from sfsl.settings.flower import read_config

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "flower"
ROUNDS, NODES = 2, 5


def test_its_settings_are_settings() -> None:
    import tomllib

    from flwr.common.config import flatten_dict

    said = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    config = read_config(flatten_dict(said))
    assert config.rounds().cohort == said["round"]["clients"]


def nodes_with_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **terms: bool | float) -> LoopGrid:
    """As deployed: each with a folder and a file of its own, and the ``terms`` of its operator."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    import films.data
    import films.model

    for place in range(NODES):
        seen, liked = films.data.simulated(place)
        rows = "\n".join(f"{film},{like}" for film, like in zip(seen, liked, strict=True))
        (tmp_path / f"{place}.csv").write_text(f"film,liked\n{rows}\n")

    def join(node: Node) -> AbstractContextManager[Member]:
        return device_member(node, films.model.task(), lambda state: films.data.load(node, state))

    grid = LoopGrid(join, tmp_path, NODES, terms)
    for place, context in enumerate(grid.contexts.values()):
        context.node_config["data"] = str(tmp_path / f"{place}.csv")
    return grid


def run_films(tmp_path: Path, grid: LoopGrid, **changes: str | int) -> None:
    import films.model

    given = {"round.clients": NODES, "flower.state": str(tmp_path / "server"), "flower.rounds": 2}
    given |= {"flower.wait_seconds": 0.1, "flower.check_in_seconds": 1.0, "flower.period_days": 0}
    config = read_config(given | {"training.clip": 10.0} | changes)
    clock = SteppingClock()
    run_rounds(config, films.model.task(), GridPost(grid, 0.05, clock=clock, sleep=clock.sleep))


def test_nodes_take_part_in_rounds_over_hot_rows_unless_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server and nodes that say nothing about it: a survey, a round that trains, and what they cost."""
    grid = nodes_with_files(tmp_path, monkeypatch)
    run_films(tmp_path, grid)
    lines = read_lines(tmp_path / "server" / "metrics.jsonl")
    assert [(line.aborted, line.survivors) for line in lines] == [(None, NODES)] * 2
    for place in range(NODES):
        hot = read_state(tmp_path / f"node-{place}" / "state").hot
        assert hot.rounds == 2
        assert 0 < epsilon_of(hot.rho, 1e-6) < 8  # what its terms allow in all
    with pytest.raises(TooFewClients):  # exact sums are not for nodes whose operators have not said so
        run_films(tmp_path, grid, **{"round.scheme": "sfsl", "round.min_contributors": 2, "flower.rounds": 3})


def test_nodes_with_files_and_folders_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One round of exact sums, and then each node's budget is spent for its period."""
    grid = nodes_with_files(tmp_path, monkeypatch, **{"exact-sums": True})
    with pytest.raises(TooFewClients):
        run_films(tmp_path, grid, **{"round.scheme": "sfsl", "round.min_contributors": 2})
    (line,) = read_lines(tmp_path / "server" / "metrics.jsonl")
    assert (line.aborted, line.survivors) == (None, NODES)
    assert line.moved["film"] > 0
    assert grid.silences == []  # a spent budget is said aloud
    for place in range(NODES):
        home = tmp_path / f"node-{place}"
        assert (home / "data").read_bytes() == (tmp_path / f"{place}.csv").read_bytes()


@pytest.mark.slow  # a SuperLink, Ray and six processes, for what test_flower_rounds does in one
@pytest.mark.parametrize("scheme", ["sfsl", "hot"])
def test_flwr_run_with_simulated_nodes(scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over hot rows without noise, of which five nodes could not bear any: a survey, and a round."""
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    from flower_parts import Federation, wait_until

    metrics = tmp_path / "server" / "metrics.jsonl"
    environment = {"PYTHONPATH": os.pathsep.join(sys.path), "RAY_USAGE_STATS_ENABLED": "0"}
    overrides = (
        f'flower.state="{tmp_path / "server"}" flower.rounds={ROUNDS} flower.poll_seconds=0.1 '
        f'simulation.folder="{tmp_path / "nodes"}" round.scheme="{scheme}" '
        f"privacy.epsilon=inf node.hot-epsilon=inf"
    )
    simulated = f"num-supernodes={NODES} client-resources-num-cpus=1 init-args-num-cpus=2"
    with Federation(tmp_path, environment, simulation=True) as federation:
        federation.start_superlink()
        federation.run(EXAMPLE, "--run-config", overrides, "--federation-config", simulated)
        wait_until(lambda: len(read_lines(metrics)) >= ROUNDS, 400, "two rounds")
    for line in read_lines(metrics):
        assert (line.aborted, line.survivors) == (None, NODES)
        assert line.moved.get("film", 0) > 0 or (scheme, line.round) == ("hot", 1)
    folders = sorted((tmp_path / "nodes").iterdir())
    assert [one.name for one in folders] == [f"partition-{place}" for place in range(NODES)]
    for one in folders:
        assert {"state", "rows", "deployment"} <= {file.name for file in one.iterdir()}
        assert (one / "state").stat().st_mode & 0o777 == 0o600
